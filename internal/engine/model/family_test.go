package model

import (
	"slices"
	"strings"
	"testing"
)

// A new architecture is one entry: here Llama's sizes with biases on query, key and value alone,
// and a config key of its own.
func TestRegisterArchitecture(t *testing.T) {
	const name = "TestForCausalLM"
	Register(Family{
		Name: name,
		Read: func(f *Fields, c *Config) {
			c.QKVBias, c.Tied = true, true
			ReadRope(f, c, 1e6)
			if f.Bool("use_sliding_window", false) {
				f.Refuse("use_sliding_window", "true: attention here covers the whole context")
			}
		},
		Layer: DecoderLayer,
		Extra: DecoderExtra,
	})
	t.Cleanup(func() { delete(registry, name) })
	if got := Architectures(); !slices.Equal(got, []string{name}) {
		t.Errorf("known: %v", got)
	}
	const config = `{"architectures": ["TestForCausalLM"], "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96, "vocab_size": 100`
	c, err := ParseConfig("d", []byte(config+"}"), nil)
	if err != nil || c.Rope.Theta != 1e6 {
		t.Fatalf("%+v, %v", c, err)
	}
	var names []string
	for _, s := range c.Tensors() {
		names = append(names, s.Name)
	}
	l := DecoderLayer(&Config{QKVBias: true, OutBias: true}, 1)
	if !slices.Contains(names, l.Q.Bias) || slices.Contains(names, l.O.Bias) || slices.Contains(names, Head) {
		t.Errorf("tensors %v", names)
	}
	_, err = ParseConfig("d", []byte(config+`, "use_sliding_window": true}`), nil)
	if err == nil || !strings.Contains(err.Error(), `field "use_sliding_window": true: attention here`) {
		t.Errorf("got %v", err)
	}
	defer func() {
		if recover() == nil {
			t.Error("the same name twice did not panic")
		}
	}()
	Register(Family{Name: name})
}

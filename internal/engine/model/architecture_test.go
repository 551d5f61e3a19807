package model

import (
	"slices"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/safetensors"
)

// A new architecture is one entry: here Llama's sizes with biases on query, key and value alone,
// and a config key of its own.
func TestRegisterArchitecture(t *testing.T) {
	const name = "TestForCausalLM"
	register(architecture{
		Name: name,
		read: func(f *fields, c *Config) {
			c.QKVBias, c.Tied = true, true
			readRope(f, c, 1e6)
			if f.Bool("use_sliding_window", false) {
				f.fail("use_sliding_window", ErrUnsupported, "true: attention here sees the whole context")
			}
		},
		layer: llamaLayer,
		extra: llamaExtra,
	})
	t.Cleanup(func() { delete(registry, name) })
	if got := Architectures(); !slices.Equal(got, slices.Sorted(slices.Values(append(slices.Clone(families), name)))) {
		t.Errorf("known: %v", got)
	}
	c, err := ParseConfig("d", with(change{"architectures": []string{name}, "rope_theta": remove}), nil)
	if err != nil || c.Rope.Theta != 1e6 {
		t.Fatalf("%+v, %v", c, err)
	}
	var names []string
	for _, s := range c.Tensors() {
		names = append(names, s.Name)
	}
	l := LlamaLayer(1)
	if !slices.Contains(names, l.Q.Bias) || slices.Contains(names, l.O.Bias) || slices.Contains(names, Head) {
		t.Errorf("tensors %v", names)
	}
	_, err = ParseConfig("d", with(change{"architectures": []string{name}, "use_sliding_window": true}), nil)
	if err == nil || !strings.Contains(err.Error(), `field "use_sliding_window": true: attention here`) {
		t.Errorf("got %v", err)
	}
	defer func() {
		if recover() == nil {
			t.Error("the same name twice did not panic")
		}
	}()
	register(architecture{Name: name})
}

// The tensors' parameters add up to the published sizes.
func TestLlamaParameterCounts(t *testing.T) {
	for name, test := range map[string]struct {
		c    Config
		want int64
	}{
		"fry":          {Config{Hidden: 384, Layers: 8, Heads: 16, KVHeads: 8, HeadDim: 32, FFN: 1024, Vocab: 4096, Tied: true}, 15_735_168},
		"Llama 2 7B":   {Config{Hidden: 4096, Layers: 32, Heads: 32, KVHeads: 32, HeadDim: 128, FFN: 11008, Vocab: 32000}, 6_738_415_616},
		"Llama 3.1 8B": {Config{Hidden: 4096, Layers: 32, Heads: 32, KVHeads: 8, HeadDim: 128, FFN: 14336, Vocab: 128256}, 8_030_261_248},
		"Llama 3.2 1B": {Config{Hidden: 2048, Layers: 16, Heads: 32, KVHeads: 8, HeadDim: 64, FFN: 8192, Vocab: 128256, Tied: true}, 1_235_814_400},
	} {
		test.c.Architecture = "LlamaForCausalLM"
		var got int64
		for _, s := range test.c.Tensors() {
			n, ok := safetensors.ByteSize(s.Shape, 1)
			if !ok {
				t.Fatal(s)
			}
			got += n
		}
		if got != test.want {
			t.Errorf("%s: %d parameters, want %d", name, got, test.want)
		}
	}
}

package socket

import (
	"bytes"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/shoal-llm/shoal/actors/layer"
	"github.com/shoal-llm/shoal/actors/layer/accelerator"
	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
	"github.com/shoal-llm/shoal/internal/engine/cuda/card"
	"github.com/shoal-llm/shoal/internal/engine/model/modeltest"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/testlevel"
	"github.com/shoal-llm/shoal/topology"
)

// ranksOn returns the devices of a rig: a card where kinds has a c, the CPU where it has a p. Each
// card has a stream and kernels of its own, as in a process of its own.
func ranksOn(t *testing.T, kinds, dir string, kv tensor.DType) func(*tensor.Pool) layer.Device {
	t.Helper()
	ck, err := checkpoint.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer ck.Close()
	next := 0
	return func(p *tensor.Pool) layer.Device {
		kind := kinds[next]
		next++
		if kind == 'p' {
			return layer.Host{Pool: p}
		}
		c, err := card.Open(0, card.Options{Fail: func(err error) { panic(err) }})
		if err != nil {
			t.Fatal(err)
		}
		d, err := accelerator.New(c, 1<<25, ck.Config.CacheLayout(kv))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(d.Close)
		return d
	}
}

// TestCardRanks checks that results do not depend on the devices of the ranks of a group: a card alone,
// a card and CPUs, several cards, CPUs alone.
func TestCardRanks(t *testing.T) {
	testCard(t)
	const gather, reduce = topology.Gather, topology.Reduce
	for i, c := range []struct {
		model, weights string
		kv             tensor.DType
		kinds          string // devices of the ranks (ranksOn)
		mapping        topology.Mapping
		chunk          int // above 32 rows, norms are exchanged rounded
	}{
		{"llama", "f32", tensor.F32, "cp", gather, 131},
		{"llama", "f32", tensor.F32, "cc", reduce, 31},
		{"llama", "q8_0", tensor.BF16, "cp", gather, 31},
		{"llama", "q8_0", tensor.BF16, "pc", gather, 131},
		{"llama", "q8_0", tensor.BF16, "cp", reduce, 131},
		{"llama", "q8_0", tensor.BF16, "cc", gather, 131},
		{"llama", "q8_0", tensor.BF16, "pcpp", reduce, 31},
		{"llama", "q4_0", tensor.Int8, "ccp", reduce, 131},
		{"qwen2", "bf16", tensor.BF16, "cp", gather, 131}, // biases
		{"qwen2", "q8_0", tensor.BF16, "cc", reduce, 31},
		{"qwen3", "q8_0", tensor.BF16, "pc", reduce, 131}, // norms of heads
		{"mlp_bias", "q8_0", tensor.BF16, "cp", gather, 131},
		{"mlp_bias", "f32", tensor.BF16, "cp", reduce, 131},
	} {
		if !testlevel.Long() && realCard == "" && i%2 > 0 {
			continue
		}
		t.Run(fmt.Sprint(c.model, " ", c.weights, " ", c.kv, " ", c.kinds, " ", c.mapping, " ", c.chunk), func(t *testing.T) {
			dir := filepath.Join(modelData, c.model)
			if c.model == "mlp_bias" {
				dir = t.TempDir()
				shape := modeltest.Small()
				shape.FFN, shape.Vocab, shape.AttentionBias, shape.MLPBias = 256, 512, true, true
				if err := modeltest.Write(dir, shape, 7); err != nil {
					t.Fatal(err)
				}
			}
			requests := func() []*request {
				all := load("full")
				if realCard == "" {
					all = []*request{all[0], all[2]}
					all[0].max, all[1].max = 3, 2
				}
				return all
			}
			want, got := requests(), requests()
			newRig(t, rigConfig{dir: dir, sockets: 1, mapping: gather, weights: c.weights, kv: c.kv}).generate(200, want...)
			newRig(t, rigConfig{dir: dir, sockets: len(c.kinds), mapping: c.mapping, shares: []float64{2, 3, 1, 1}[:len(c.kinds)],
				weights: c.weights, kv: c.kv, device: ranksOn(t, c.kinds, dir, c.kv)}).generate(c.chunk, got...)
			if !bytes.Equal(bits(t, got), bits(t, want)) {
				t.Error("results differ from those of a CPU alone")
			}
		})
	}
}

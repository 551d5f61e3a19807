package alone

import (
	"path/filepath"
	"testing"

	"github.com/shoal-llm/shoal/actors/socket/shard"
	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/layered"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// TestPrefillLayers: a prompt that is read layer by layer has the next token of one that is read in chunks. After some
// layers it has none. Its caches have exactly the bytes that the ledger books.
func TestPrefillLayers(t *testing.T) {
	for _, name := range []string{"llama", "swiftkv", "swiftkv_across", "qwen3_5", "falcon_h1"} {
		t.Run(name, func(t *testing.T) { prefillLayers(t, filepath.Join("../model/testdata", name)) })
	}
}

func prefillLayers(t *testing.T, dir string) {
	ck, err := checkpoint.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer ck.Close()
	pool := tensor.NewPool(1)
	defer pool.Close()
	const budget, tokens, chunk = 1 << 22, 300, 32
	c := &ck.Config
	g := shard.GeometryOf(c, tensor.F32)
	g.Chunk = chunk
	run := func(p Prompt) (first int32, peak int64) {
		t.Helper()
		a, err := New(t.Context(), Config{Checkpoint: ck, Pool: pool, Weights: tensor.F32, KV: tensor.F32, KVBudget: budget, StepTokens: chunk})
		if err != nil {
			t.Fatal(err)
		}
		defer a.Close()
		if first, _, _, err = a.Prefill(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		if peak, err = a.PeakBytes(t.Context()); err != nil {
			t.Fatal(err)
		}
		return first, peak
	}
	for _, spec := range []string{"snapkv:topk=16,obs=4,pool=3", "h2o:recent=9,topk=9", "streaming:sink=2,recent=20"} {
		p := Prompt{Seq: 1, Policy: spec, Chunk: chunk, Layers: g.Layers}
		for i := range tokens {
			p.Tokens = append(p.Tokens, uint32(5+i*i%200))
		}
		want, chunks := run(p)
		policy, err := parse(spec)
		if err != nil {
			t.Fatal(err)
		}
		for group := 1; group < g.Layers; group++ {
			s := layered.ShapeOf(g, chunk, tokens, c.Hidden, 1, policy)
			s.Group = group
			p.Shape = s
			booked := s.CacheBytes(g, g.KVHeads, g.KVHeads, tokens, 0, policy) + s.ResidualBytes(tokens) +
				kvcache.ResidentBytes(g, tokens, tokens, policy)
			if got, peak := run(p); got != want || peak != booked || group == 1 && peak > chunks {
				t.Errorf("%s, %d layers at a time: token %d, want %d, and %d bytes, %d are booked, %d in chunks",
					spec, group, got, want, peak, booked, chunks)
			}
		}
		p.Layers = 1
		if got, _ := run(p); got != 0 {
			t.Errorf("%s, one layer: token %d", spec, got)
		}
	}
}

package socket

import (
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"

	"github.com/shoal-llm/shoal/actors/socket/shard"
	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/kvpolicy"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/memory"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/topology"
)

// TestInputInChunks: an input after a prompt gives the same bits with any number of rows per step, as with
// one. Several threads share the rows of a step, and each row selects its own slots.
func TestInputInChunks(t *testing.T) {
	const input, prompt = 233, 700
	for _, c := range []struct {
		model    string
		policies []string
	}{
		{"llama", []string{"squeezed:clusters=0.1,sparsity=0.8,tail=4,obs=8",
			"squeezed:clusters=0.25,levels=2,sparsity=0.5,tail=4,obs=6,segment=64",
			"squeezed:clusters=0.25,levels=2,sparsity=0.5,tail=4,obs=6,segment=64,ring=30", "full", "quest:page=16,budget=96",
			"quest:page=16,budget=96,ring=50", "shadowkv:keys=lowrank,rank=16,chunk=8,budget=40,outliers=3,local=2,ring=21",
			"infinigen:alpha=2,most=0.3,calib=32,ring=30",
			"quest:page=64,budget=128", "shadowkv:chunk=8,budget=40,outliers=3,local=2",
			"shadowkv:keys=lowrank,rank=16,chunk=8,budget=40,outliers=3,local=2",
			"loki:budget=40,dims=0.5,calib=32", "infinigen:alpha=2,most=0.3,calib=32", "h2o:recent=40,topk=40,step=1"}},
		{"deepseek_v2", []string{"squeezed:clusters=0.1,sparsity=0.8,tail=4,obs=8", "full"}},
		{"gemma3", []string{"squeezed:clusters=0.1,sparsity=0.8,tail=4,obs=8", "full"}},
		{"gemma4_31b", []string{"squeezed:clusters=0.1,sparsity=0.8,tail=4,obs=8"}},
	} {
		ck, err := checkpoint.Open(filepath.Join(modelData, c.model))
		if err != nil {
			t.Fatal(err)
		}
		defer ck.Close()
		pool := tensor.NewPool(5)
		defer pool.Close()
		place, err := topology.Place(1, topology.Gather, shard.ShapeOf(&ck.Config), []topology.Member{{ID: "a"}})
		if err != nil {
			t.Fatal(err)
		}
		w, err := shard.Load(t.Context(), ck, place, 0, tensor.F32, shard.Options{Pool: pool})
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		for i, spec := range c.policies {
			if i > 1 && (testing.Short() || raceEnabled) {
				continue
			}
			t.Run(c.model+" "+spec, func(t *testing.T) {
				p, err := kvpolicy.Parse(spec)
				if err != nil {
					t.Fatal(err)
				}
				read := func(chunk int) (out []float32) {
					d := newDecoder(t, ck, w, place, pool, memory.NewArena(1<<30), p, prompt, 3)
					defer d.view.Release()
					h := d.batch.Dims.Hidden
					rows := noiseRow(rand.New(rand.NewPCG(9, 9)), input*h)
					for at := 0; at < input; at += chunk {
						n := min(chunk, input-at)
						out = append(out, d.step(rows[at*h:][:n*h])...)
						d.view.Commit(n)
					}
					return out
				}
				want := read(1)
				for _, chunk := range []int{7, 31, 200} {
					if got := read(chunk); !slices.Equal(got, want) {
						t.Errorf("chunks of %d rows give other bits than one row per step", chunk)
					}
				}
			})
		}
	}
}

package cluster

import (
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/shoal-llm/shoal/actors/batcher"
	"github.com/shoal-llm/shoal/actors/socket/shard"
	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/kvpolicy"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/tier"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/server/engine"
)

// TestKVDiskModels: selected slots in files give the same bits as in memory, for several models and cache
// types, and if several threads share a long sequence. The rows of a model with an indexer stay in memory.
func TestKVDiskModels(t *testing.T) {
	const sequences, output = 4, 30
	for _, c := range []struct {
		model  string
		kv     string
		policy string
		length int
		spills bool
	}{
		{"qwen3", "f32", "squeezed:clusters=0.05,sparsity=0.9,tail=8,obs=12", 500, true},
		{"llama", "int8", "squeezed:clusters=0.05,levels=2,sparsity=0.8,tail=8,obs=12,segment=300", 500, true},
		{"llama", "bf16", "squeezed:clusters=0.05,sparsity=0.8,tail=8,obs=12", 1500, true},
		{"llama", "bf16", "squeezed:clusters=0.05,sparsity=0.9,tail=8,obs=12,ring=40", 500, true},
		{"llama", "bf16", "quest:page=16,budget=64,ring=30", 1500, true},
		{"llama", "int8", "shadowkv:chunk=8,budget=32,outliers=2,local=1,ring=40", 1500, true},
		{"gemma2", "bf16", "squeezed:clusters=0.05,sparsity=0.95,tail=8,obs=12", 400, true},
		{"deepseek_v2", "bf16", "squeezed:clusters=0.05,sparsity=0.9,tail=8,obs=12", 500, true},
		{"deepseek_v32", "bf16", "squeezed:clusters=0.05,sparsity=0.9,tail=8,obs=12", 400, false},
	} {
		t.Run(fmt.Sprint(c.model, " ", c.kv, " ", c.policy), func(t *testing.T) {
			dir := filepath.Join(filepath.Dir(goldenDir), c.model)
			serve := ServeConfig{Model: dir, KV: c.kv, PrefixCache: PrefixOff}
			ask := func(i int) *engine.Request {
				r := &engine.Request{ID: fmt.Sprint("models ", i), Prompt: text(i, c.length), Policy: c.policy, MaxTokens: output}
				if i == 0 { // the first request runs alone, with more threads than heads
					r.MaxTokens *= 3
				}
				return r
			}
			alone := startLocal(t, LocalConfig{Threads: 1, Serve: serve})
			want := make([]replied, sequences)
			for i := range want {
				want[i] = complete(t, alone, ask(i))
			}
			ck, err := checkpoint.Open(dir)
			if err != nil {
				t.Fatal(err)
			}
			defer ck.Close()
			p, err := kvpolicy.Parse(c.policy)
			if err != nil {
				t.Fatal(err)
			}
			kind, err := tensor.ParseDType(c.kv)
			if err != nil {
				t.Fatal(err)
			}
			g, all := shard.GeometryOf(&ck.Config, kind), c.length+3*output
			budget := kvcache.HandoverBytes(g, g.KVHeads, all, p) + 17*kvcache.ResidentBytes(g, all, all, p)/16
			d := new(disk)
			d.reads.Store(1 << 40)
			d.writes.Store(1 << 40)
			scratch := tier.NewScratch(func() (tier.Medium, error) { return &onDisk{d: d}, nil }, 1<<30, slog.New(slog.DiscardHandler))
			e := startLocal(t, LocalConfig{Threads: 6, Serve: serve, KVBudget: budget, scratch: scratch})
			var s batcher.Snapshot
			// On a busy machine the requests may run one after the other, and then none needs a file.
			for range 5 {
				got := make([]replied, sequences)
				var wg sync.WaitGroup
				for i := range got {
					wg.Go(func() { got[i] = complete(t, e, ask(i)) })
				}
				wg.Wait()
				if !slices.Equal(got, want) {
					t.Error("other answers than in memory")
				}
				if s, err = e.batcher.Snapshot(t.Context()); err != nil {
					t.Fatal(err)
				}
				if !c.spills || s.Totals.Spilled > 0 && d.reads.Load() < 1<<40 {
					break
				}
			}
			read := 1<<40 - d.reads.Load()
			if (s.Totals.Spilled > 0) != c.spills || (read > 0) != c.spills || s.Totals.Lost > 0 {
				t.Errorf("%d caches moved to files, %d pages were read, %d caches were lost", s.Totals.Spilled, read, s.Totals.Lost)
			}
		})
	}
}

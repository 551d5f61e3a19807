package cluster

import (
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/actors/socket/shard"
	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/kvpolicy"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/tier"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/server/engine"
)

// TestKVDiskRecall: under recall, tokens that SnapStream evicts move to files and are read again, with the
// same bits as in memory, on any number of sockets, and after the loss of files.
func TestKVDiskRecall(t *testing.T) {
	const length, sequences = 700, 10
	serve := ServeConfig{Model: goldenDir, KV: "bf16", PrefixCache: PrefixOff}
	ck, err := checkpoint.Open(goldenDir)
	if err != nil {
		t.Fatal(err)
	}
	defer ck.Close()
	g := shard.GeometryOf(&ck.Config, tensor.BF16)
	alone := startLocal(t, LocalConfig{Threads: 1, Serve: serve})
	answers := map[string][]replied{}
	for _, c := range []struct {
		policy  string
		sockets int
		reads   int64 // number of reads until the disk fails
	}{
		{"snapstream:sink=4,recent=20,topk=28,obs=8,recall=32", 1, 1 << 40},
		{"snapstream:sink=4,recent=20,topk=28,obs=8,recall=32", 3, 1 << 40},
		{"snapstream:sink=4,recent=20,topk=28,obs=8,recall=32", 4, 1 << 40},
		{"snapstream:sink=4,recent=20,topk=28,obs=8,recall=32", 1, 100},
		{"streaming:sink=4,recent=20,recall=64,page=32", 3, 1 << 40},
	} {
		t.Run(fmt.Sprintf("%s, %d sockets, %d reads", c.policy, c.sockets, c.reads), func(t *testing.T) {
			p, err := kvpolicy.Parse(c.policy)
			if err != nil {
				t.Fatal(err)
			}
			ask := func(i int) *engine.Request {
				return &engine.Request{ID: fmt.Sprint("recall ", i), Prompt: text(i, length), Policy: c.policy, MaxTokens: 150}
			}
			want := answers[c.policy]
			for i := len(want); i < sequences; i++ {
				want = append(want, complete(t, alone, ask(i)))
			}
			answers[c.policy] = want
			d := &disk{}
			d.reads.Store(c.reads)
			d.writes.Store(1 << 40)
			e := startLocal(t, LocalConfig{Threads: 1, Sockets: c.sockets, Serve: serve,
				KVBudget: 17 * kvcache.HandoverBytes(g, g.KVHeads, length+150, p) / 16,
				scratch:  tier.NewScratch(func() (tier.Medium, error) { return &onDisk{d: d}, nil }, 1<<30, slog.New(slog.DiscardHandler))})
			got := make([]replied, sequences)
			var wg sync.WaitGroup
			for i := range got {
				wg.Go(func() { got[i] = complete(t, e, ask(i)) })
			}
			over := make(chan struct{})
			go func() { wg.Wait(); close(over) }()
			for running := true; running; {
				select {
				case <-over:
					running = false
				case <-time.After(time.Millisecond):
				}
				s, err := e.batcher.Snapshot(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				for _, k := range s.Sockets {
					if k.Used > k.Budget {
						t.Errorf("%+v", k)
					}
				}
			}
			if !slices.Equal(got, want) {
				t.Error("other answers than in memory")
			}
			s, err := e.batcher.Snapshot(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if s.Totals.Spilled == 0 || (s.Totals.Lost > 0) != (c.reads == 100) {
				t.Errorf("%d caches moved to files, %d of them were lost", s.Totals.Spilled, s.Totals.Lost)
			}
		})
	}
}

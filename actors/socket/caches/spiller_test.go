package caches

import (
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/actors/layer/executor"
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/kvpolicy"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/memory"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/tier"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/testutil"
)

// heldFile is a file whose writes wait until release is closed.
type heldFile struct {
	mu      sync.Mutex
	data    map[int64]byte
	writes  chan struct{} // receives a value when a write begins
	release chan struct{}
}

func (f *heldFile) WriteAt(b []byte, at int64) (int, error) {
	select {
	case f.writes <- struct{}{}:
	default:
	}
	<-f.release
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, x := range b {
		f.data[at+int64(i)] = x
	}
	return len(b), nil
}

func (f *heldFile) ReadAt(b []byte, at int64) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := range b {
		b[i] = f.data[at+int64(i)]
	}
	return len(b), nil
}

func (*heldFile) Close() error { return nil }

// ownCache returns the cache of a prompt on its owner.
func ownCache(t *testing.T, arena *memory.Arena, tokens int) *kvcache.Store {
	t.Helper()
	policy, err := kvpolicy.Parse("quest:page=16,budget=64")
	if err != nil {
		t.Fatal(err)
	}
	g := kvcache.Geometry{Layers: 2, KVHeads: 1, Group: 1, Layout: tensor.KVLayout{Type: tensor.BF16, KDim: 16, VDim: 16}}
	part, own := kvcache.NewPrefill(arena, g, tensor.Span{Hi: 1}), kvcache.NewStore(arena, g, policy)
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	check(part.Reserve(tokens))
	rows := make([]float32, tokens*16)
	for layer := range g.Layers {
		part.WriteRun(layer, 0, 0, tokens, rows, 16, rows, 16)
	}
	part.Commit(tokens)
	check(own.Open(tokens, tokens, tensor.Span{Hi: 1}))
	check(own.Adopt(part, 0))
	check(own.Seal())
	part.Release()
	return own
}

// TestForgottenMoves: a cache whose move to a file was ordered in an earlier epoch stays in memory, where the batcher
// expects it. Without a new epoch it moves.
func TestForgottenMoves(t *testing.T) {
	for _, newEpoch := range []bool{true, false} {
		exec, arena := executor.New(), memory.NewArena(1<<28)
		file := &heldFile{data: map[int64]byte{}, writes: make(chan struct{}, 1), release: make(chan struct{})}
		scratch := tier.NewScratch(func() (tier.Medium, error) { return file, nil }, 1<<28, slog.New(slog.DiscardHandler))
		c := New(Options{Arena: arena, Executor: exec, Scratch: scratch})
		const tokens = 1024
		own := ownCache(t, arena, tokens)
		policy := own.Policy()
		blocks := kvcache.Spillable(own.Geometry(), tokens, tokens, policy)
		on := func(do func()) { // the executor
			done := make(chan struct{})
			exec.Submit(func() { defer close(done); do() })
			<-done
		}
		on(func() { c.Seqs[7] = &Sequence{ID: 7, Policy: policy, Cache: own} })
		c.spiller.order(7, blocks)
		<-file.writes
		on(func() {
			if found := c.BlocksInFiles(); newEpoch && len(found) > 0 {
				t.Errorf("blocks in files: %v, want none", found)
			}
		})
		if !newEpoch {
			c.spiller.mu.Lock()
			c.spiller.epochs-- // undo the new epoch of BlocksInFiles
			c.spiller.mu.Unlock()
		}
		close(file.release)
		if newEpoch {
			c.spiller.close() // waits for the move
			c.spiller = nil
		} else {
			testutil.Eventually(t, time.Minute, "the cache moves", func() (bool, string) {
				in := 0
				on(func() { in = own.Spilled() })
				return in == blocks, ""
			})
		}
		on(func() {
			if in := own.Spilled(); newEpoch && in != 0 {
				t.Errorf("%d blocks of a resumed cache moved to a file", in)
			}
		})
		c.StopTransfers()
		exec.Close()
		scratch.Close()
	}
}

package caches

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/actors/layer/executor"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/memory"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/tier"
	"github.com/shoal-llm/shoal/internal/proto"
)

const savedTokens = 1024

// savingSocket is a socket's caches with a folder for files. Sequence 7 is idle.
type savingSocket struct {
	t     *testing.T
	dir   string
	arena *memory.Arena
	exec  *executor.Executor
	e     *Epoch
}

func newSavingSocket(t *testing.T, limit int64) *savingSocket {
	t.Helper()
	x := &savingSocket{t: t, dir: filepath.Join(t.TempDir(), "kv"), arena: memory.NewArena(1 << 28), exec: executor.New()}
	scratch, err := tier.OpenScratch(x.dir, limit, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	c := New(Options{Arena: x.arena, Executor: x.exec, Scratch: scratch})
	own := ownCache(t, x.arena, savedTokens)
	x.e = &Epoch{Caches: c, Geometry: own.Geometry()}
	x.on(func() { c.Seqs[7] = &Sequence{ID: 7, Policy: own.Policy(), Cache: own} })
	t.Cleanup(func() {
		c.StopTransfers()
		x.exec.Close()
		scratch.Close()
	})
	return x
}

// on runs a job on the executor.
func (x *savingSocket) on(do func()) {
	done := make(chan struct{})
	x.exec.Submit(func() { defer close(done); do() })
	<-done
}

type savedEnd struct {
	bytes int64
	err   error
}

func (x *savingSocket) save() <-chan savedEnd { return x.saveFor(1<<30, 0) }

// saveFor writes the cache of a session that ends in a number of milliseconds.
func (x *savingSocket) saveFor(millis int64, digest byte) <-chan savedEnd {
	end := make(chan savedEnd, 1)
	x.e.SaveIdle(SaveOrder{Request: &proto.SavedRequest{Key: make([]byte, 32), Seq: 7, Tokens: savedTokens,
		Digest: append(make([]byte, 31), digest), Millis: millis}, Effects: func() error { return nil }, Until: time.Now().Add(time.Minute),
		Done: func(bytes int64, err error) { end <- savedEnd{bytes, err} }})
	return end
}

// take loads the file of the session as a sequence.
func (x *savingSocket) take(seq uint64) <-chan savedEnd {
	end := make(chan savedEnd, 1)
	x.e.Take(Order{Request: &proto.TakeRequest{Seq: seq, Saved: make([]byte, 32), Digest: make([]byte, 32), Prompt: savedTokens,
		Tokens: savedTokens}, Policy: x.e.Seqs[7].Policy,
		Until: time.Now().Add(10 * time.Minute), Done: func(bytes int64, err error) { end <- savedEnd{bytes, err} }})
	return end
}

// TestSaveAcrossEpochs: an epoch that begins while a cache is written opens its sequence again, with the same
// cache. The write continues. If the sequence gets another cache, the write ends.
func TestSaveAcrossEpochs(t *testing.T) {
	for _, same := range []bool{true, false} {
		x := newSavingSocket(t, 1<<28)
		other := ownCache(t, x.arena, savedTokens)
		var over atomic.Bool
		var begin func()
		begin = func() { // runs between any two jobs of the write
			files, err := filepath.Glob(filepath.Join(x.dir, "sessions", "*", "writing-*"))
			if err != nil || over.Load() {
				return
			}
			q := *x.e.Seqs[7]
			if !same && len(files) > 0 {
				q.Cache = other
			}
			x.e.Seqs[7] = &q
			x.exec.Submit(begin)
		}
		x.exec.Submit(begin)
		got := <-x.save()
		if over.Store(true); same && got.err != nil || !same && !errors.Is(got.err, errGone) {
			t.Errorf("same cache %v: %v", same, got.err)
		}
	}
}

// TestSaveTwice: an order for a cache that is in a file succeeds without a write, also if the order came later. A cache of
// other tokens, or of a longer session, is written.
func TestSaveTwice(t *testing.T) {
	x := newSavingSocket(t, 1<<28)
	first := <-x.saveFor(1<<30, 0)
	for _, order := range []struct {
		millis int64
		digest byte
		writes uint64
	}{{1<<30 + 1000, 0, 1}, {1<<30 - 60_000, 0, 1}, {1<<30 + 60_000, 0, 2}, {1<<30 + 60_000, 1, 3}} {
		got := <-x.saveFor(order.millis, order.digest)
		if n := x.e.saver.store.Stats().Written; got != first || got.err != nil || n != order.writes {
			t.Errorf("%+v: %+v, want %+v; %d files were written", order, got, first, n)
		}
	}
}

// TestRemovalBeforeSave: the disk is slow to remove the cache of a session. A newer session of the name writes its cache
// meanwhile, and keeps it.
func TestRemovalBeforeSave(t *testing.T) {
	x := newSavingSocket(t, 1<<28)
	if got := <-x.save(); got.err != nil {
		t.Fatal(got.err)
	}
	slow, removed := make(chan struct{}), make(chan error, 1)
	x.e.saver.other <- func() { <-slow }
	x.e.DropSaved(tier.Key{}, func(err error) { removed <- err })
	if f := x.e.FindSaved(tier.Key{}); f.Tokens != 0 {
		t.Errorf("a cache that is being removed: %v", f)
	}
	if got := <-x.saveFor(1<<30, 1); got.err != nil {
		t.Fatal(got.err)
	}
	close(slow)
	if err := <-removed; err != nil {
		t.Error(err)
	}
	if f := x.e.FindSaved(tier.Key{}); f.Tokens != savedTokens || f.Digest[31] != 1 {
		t.Errorf("the cache of the newer session: %v", f)
	}
	if files, err := filepath.Glob(filepath.Join(x.dir, "sessions", "*", "*-*")); err != nil || len(files) != 1 {
		t.Errorf("%v, %v", files, err)
	}
}

// TestSaveWithoutRoom: the answer to a write for which there is no room has the size of the file.
func TestSaveWithoutRoom(t *testing.T) {
	x := newSavingSocket(t, 1<<28)
	whole := <-x.save()
	if whole.err != nil {
		t.Fatal(whole.err)
	}
	small := newSavingSocket(t, 1000)
	if got := <-small.save(); !errors.Is(got.err, tier.ErrRoom) || got.bytes <= whole.bytes {
		t.Errorf("%+v; the cache has %d bytes", got, whole.bytes)
	}
}

// TestLoadFromHungDisk: a load from a hanging disk ends and frees its memory. Steps continue meanwhile. The
// next load is refused at once.
func TestLoadFromHungDisk(t *testing.T) {
	x := newSavingSocket(t, 1<<28)
	if got := <-x.save(); got.err != nil {
		t.Fatal(got.err)
	}
	files, err := filepath.Glob(filepath.Join(x.dir, "sessions", "*", "*-*"))
	if err != nil || len(files) != 1 {
		t.Fatalf("%v, %v", files, err)
	}
	path := files[0]
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(path, 0o600); err != nil { // an open blocks until a writer opens it
		t.Fatal(err)
	}
	used := x.arena.Used()
	began, end := time.Now(), x.take(8)
	slowest := time.Duration(0)
	for open := true; open; {
		select {
		case got := <-end:
			if open = false; !errors.Is(got.err, tier.ErrScratch) {
				t.Errorf("a load from a disk that hangs: %+v", got)
			}
		case <-time.After(10 * time.Millisecond):
			at := time.Now()
			x.on(func() {})
			slowest = max(slowest, time.Since(at))
		}
	}
	if took := time.Since(began); took >= 2*tier.SavedTimeout || slowest > tier.SavedTimeout*4/5 {
		t.Errorf("a load from a disk that hangs ends after %v; a step waited %v", took, slowest)
	}
	if now := x.arena.Used(); now != used {
		t.Errorf("%d bytes are in use after the load, before it %d", now, used)
	}
	began = time.Now()
	if got := <-x.take(9); got.err == nil || time.Since(began) >= tier.SavedTimeout {
		t.Errorf("the next load: %+v after %v", got, time.Since(began))
	}
	f, err := os.OpenFile(path, os.O_WRONLY, 0) // ends the request that hangs
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
}

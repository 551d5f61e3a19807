package caches

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shoal-llm/shoal/actors/layer/executor"
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/memory"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// background runs goroutines that move cache rows while steps run. Only the executor touches the
// caches, so a goroutine submits a job to the executor for each access.
type background struct {
	exec       *executor.Executor
	caches     *Caches
	quit       chan struct{}
	goroutines sync.WaitGroup
}

func newBackground(exec *executor.Executor, c *Caches) *background {
	return &background{exec: exec, caches: c, quit: make(chan struct{})}
}

// stopTimeout is the maximum time that the end of a socket waits for a disk or a connection.
const stopTimeout = 2 * time.Second

// end stops the goroutines and waits for them, for at most stopTimeout. The executor must still be
// running.
func (b *background) end() {
	close(b.quit)
	done := make(chan struct{})
	go func() { b.goroutines.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(stopTimeout):
	}
}

// incoming is a block whose rows are being read from disk or fetched from an owner. Evicting the block
// removes its entry.
type incoming struct {
	at    int
	named offer
	heads tensor.Span

	snapshot offer  // of the snapshot that comes with the block; zero: none
	states   []byte // its rows
	g        kvcache.Geometry
}

var errEvicted = errors.New("socket: the block was evicted meanwhile")

// runAll runs queued functions until the end.
func (b *background) runAll(queue <-chan func()) {
	for {
		select {
		case <-b.quit:
			return
		case do := <-queue:
			do()
		}
	}
}

// onExecutor runs a job on the executor and waits for it. If the background ends before the job begins, the job does not
// run. So do can use variables of its caller.
func (b *background) onExecutor(do func() error) error {
	var taken atomic.Bool
	done := make(chan error, 1)
	b.exec.Submit(func() {
		if taken.CompareAndSwap(false, true) {
			done <- do()
		}
	})
	select {
	case err := <-done:
		return err
	case <-b.quit:
		if taken.CompareAndSwap(false, true) {
			return errEvicted
		}
		return <-done
	}
}

// arrive stores the rows of a block in memory. The memory has been reserved, but the step that frees
// it may not have run yet, so arrive retries.
func (b *background) arrive(x *incoming, rows []byte, until time.Time) bool {
	for {
		err := b.onExecutor(func() error { return b.caches.arrive(x, rows) })
		switch {
		case err == nil:
			return true
		case !errors.Is(err, memory.ErrBudget) || time.Now().After(until):
			return false
		}
		select {
		case <-b.quit:
			return false
		case <-time.After(memoryRetry):
		}
	}
}

// memoryRetry is the interval between two attempts to get memory.
const memoryRetry = 2 * time.Millisecond

// arrive stores a block's rows, unless the block was evicted meanwhile.
func (c *Caches) arrive(x *incoming, rows []byte) error {
	id := x.named.id
	switch {
	case c.incoming[id] != x:
		return errEvicted
	case c.blocks[id] == nil: // otherwise a prompt has written the block meanwhile
		b, err := kvcache.NewSegment(c.Arena, x.g, x.heads, x.at, rows)
		if err != nil {
			return err
		}
		c.blocks[id] = b
	}
	if len(x.states) > 0 && !c.blocks[id].HasStates() {
		if err := c.blocks[id].WriteStates(x.states); err != nil {
			return err
		}
		c.snapshots[id] = x.snapshot
	}
	delete(c.incoming, id)
	c.named[id] = x.named
	return nil
}

package socket

import (
	"errors"
	"sync"
	"time"

	"github.com/shoal-llm/shoal/actors/layer"
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// background runs goroutines that move cache rows while steps run. Only the executor touches the
// caches, so a goroutine asks it for each access.
type background struct {
	exec       *layer.Executor
	caches     *caches
	quit       chan struct{}
	goroutines sync.WaitGroup
}

func newBackground(exec *layer.Executor, c *caches) *background {
	return &background{exec: exec, caches: c, quit: make(chan struct{})}
}

// hangs is how long the end of a socket waits for a disk or a wire.
const hangs = 2 * time.Second

// end stops the goroutines and waits for them, unless their disk or wire hangs. The executor
// still runs.
func (b *background) end() {
	close(b.quit)
	done := make(chan struct{})
	go func() { b.goroutines.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(hangs):
	}
}

// coming is a block whose rows are about to come, from disk or from an owner; evicting it forgets it.
type coming struct {
	at    int
	named offer
	heads tensor.Span
	g     kvcache.Geometry
}

var errEvicted = errors.New("socket: the block was evicted meanwhile")

// doAll does what is queued, until the end.
func (b *background) doAll(queue <-chan func()) {
	for {
		select {
		case <-b.quit:
			return
		case do := <-queue:
			do()
		}
	}
}

// onExecutor has the executor do a job, and waits for it.
func (b *background) onExecutor(do func() error) error {
	done := make(chan error, 1)
	b.exec.Submit(func() { done <- do() })
	select {
	case err := <-done:
		return err
	case <-b.quit:
		return errEvicted
	}
}

// arrive puts the rows of a block into memory. It was booked, but what frees it may not have
// been done yet.
func (b *background) arrive(x *coming, rows []byte, until time.Time) bool {
	for {
		err := b.onExecutor(func() error { return b.caches.arrive(x, rows) })
		switch {
		case err == nil:
			return true
		case !errors.Is(err, kvcache.ErrBudget) || time.Now().After(until):
			return false
		}
		select {
		case <-b.quit:
			return false
		case <-time.After(freed):
		}
	}
}

// freed is how soon memory that was not there is asked for again.
const freed = 2 * time.Millisecond

// arrive takes up a block's rows, unless it was evicted meanwhile.
func (c *caches) arrive(x *coming, rows []byte) error {
	id := x.named.id
	switch {
	case c.coming[id] != x:
		return errEvicted
	case c.blocks[id] == nil: // else a prompt has written it meanwhile
		b, err := kvcache.NewSegment(c.arena, x.g, x.heads, x.at, rows)
		if err != nil {
			return err
		}
		c.blocks[id] = b
	}
	delete(c.coming, id)
	c.named[id] = x.named
	return nil
}

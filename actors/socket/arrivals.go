package socket

import (
	"errors"
	"sync"
	"time"

	"github.com/shoal-llm/shoal/actors/layer"
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// arrivals is how rows of blocks of the prefix cache come into memory from elsewhere, out of a
// goroutine beside the executor, whose caches they are.
type arrivals struct {
	exec   *layer.Executor
	caches *caches
	quit   chan struct{}
}

// hangs is how long the end of a socket waits for a disk or a wire.
const hangs = 2 * time.Second

// wait waits for goroutines, unless what they do hangs.
func wait(wg *sync.WaitGroup) {
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
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
func (f arrivals) doAll(queue <-chan func()) {
	for {
		select {
		case <-f.quit:
			return
		case do := <-queue:
			do()
		}
	}
}

// onExecutor has the executor do a job, and waits for it.
func (f arrivals) onExecutor(do func() error) error {
	done := make(chan error, 1)
	f.exec.Submit(func() { done <- do() })
	select {
	case err := <-done:
		return err
	case <-f.quit:
		return errEvicted
	}
}

// arrive puts the rows of a block into memory. It was booked, but what frees it may not have
// been done yet.
func (f arrivals) arrive(x *coming, rows []byte, until time.Time) bool {
	for {
		err := f.onExecutor(func() error { return f.caches.arrive(x, rows) })
		switch {
		case err == nil:
			return true
		case !errors.Is(err, kvcache.ErrBudget) || time.Now().After(until):
			return false
		}
		select {
		case <-f.quit:
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

package kvcache

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"
)

var (
	// ErrBudget means that an allocation would have taken the arena past its
	// budget. Nothing was allocated.
	ErrBudget = errors.New("kvcache: budget exceeded")
	// ErrMemory means that the operating system gave no memory although the
	// budget had room. Nothing was allocated.
	ErrMemory = errors.New("kvcache: out of memory")
)

// Arena is the cache memory of one socket: blocks cut from slabs that are
// mapped outside the Go heap, under one byte ledger.
//
// The ledger counts the bytes of the blocks that are out, plus what Charge
// adds for tables that live beside them; it never passes the budget. A free
// block is always reused before a new slab is mapped, and a slab whose blocks
// are all free is unmapped at once, so the resident memory of the arena stays
// below the largest ledger figure since (on Linux plus less than a huge page, 2 MiB,
// per block size), and falls when sequences end. Blocks of different sizes come from
// different slabs. A block may have several holders (Retain): it is counted once, and comes
// back when the last releases it.
//
// One owner allocates and frees; every method may be called from any goroutine.
type Arena struct {
	budget int64
	used   atomic.Int64
	peak   atomic.Int64
	mapped atomic.Int64
	given  atomic.Int64 // bytes unmapped since the start

	mu       sync.Mutex
	classes  []*class
	shared   int64 // bytes of blocks with several holders
	segments map[*Segment]bool
	closed   bool
}

// Stats are figures of one moment, each in bytes unless it says otherwise.
type Stats struct {
	Budget    int64 // the ledger never passes it
	Used      int64 // blocks that are out, and charged tables: each once
	Shared    int64 // of Used, blocks that several hold
	Evictable int64 // of Used, blocks that only segments hold, and sums: what releasing these would free
	Peak      int64 // the largest Used so far
	Mapped    int64 // address space of all slabs; pages not yet touched are not resident
	Returned  int64 // address space given back to the system since the start
	Blocks    int   // blocks that are out
	Slabs     int   // slabs mapped
}

// NewArena makes an arena that hands out at most budget bytes. It maps no
// memory before the first Alloc. A budget below zero counts as zero.
func NewArena(budget int64) *Arena {
	return &Arena{budget: max(budget, 0)}
}

// Budget is the number of bytes that Used never passes.
func (a *Arena) Budget() int64 { return a.budget }

// Used is the number of bytes that are out now.
func (a *Arena) Used() int64 { return a.used.Load() }

// Stats reads all figures. Used and Peak may belong to slightly different moments.
func (a *Arena) Stats() Stats {
	s := Stats{Budget: a.budget, Used: a.used.Load(), Peak: a.peak.Load(), Mapped: a.mapped.Load(), Returned: a.given.Load()}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, c := range a.classes {
		s.Slabs += len(c.slabs)
		s.Blocks += c.out
	}
	s.Shared = a.shared
	for b, n := range a.cached() {
		if c := a.class(b.size); c.holders(unsafe.Slice(b.at, b.size)) == n {
			s.Evictable += int64(b.size)
		}
	}
	for g := range a.segments {
		s.Evictable += 4 * int64(len(g.sums))
	}
	return s
}

// Alloc hands out n zeroed blocks of size bytes each, all or none. The blocks
// start on 64-byte boundaries. It returns ErrBudget or ErrMemory, wrapped with
// the figures.
func (a *Arena) Alloc(size, n int) ([][]byte, error) {
	if size <= 0 || size%blockAlign != 0 || n < 0 {
		return nil, fmt.Errorf("kvcache: cannot allocate %d blocks of %d bytes: the size must be a positive multiple of %d", n, size, blockAlign)
	}
	if n == 0 {
		return nil, nil
	}
	if int64(n) > a.budget/int64(size) {
		return nil, fmt.Errorf("%w: %d blocks of %d bytes asked, the whole budget is %d", ErrBudget, n, size, a.budget)
	}
	bytes := int64(size) * int64(n)
	if err := a.Charge(bytes); err != nil {
		return nil, err
	}
	blocks, err := a.take(size, n)
	if err != nil {
		a.used.Add(-bytes)
		return nil, err
	}
	return blocks, nil
}

func (a *Arena) take(size, n int) ([][]byte, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return nil, errors.New("kvcache: arena is closed")
	}
	c := a.class(size)
	blocks := make([][]byte, 0, n)
	for len(blocks) < n {
		b, grown, err := c.take()
		if err != nil {
			a.put(c, blocks)
			return nil, fmt.Errorf("%w: mapping a slab of %d bytes: %w", ErrMemory, c.slabBytes(), err)
		}
		a.mapped.Add(grown)
		blocks = append(blocks, b)
	}
	return blocks, nil
}

// Retain makes the caller a holder of blocks that others hold, and returns a list of its own.
func (a *Arena) Retain(blocks [][]byte) [][]byte {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, b := range blocks {
		if a.class(len(b)).hold(b) == 1 {
			a.shared += int64(len(b))
		}
	}
	return slices.Clone(blocks)
}

// IsShared says whether a block has several holders.
func (a *Arena) IsShared(b []byte) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.class(len(b)).holders(b) > 1
}

// Release gives up blocks that Alloc handed out or Retain took. When nobody else holds one
// its contents are gone and its memory may be unmapped: touching it afterwards is a fault.
// A block that the arena does not know, or that is free already, is a panic.
func (a *Arena) Release(blocks [][]byte) {
	if len(blocks) == 0 {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for i, b := range blocks {
		switch a.put(a.class(len(b)), blocks[i:i+1]) {
		case 0:
			a.used.Add(-int64(len(b)))
		case 1:
			a.shared -= int64(len(b))
		}
	}
}

// put gives up blocks, and says how many holders the last of them still has.
func (a *Arena) put(c *class, blocks [][]byte) (left int32) {
	for _, b := range blocks {
		var shrunk int64
		left, shrunk = c.put(b)
		a.mapped.Add(-shrunk)
		a.given.Add(shrunk)
	}
	return left
}

// Charge books bytes that lie elsewhere but belong to the cache (slot tables),
// so that the budget covers them. Uncharge gives them back.
func (a *Arena) Charge(bytes int64) error {
	for {
		used := a.used.Load()
		if bytes > a.budget-used {
			return fmt.Errorf("%w: %d bytes asked, %d of %d in use", ErrBudget, bytes, used, a.budget)
		}
		if a.used.CompareAndSwap(used, used+bytes) {
			for p := a.peak.Load(); used+bytes > p && !a.peak.CompareAndSwap(p, used+bytes); p = a.peak.Load() {
			}
			return nil
		}
	}
}

// Uncharge gives back bytes that Charge booked.
func (a *Arena) Uncharge(bytes int64) { a.used.Add(-bytes) }

// Close unmaps everything. Blocks that are still out become invalid. A second
// Close does nothing.
func (a *Arena) Close() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closed = true
	var errs []error
	for _, c := range a.classes {
		for _, s := range c.slabs {
			errs = append(errs, unmap(s.mem))
			a.mapped.Add(-int64(len(s.mem)))
		}
	}
	a.classes = nil
	return errors.Join(errs...)
}

func (a *Arena) class(size int) *class {
	for _, c := range a.classes {
		if c.size == size {
			return c
		}
	}
	c := &class{size: size}
	a.classes = append(a.classes, c)
	return c
}

package memory

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

var (
	// ErrBudget means that an allocation would have exceeded the arena's budget. Nothing was
	// allocated.
	ErrBudget = errors.New("kvcache: budget exceeded")
	// ErrMemory means that the operating system refused memory within the budget. Nothing was
	// allocated.
	ErrMemory = errors.New("kvcache: out of memory")
)

// Arena is the cache memory of one socket: blocks cut from slabs that are mapped outside the Go
// heap, under one byte ledger.
//
// The ledger counts the bytes of the blocks in use and those that Charge adds for slot tables. It never
// exceeds the budget. A free block is reused before a new slab is mapped, and a slab whose blocks are
// all free is unmapped at once. So the resident memory of the arena stays below the largest ledger
// value since (on Linux plus less than a huge page, 2 MiB, per block size), and falls when sequences
// end. Blocks of different sizes come from different slabs. A block may have several holders (Retain):
// it counts once, and is freed when the last one releases it.
//
// One owner allocates and frees. All methods may be called concurrently.
type Arena struct {
	remote Remote // nil: blocks are in host memory
	budget atomic.Int64
	used   atomic.Int64
	peak   atomic.Int64
	mapped atomic.Int64
	given  atomic.Int64 // bytes unmapped since the start

	mu      sync.Mutex
	classes []*class
	shared  int64 // bytes of blocks with several holders
	cached  map[Holder]bool
	closed  bool
}

// Holder is a holder of blocks for later use, such as an entry of a prefix cache. It is a pointer.
type Holder interface {
	// Held returns the blocks that others may hold too, and the number of bytes that only it holds.
	// Stats calls it. It must not call the arena.
	Held() (blocks [][]byte, own int64)
}

// Stats is a snapshot. Values are bytes unless noted.
type Stats struct {
	Budget    int64 // limit of Used
	Used      int64 // blocks in use and charged tables, each counted once
	Shared    int64 // part of Used: blocks with several holders
	Evictable int64 // part of Used: bytes that become free when all registered holders release them
	Peak      int64 // the largest Used so far
	Mapped    int64 // address space of all slabs; untouched pages are not resident
	Returned  int64 // address space returned to the system since the start
	Blocks    int   // blocks in use
	Slabs     int   // mapped slabs
}

// NewArena returns an arena with a budget in bytes. It maps no memory before the first Alloc. A
// negative budget counts as zero.
func NewArena(budget int64) *Arena {
	a := new(Arena)
	a.SetBudget(budget)
	return a
}

// NewArenaIn returns an arena whose blocks are in the memory of a device.
func NewArenaIn(m Remote, budget int64) *Arena {
	a := &Arena{remote: m}
	a.SetBudget(budget)
	return a
}

// ReadBlock and WriteBlock copy a block to and from the host's memory.
func (a *Arena) ReadBlock(to, block []byte) {
	if a.remote != nil {
		a.remote.Read(to, block)
		return
	}
	copy(to, block)
}

func (a *Arena) WriteBlock(block, from []byte) {
	if a.remote != nil {
		a.remote.Write(block, from)
		return
	}
	copy(block, from)
}

// CopyBlock copies a block to another one of the same size.
func (a *Arena) CopyBlock(to, from []byte) {
	if a.remote != nil {
		a.remote.Copy(to, from)
		return
	}
	copy(to, from)
}

// OnDevice reports whether blocks are in the memory of a device.
func (a *Arena) OnDevice() bool { return a.remote != nil }

// Restore is Remote.Restore for blocks of a device.
func (a *Arena) Restore(l tensor.KVLayout, rows []Saved) {
	if len(rows) > 0 {
		a.remote.Restore(l, rows)
	}
}

// OnHost returns blocks in the host's memory: copies of those of a device.
func (a *Arena) OnHost(blocks [][]byte) [][]byte {
	if a.remote == nil {
		return blocks
	}
	to := make([][]byte, len(blocks))
	for i, b := range blocks {
		to[i] = make([]byte, len(b))
		if len(b) > 0 { // not outside of a window
			a.remote.Read(to[i], b)
		}
	}
	return to
}

// Window gives the host access to blocks.
func (a *Arena) Window() Window { return Window{remote: a.remote} }

// Budget returns the limit of Used in bytes.
func (a *Arena) Budget() int64 { return a.budget.Load() }

// SetBudget changes the budget. Blocks in use stay, even if they exceed it.
func (a *Arena) SetBudget(bytes int64) { a.budget.Store(max(bytes, 0)) }

// Used returns the number of bytes in use.
func (a *Arena) Used() int64 { return a.used.Load() }

// Peak returns the largest Used so far.
func (a *Arena) Peak() int64 { return a.peak.Load() }

// Stats returns all figures. Used and Peak may be from slightly different moments.
func (a *Arena) Stats() Stats {
	s := Stats{Budget: a.Budget(), Used: a.used.Load(), Peak: a.Peak(), Mapped: a.mapped.Load(), Returned: a.given.Load()}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, c := range a.classes {
		s.Slabs += c.slabCount()
		s.Blocks += c.out
	}
	s.Shared = a.shared
	s.Evictable = a.evictable()
	return s
}

// evictable returns the memory that is free when all registered holders have released it.
func (a *Arena) evictable() (bytes int64) {
	type block struct {
		at   *byte
		size int
	}
	holders := map[block]int32{}
	for h := range a.cached {
		blocks, own := h.Held()
		bytes += own
		for _, b := range blocks {
			holders[block{&b[0], len(b)}]++
		}
	}
	for b, n := range holders {
		if a.class(b.size).holders(unsafe.Slice(b.at, b.size)) == n {
			bytes += int64(b.size)
		}
	}
	return bytes
}

// Register makes the blocks of a holder count as evictable, until Unregister.
func (a *Arena) Register(h Holder) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.cached == nil {
		a.cached = map[Holder]bool{}
	}
	a.cached[h] = true
}

func (a *Arena) Unregister(h Holder) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.cached, h)
}

// Alloc returns n zeroed blocks of size bytes each, all or none. Blocks are 64-byte aligned. Errors
// wrap ErrBudget or ErrMemory and contain the figures.
func (a *Arena) Alloc(size, n int) ([][]byte, error) {
	if size <= 0 || size%BlockAlign != 0 || n < 0 {
		return nil, fmt.Errorf("kvcache: cannot allocate %d blocks of %d bytes: the size must be a positive multiple of %d",
			n, size, BlockAlign)
	}
	if n == 0 {
		return nil, nil
	}
	if int64(n) > a.Budget()/int64(size) {
		return nil, fmt.Errorf("%w: %d blocks of %d bytes requested, the whole budget is %d", ErrBudget, n, size, a.Budget())
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

// AllocEach is Alloc for blocks of several sizes, which sizes yields in order, the same in each call.
func (a *Arena) AllocEach(sizes func(yield func(size int))) ([][]byte, error) {
	groups := blockGroups(sizes)
	for i := range groups {
		g := &groups[i]
		var err error
		if g.Blocks, err = a.Alloc(g.Size, g.N); err != nil {
			for _, g := range groups[:i] {
				a.Release(g.Blocks)
			}
			return nil, err
		}
	}
	return deal(groups, sizes), nil
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

// Retain makes the caller a further holder of blocks, and returns its own list of them.
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

// IsShared reports whether a block has several holders.
func (a *Arena) IsShared(b []byte) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.class(len(b)).holders(b) > 1
}

// Release releases blocks from Alloc or Retain. When the last holder releases a block, its contents
// are lost and its memory may be unmapped, so a later access faults. Release panics for a block
// that is unknown or already free.
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

// put releases blocks, and returns how many holders the last of them still has.
func (a *Arena) put(c *class, blocks [][]byte) (left int32) {
	for _, b := range blocks {
		var shrunk int64
		left, shrunk = c.put(b)
		a.mapped.Add(-shrunk)
		a.given.Add(shrunk)
	}
	return left
}

// Charge adds memory outside the arena that belongs to the cache (slot tables) to the ledger, so
// that the budget covers it. Uncharge removes it.
func (a *Arena) Charge(bytes int64) error {
	for {
		used := a.used.Load()
		if bytes > a.Budget()-used {
			return fmt.Errorf("%w: %d bytes requested, %d of %d in use", ErrBudget, bytes, used, a.Budget())
		}
		if a.used.CompareAndSwap(used, used+bytes) {
			for p := a.peak.Load(); used+bytes > p && !a.peak.CompareAndSwap(p, used+bytes); p = a.peak.Load() {
			}
			return nil
		}
	}
}

// Uncharge removes bytes that Charge added.
func (a *Arena) Uncharge(bytes int64) { a.used.Add(-bytes) }

// Close unmaps all memory. Blocks still in use become invalid. It may be called twice.
func (a *Arena) Close() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closed = true
	var errs []error
	for _, c := range a.classes {
		bytes, err := c.close()
		errs = append(errs, err)
		a.mapped.Add(-bytes)
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
	c := newClass(a.remote, size)
	a.classes = append(a.classes, c)
	return c
}

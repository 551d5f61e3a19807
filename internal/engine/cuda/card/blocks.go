package card

import (
	"fmt"
	"slices"
	"sync"

	"github.com/shoal-llm/shoal/internal/engine/cuda"
	"github.com/shoal-llm/shoal/internal/engine/cuda/launch"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/sys/hugemem"
)

// Blocks is the memory of caches on a card: one allocation, and address space of the same size for
// handles. The host faults when it touches a handle. It has the methods of memory.Remote, but for Restore's rows.
type Blocks struct {
	card *Card
	base cuda.Pointer

	mu     sync.Mutex
	space  []byte // handles
	free   []span // ascending, none adjacent
	zeroes []span // to be cleared before the next work, in order
}

// span is the bytes [lo, hi) of the memory.
type span struct{ lo, hi int64 }

// NewBlocks allocates n bytes for caches.
func (c *Card) NewBlocks(n int64) (*Blocks, error) {
	b := &Blocks{card: c}
	if n == 0 {
		return b, nil
	}
	var err error
	if b.base, err = c.Alloc(n); err != nil {
		return nil, fmt.Errorf("caches: %w", err)
	}
	if b.space, err = hugemem.Reserve(int(n)); err != nil {
		c.Free(b.base, n)
		return nil, fmt.Errorf("reserving address space for %d bytes of caches: %w", n, err)
	}
	b.free = []span{{0, n}}
	return b, nil
}

// Close frees the memory.
func (b *Blocks) Close() {
	if len(b.space) > 0 {
		b.card.Free(b.base, int64(len(b.space)))
		b.card.Must(hugemem.Unmap(b.space))
		b.space = nil
	}
}

// Base returns the address of the memory on the card.
func (b *Blocks) Base() cuda.Pointer { return b.base }

// Bytes returns the size of the memory.
func (b *Blocks) Bytes() int64 { return int64(len(b.space)) }

// Offset returns the distance of a block from Base.
func (b *Blocks) Offset(block []byte) int64 { return hugemem.Offset(b.space, block) }

func (b *Blocks) at(block []byte) cuda.Pointer { return b.base.Add(b.Offset(block)) }

// Map implements memory.Remote. It allocates at the lowest free offset.
func (b *Blocks) Map(n, block int) ([]byte, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i, s := range b.free {
		lo := (s.lo + int64(block) - 1) / int64(block) * int64(block)
		if hi := lo + int64(n); hi <= s.hi {
			rest := slices.DeleteFunc([]span{{s.lo, lo}, {hi, s.hi}}, func(s span) bool { return s.lo == s.hi })
			b.free = slices.Replace(b.free, i, i+1, rest...)
			b.zero(span{lo, hi})
			return b.space[lo:hi:hi], nil
		}
	}
	return nil, fmt.Errorf("%w: no room for %d bytes of caches in %d", ErrMemory, n, len(b.space))
}

// Unmap implements memory.Remote.
func (b *Blocks) Unmap(handle []byte) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	lo := b.Offset(handle)
	s := span{lo, lo + int64(len(handle))}
	i, _ := slices.BinarySearchFunc(b.free, s, func(x, y span) int { return int(x.lo - y.lo) })
	if i < len(b.free) && b.free[i].lo == s.hi {
		s.hi = b.free[i].hi
		b.free = slices.Delete(b.free, i, i+1)
	}
	if i > 0 && b.free[i-1].hi == s.lo {
		b.free[i-1].hi = s.hi
		return nil
	}
	b.free = slices.Insert(b.free, i, s)
	return nil
}

// Zero implements memory.Remote. Blocks that are allocated together are adjacent, so one driver call
// clears many of them.
func (b *Blocks) Zero(block []byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	lo := b.Offset(block)
	b.zero(span{lo, lo + int64(len(block))})
}

func (b *Blocks) zero(s span) {
	if n := len(b.zeroes); n > 0 && b.zeroes[n-1].hi == s.lo {
		b.zeroes[n-1].hi = s.hi
		return
	}
	b.zeroes = append(b.zeroes, s)
}

// Settle clears the blocks that Zero and Map have recorded. Call it before work that reads or writes
// blocks.
func (b *Blocks) Settle() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, s := range b.zeroes {
		b.card.Must(b.card.Stream.Fill(b.base.Add(s.lo), 0, (s.hi-s.lo)/4))
	}
	b.zeroes = b.zeroes[:0]
}

// Read implements memory.Remote.
func (b *Blocks) Read(to, block []byte) {
	b.Settle()
	b.card.Download(to, b.at(block))
}

// Write implements memory.Remote.
func (b *Blocks) Write(block, from []byte) {
	b.Settle()
	b.card.Upload(b.at(block), from)
}

// Restore copies saved rows of a layout back to their slots, by one kernel.
func (b *Blocks) Restore(l tensor.KVLayout, rows []launch.SavedRow) {
	b.Settle()
	c := b.card
	c.mu.Lock()
	defer c.mu.Unlock()
	for part := range slices.Chunk(rows, staging/launch.SavedRowBytes) {
		for i, r := range part {
			r.Put(c.buffer.Bytes()[launch.SavedRowBytes*i:])
		}
		c.Do(launch.RestoreRows{Type: l.Type, Arena: b.base, HeadDim: l.KDim, Rows: c.buffer.Device(), N: len(part)})
		c.Wait() // the kernel reads the buffer
	}
}

// Copy implements memory.Remote.
func (b *Blocks) Copy(to, from []byte) {
	b.Settle()
	b.card.Must(b.card.Stream.Copy(b.at(to), b.at(from), int64(len(from))))
}

package memory

import (
	"cmp"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"unsafe"

	"github.com/shoal-llm/shoal/internal/sys/hugemem"
)

const (
	// SlabTarget is the size of a slab, the unit in which memory returns to the system.
	SlabTarget = 4 << 20
	// BlockAlign divides the size and the address of every block.
	BlockAlign = 64

	pageBytes = 4096
)

// slab is one mapping, cut into blocks of one size. The lowest free block is allocated first, so
// blocks allocated together are adjacent, as attention reads them.
type slab struct {
	mem   []byte
	base  uintptr
	used  []uint64 // a bit per block
	low   int      // no word of used below it has a clear bit
	next  int      // first block that was never used: still zero
	count int      // blocks in use
	more  []int32  // further holders of a block; nil: no block ever had any
}

// class holds the slabs of one block size. It allocates from the lowest slab with room, so that the
// others can drain and be unmapped.
type class struct {
	remote  Remote  // nil: blocks are in host memory
	size    int     // bytes of a block
	out     int     // blocks in use
	slabs   []*slab // by address
	partial []*slab // by address, those with a free block
}

// newClass returns a class without slabs. remote is nil for host memory.
func newClass(remote Remote, size int) *class { return &class{remote: remote, size: size} }

// slabCount returns the number of mapped slabs.
func (c *class) slabCount() int { return len(c.slabs) }

// close unmaps all slabs and returns their bytes.
func (c *class) close() (bytes int64, err error) {
	var errs []error
	for _, s := range c.slabs {
		errs = append(errs, c.unmap(s.mem))
		bytes += int64(len(s.mem))
	}
	return bytes, errors.Join(errs...)
}

func (c *class) blocksPerSlab() int { return max(1, SlabTarget/c.size) }

// slabBytes returns the size of a slab.
func (c *class) slabBytes() int {
	return (c.blocksPerSlab()*c.size + pageBytes - 1) / pageBytes * pageBytes
}

// MappedBytes returns the maximum memory that an arena maps for a budget of blocks of one size.
func MappedBytes(budget int64, block int) int64 {
	c := &class{size: block}
	slabs := budget/int64(c.blocksPerSlab()*block) + 1
	return slabs * int64((c.slabBytes()+block-1)/block*block)
}

func (c *class) mapSlab() ([]byte, error) {
	if c.remote != nil {
		return c.remote.Map(c.slabBytes(), c.size)
	}
	return hugemem.Map(c.slabBytes())
}

func (c *class) unmap(mem []byte) error {
	if c.remote != nil {
		return c.remote.Unmap(mem)
	}
	return hugemem.Unmap(mem)
}

// take returns a zeroed block, and the number of bytes mapped for it.
func (c *class) take() ([]byte, int64, error) {
	var grown int64
	if len(c.partial) == 0 {
		mem, err := c.mapSlab()
		if err != nil {
			return nil, 0, err
		}
		s := &slab{mem: mem, base: address(mem), used: make([]uint64, (c.blocksPerSlab()+63)/64)}
		c.slabs = insert(c.slabs, s)
		c.partial = insert(c.partial, s)
		grown = int64(len(mem))
	}
	s := c.partial[0]
	for s.used[s.low] == ^uint64(0) {
		s.low++
	}
	i := s.low*64 + bits.TrailingZeros64(^s.used[s.low])
	dirty := i < s.next
	s.next = max(s.next, i+1)
	b := s.mem[i*c.size : (i+1)*c.size : (i+1)*c.size]
	if dirty && c.remote != nil {
		c.remote.Zero(b)
	} else if dirty {
		clear(b) // no sequence may read another's rows, nor a NaN in a lane that is masked later
	}
	s.used[i/64] |= 1 << (i % 64)
	s.count++
	c.out++
	if s.count == c.blocksPerSlab() {
		c.partial = c.partial[1:]
	}
	return b, grown, nil
}

// find returns the slab and index of a block in use.
func (c *class) find(b []byte) (s *slab, at, i int) {
	addr := address(b)
	at, ok := slices.BinarySearchFunc(c.slabs, addr, byBase)
	if !ok {
		at--
	}
	if at < 0 || addr >= c.slabs[at].base+uintptr(c.blocksPerSlab()*c.size) || (addr-c.slabs[at].base)%uintptr(c.size) != 0 {
		panic(fmt.Sprintf("kvcache: released a block of %d bytes that this arena did not hand out", len(b)))
	}
	s = c.slabs[at]
	i = int(addr-s.base) / c.size
	if s.used[i/64]&(1<<(i%64)) == 0 {
		panic("kvcache: released a block twice")
	}
	return s, at, i
}

// hold adds a holder of a block, and returns the previous number.
func (c *class) hold(b []byte) int32 {
	s, _, i := c.find(b)
	if s.more == nil {
		s.more = make([]int32, c.blocksPerSlab())
	}
	s.more[i]++
	return s.more[i]
}

// holders returns the number of holders of a block.
func (c *class) holders(b []byte) int32 {
	if s, _, i := c.find(b); s.more != nil {
		return 1 + s.more[i]
	}
	return 1
}

// put removes a holder. With the last one it frees the block, and returns the number of bytes
// unmapped. left is the number of remaining holders.
func (c *class) put(b []byte) (left int32, unmapped int64) {
	s, at, i := c.find(b)
	if s.more != nil && s.more[i] > 0 {
		s.more[i]--
		return 1 + s.more[i], 0
	}
	s.used[i/64] &^= 1 << (i % 64)
	s.low = min(s.low, i/64)
	if s.count == c.blocksPerSlab() {
		c.partial = insert(c.partial, s)
	}
	s.count--
	c.out--
	if s.count > 0 {
		return 0, 0
	}
	c.slabs = slices.Delete(c.slabs, at, at+1)
	p, _ := slices.BinarySearchFunc(c.partial, s.base, byBase)
	c.partial = slices.Delete(c.partial, p, p+1)
	bytes := int64(len(s.mem))
	if err := c.unmap(s.mem); err != nil {
		panic(fmt.Sprintf("kvcache: unmapping a slab: %v", err))
	}
	return 0, bytes
}

func insert(list []*slab, s *slab) []*slab {
	at, _ := slices.BinarySearchFunc(list, s.base, byBase)
	return slices.Insert(list, at, s)
}

func byBase(s *slab, base uintptr) int { return cmp.Compare(s.base, base) }

func address(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }

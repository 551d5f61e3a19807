package layered

import (
	"errors"
	"fmt"

	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/memory"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/sys/crc32c"
)

// Residual stores one rank's rows of the residual stream of a prompt between its layers: in blocks of
// the arena, or in a file. The blocks have the size of those of the cache, because a device has no room for slabs
// of several sizes. After an error of the file its rows are zeros, and Lost returns the error. The other ranks
// receive it at the end of the step.
type Residual struct {
	arena  *memory.Arena
	first  int // position of the first row
	pass   int // tokens
	passes int
	hidden int
	size   int      // bytes of the rows of a pass
	each   int      // blocks of a pass
	blocks [][]byte // of all passes; nil: the rows are in the file

	file File
	sums []uint32 // of the passes in the file
	rows []byte   // of the newest Load
	lost error
}

// File is the file of a residual stream. Both methods have a deadline. Put must not keep a reference to b.
type File interface {
	kvcache.PageFile
	Put(b []byte, at int64) error
}

// NewResidual returns the rows of the tokens [first, prompt) of a prompt that is read with passes of
// `pass` tokens, divided over ranks, in blocks of a number of bytes. Errors wrap memory.ErrBudget or
// memory.ErrMemory.
func NewResidual(a *memory.Arena, block, hidden, pass, ranks, first, prompt int) (r *Residual, err error) {
	r = newResidual(hidden, pass, ranks, first, prompt)
	r.arena, r.each = a, blocksOf(r.size, block)
	if r.blocks, err = a.Alloc(block, r.passes*r.each); err != nil {
		return nil, fmt.Errorf("the residual stream of a prompt of %d tokens: %w", prompt, err)
	}
	return r, nil
}

// NewInFile is NewResidual with rows in a file, which open creates with a size in bytes.
func NewInFile(open func(size int64) (File, error), hidden, pass, ranks, first, prompt int) *Residual {
	r := newResidual(hidden, pass, ranks, first, prompt)
	r.sums, r.rows = make([]uint32, r.passes), make([]byte, r.size)
	r.file, r.lost = open(int64(r.size) * int64(r.passes))
	return r
}

func newResidual(hidden, pass, ranks, first, prompt int) *Residual {
	return &Residual{first: first, pass: pass, passes: passes(prompt-first, pass), hidden: hidden, size: passBytes(hidden, pass, ranks)}
}

// InFile reports whether the rows are in a file. Then Load and Store move them, otherwise they are in Blocks.
func (r *Residual) InFile() bool { return r.sums != nil }

// Blocks returns the blocks for this rank's n rows of the pass that begins with position start. The rows follow
// one another, and the last block may have room left.
func (r *Residual) Blocks(start, n int) ([][]byte, error) {
	at, err := r.index(start, n)
	if err != nil || n == 0 {
		return nil, err
	}
	return r.blocks[at*r.each:][:blocksOf(4*n*r.hidden, len(r.blocks[0]))], nil
}

// Load returns this rank's n rows of the pass that begins with position start, from the file. They are valid
// until the next call.
func (r *Residual) Load(start, n int) ([]float32, error) {
	at, err := r.index(start, n)
	if err != nil || n == 0 {
		return nil, err
	}
	rows := r.rows[:4*n*r.hidden]
	if r.lost == nil {
		r.lost = r.file.Read([]int64{int64(at) * int64(r.size)}, len(rows), func(_ int, page []byte) error {
			copy(rows, page)
			return nil
		})
	}
	if r.lost == nil && crc32c.Of(rows) != r.sums[at] {
		r.lost = errors.New("layered: rows of the residual stream were damaged in their file")
	}
	if r.lost != nil {
		clear(rows)
	}
	return tensor.Floats(rows), nil
}

// Store stores the rows of the pass that begins with position start in the file.
func (r *Residual) Store(start int, rows []float32) error {
	at, err := r.index(start, len(rows)/r.hidden)
	if err != nil || len(rows) == 0 {
		return err
	}
	bytes := tensor.FloatBytes(rows)
	r.sums[at] = crc32c.Of(bytes)
	if r.lost == nil {
		r.lost = r.file.Put(bytes, int64(at)*int64(r.size))
	}
	return nil
}

// index returns the number of the pass with n rows here that begins with position start.
func (r *Residual) index(start, n int) (int, error) {
	at := start - r.first
	if at < 0 || at%r.pass != 0 || at/r.pass >= r.passes || 4*n*r.hidden > r.size {
		return 0, fmt.Errorf("layered: %d rows of a pass from position %d: passes begin every %d tokens after %d, and a pass has %d bytes",
			n, start, r.pass, r.first, r.size)
	}
	return at / r.pass, nil
}

// Lost returns the error that lost the rows in the file, or nil. It may be called on nil.
func (r *Residual) Lost() error {
	if r == nil {
		return nil
	}
	return r.lost
}

// Release frees the rows. It may be called twice, or on nil.
func (r *Residual) Release() {
	if r == nil {
		return
	}
	if r.arena != nil {
		r.arena.Release(r.blocks)
	}
	if r.file != nil {
		r.file.Close()
	}
	r.blocks, r.file = nil, nil
}

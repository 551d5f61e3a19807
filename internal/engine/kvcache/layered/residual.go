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
// the arena, one block a pass, or in a file. After an error of the file its rows are zeros, and Lost
// returns the error. The other ranks learn of it at the end of the step.
type Residual struct {
	arena  *memory.Arena
	first  int // position of the first row
	pass   int
	hidden int
	size   int // of a block
	blocks [][]byte

	file File
	sums []uint32 // of the blocks in the file
	rows []byte   // of the newest Load or Store
	lost error
}

// File is the file of a residual stream. Both methods have a deadline. Put must not keep a reference to b.
type File interface {
	kvcache.PageFile
	Put(b []byte, at int64) error
}

// NewResidual returns the rows of the tokens [first, prompt) of a prompt that is read with passes of
// `pass` tokens, divided over ranks. Errors wrap memory.ErrBudget or memory.ErrMemory.
func NewResidual(a *memory.Arena, hidden, pass, ranks, first, prompt int) (r *Residual, err error) {
	r = &Residual{arena: a, first: first, pass: pass, hidden: hidden, size: blockBytes(hidden, pass, ranks)}
	r.rows = make([]byte, r.size)
	if r.blocks, err = a.Alloc(r.size, passes(prompt-first, pass)); err != nil {
		return nil, fmt.Errorf("the residual stream of a prompt of %d tokens: %w", prompt, err)
	}
	return r, nil
}

// NewInFile is NewResidual with rows in a file, which open creates with a size in bytes.
func NewInFile(open func(size int64) (File, error), hidden, pass, ranks, first, prompt int) *Residual {
	r := &Residual{first: first, pass: pass, hidden: hidden, size: blockBytes(hidden, pass, ranks),
		sums: make([]uint32, passes(prompt-first, pass))}
	r.rows = make([]byte, r.size)
	r.file, r.lost = open(int64(r.size) * int64(len(r.sums)))
	return r
}

// Load returns this rank's n rows of the pass that begins with position start. They are valid until the
// next call.
func (r *Residual) Load(start, n int) ([]float32, error) {
	at, err := r.index(start, n)
	if err != nil || n == 0 {
		return nil, err
	}
	if r.sums == nil {
		r.arena.ReadBlock(r.rows, r.blocks[at])
		return tensor.Floats(r.rows)[:n*r.hidden], nil
	}
	rows := r.rows[:4*n*r.hidden]
	if r.lost == nil {
		r.lost = r.file.Read([]int64{int64(at) * int64(r.size)}, len(rows), func(_ int, page []byte) error {
			copy(rows, page)
			return nil
		})
	}
	if r.lost == nil && crc32c.Of(rows) != r.sums[at] {
		r.lost = errors.New("layered: rows of the residual stream came back damaged from their file")
	}
	if r.lost != nil {
		clear(rows)
	}
	return tensor.Floats(rows), nil
}

// Store stores the rows of the pass that begins with position start.
func (r *Residual) Store(start int, rows []float32) error {
	at, err := r.index(start, len(rows)/r.hidden)
	if err != nil || len(rows) == 0 {
		return err
	}
	bytes := r.rows[:4*len(rows)]
	copy(tensor.Floats(bytes), rows)
	if r.sums == nil {
		r.arena.WriteBlock(r.blocks[at], r.rows)
		return nil
	}
	r.sums[at] = crc32c.Of(bytes)
	if r.lost == nil {
		r.lost = r.file.Put(bytes, int64(at)*int64(r.size))
	}
	return nil
}

// index returns the number of the pass with n rows here that begins with position start.
func (r *Residual) index(start, n int) (int, error) {
	at := start - r.first
	if at < 0 || at%r.pass != 0 || at/r.pass >= max(len(r.blocks), len(r.sums)) || 4*n*r.hidden > r.size {
		return 0, fmt.Errorf("layered: %d rows of a pass from position %d: passes begin every %d tokens after %d, and a block has %d bytes",
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

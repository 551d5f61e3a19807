package accelerator

import (
	"fmt"
	"slices"

	"github.com/shoal-llm/shoal/actors/layer"
	"github.com/shoal-llm/shoal/internal/engine/cuda"
	"github.com/shoal-llm/shoal/internal/engine/cuda/launch"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/topology"
)

// Exchanges with other ranks pass through pinned memory, which kernels read and write over the bus.

// Pack implements layer.Backend.
func (b *Backend) Pack(to []float32, tiles []layer.Tile) []float32 {
	n := 0
	for _, t := range tiles {
		n += t.Rows.Len() * t.Cols.Len()
	}
	to = slices.Grow(to[:0], n)[:n]
	if n == 0 {
		return to
	}
	b.start()
	memory, there := b.rank.staged.take(b, 4*n)
	for _, t := range tiles {
		b.move(t, there, true)
		there = there.Add(4 * int64(t.Rows.Len()*t.Cols.Len()))
	}
	b.wait()
	copy(to, cuda.Floats(memory))
	return to
}

// Unpack implements layer.Backend.
func (b *Backend) Unpack(from []float32, tiles []layer.Tile) {
	if len(from) == 0 {
		return
	}
	b.start()
	memory, there := b.rank.staged.take(b, 4*len(from))
	copy(cuda.Floats(memory), from)
	for _, t := range tiles {
		b.move(t, there, false)
		there = there.Add(4 * int64(t.Rows.Len()*t.Cols.Len()))
	}
}

// LoadRows implements layer.Backend. The rows stay on the card.
func (b *Backend) LoadRows(rows topology.Range, blocks [][]byte) {
	b.copyRows(rows, blocks, func(x, block cuda.Pointer, n int64) error { return b.card.Stream.Copy(x, block, n) })
}

// StoreRows implements layer.Backend.
func (b *Backend) StoreRows(rows topology.Range, blocks [][]byte) {
	b.copyRows(rows, blocks, func(x, block cuda.Pointer, n int64) error { return b.card.Stream.Copy(block, x, n) })
}

// copyRows calls do for parts of rows of the residual stream and the blocks that have them. Adjacent blocks are one
// part.
func (b *Backend) copyRows(rows topology.Range, blocks [][]byte, do func(x, block cuda.Pointer, n int64) error) {
	b.start()
	b.ops.Start()
	x, left := b.rowsOf(b.x, rows.Lo), 4*int64(rows.Len())*int64(b.dims.Hidden)
	for i := 0; i < len(blocks); {
		at, n := b.blocks.Offset(blocks[i]), int64(0)
		for ; i < len(blocks) && b.blocks.Offset(blocks[i]) == at+n; i++ {
			n += int64(len(blocks[i]))
		}
		n = min(n, left)
		b.card.Must(do(x, b.blocks.Base().Add(at), n))
		x, left = x.Add(n), left-n
	}
}

// move copies a tile to or from packed rows at an address.
func (b *Backend) move(t layer.Tile, packed cuda.Pointer, pack bool) {
	rows, cols := t.Rows.Len(), t.Cols.Len()
	if rows*cols == 0 {
		return
	}
	var of activation
	switch t.Of {
	case layer.QuantizedNorm:
		of = b.norms
	case layer.QuantizedAttention:
		of = b.attended
	case layer.QuantizedFFN:
		of = b.gated
	default:
		m, ld := b.matrix(t.Of)
		m = m.Add(4 * (int64(t.Rows.Lo)*int64(ld) + int64(t.Cols.Lo)))
		o := launch.CopyRows{To: packed, LdTo: cols, From: m, LdFrom: ld, Rows: rows, Cols: cols}
		if !pack {
			o.To, o.LdTo, o.From, o.LdFrom = m, ld, packed, cols
		}
		b.card.Do(o)
		return
	}
	record := tensor.QuantizedBytes(tensor.BlockWidth) / 4
	o := launch.PackRounded{Records: packed, Rounded: b.input(of, t.Rows.Lo).rounded, All: of.cols,
		First:  t.Cols.Lo / record * tensor.BlockWidth,
		Offset: rounding(b.batch.Type), Rows: rows, Cols: cols / record * tensor.BlockWidth}
	if pack {
		b.card.Do(o)
		return
	}
	b.card.Do(launch.UnpackRounded(o))
}

// matrix returns the memory and the row stride of an activation.
func (b *Backend) matrix(of layer.Activation) (cuda.Pointer, int) {
	switch of {
	case layer.Residual:
		return b.x, b.dims.Hidden
	case layer.Sum:
		return b.y, b.dims.Hidden
	case layer.QKV:
		return b.qkv, b.qkvWidth()
	case layer.Attended:
		return b.attended.plain, b.queryWidth()
	case layer.Gate:
		return b.gated.plain, b.dims.FFN
	case layer.ExpertGate:
		return b.mix.mid.plain, b.dims.MoE.FFN
	case layer.SharedGate:
		return b.mix.shared.plain, b.dims.MoE.Shared
	}
	panic(fmt.Sprintf("accelerator: activation %d is not computed on a card", of))
}

// staging is pinned memory for tiles between the host and the card. Backend.wait empties it.
type staging struct {
	memory *pinned
	used   int
}

// take returns n bytes, and their address for kernels. They are valid until the next wait.
func (s *staging) take(b *Backend, n int) ([]byte, cuda.Pointer) {
	if s.used+n > s.memory.size() {
		b.wait()
		s.memory = s.memory.grow(b, n)
	}
	at := s.used
	s.used += n
	return s.memory.bytes()[at:][:n], s.memory.Device().Add(int64(at))
}

func (s *staging) close() { s.memory.close() }

// pinned is pinned memory that grows. nil is none.
type pinned struct {
	*cuda.Pinned
	b *Backend
}

func (p *pinned) size() int { return len(p.bytes()) }

func (p *pinned) bytes() []byte {
	if p == nil {
		return nil
	}
	return p.Bytes()
}

// grow returns memory of at least n bytes. The content of smaller memory is lost, and nothing in the
// stream may use it.
func (p *pinned) grow(b *Backend, n int) *pinned {
	if p.size() >= n {
		return p
	}
	p.close()
	m, err := b.card.Pin(2 * n)
	b.card.Must(err)
	return &pinned{m, b}
}

func (p *pinned) close() {
	if p != nil {
		p.b.card.Must(p.Close())
	}
}

// grown is memory of a card that grows.
type grown struct {
	b     *Backend
	at    cuda.Pointer
	bytes int64
}

// grow returns memory of at least n bytes. The content of smaller memory is lost, after the operations
// so far.
func (g *grown) grow(b *Backend, n int64) cuda.Pointer {
	if g.bytes < n {
		b.ops.Start()
		g.close()
		var err error
		g.at, err = b.card.Alloc(n)
		b.card.Must(err)
		g.b, g.bytes = b, n
	}
	return g.at
}

func (g *grown) close() {
	if g.bytes > 0 {
		g.b.card.Free(g.at, g.bytes)
		g.bytes = 0
	}
}

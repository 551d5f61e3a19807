package kvcache

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"

	"github.com/shoal-llm/shoal/internal/engine/kvcache/memory"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/rowblock"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// RowShape implements rowblock.Shaper, for the planes of segments and their snapshots.
func (g Geometry) RowShape(layer, _ int, plane rowblock.Plane) rowblock.Shape {
	switch {
	case plane == rowblock.Blocks && layer < g.Layers:
		return rowblock.Shape{Bytes: g.LayoutOf(layer).BlockBytes(), Slots: tensor.BlockSlots}
	case plane == rowblock.State && layer >= g.Layers:
		return rowblock.Shape{Bytes: g.states().BlockBytes()}
	}
	return rowblock.Shape{}
}

// SegmentBlock is one KV head of block at of a text: its block of every layer.
func (g Geometry) SegmentBlock(head, at int) rowblock.Block {
	return rowblock.Block{
		Layers: tensor.Span{Lo: 0, Hi: g.Layers},
		Heads:  tensor.Span{Lo: head, Hi: head + 1},
		Slots:  tensor.Span{Lo: at * tensor.BlockSlots, Hi: (at + 1) * tensor.BlockSlots},
		Planes: rowblock.Blocks,
	}
}

// HeadBytes returns the size of one KV head of a segment on the wire: its block of every layer.
func HeadBytes(g Geometry) int { return g.SegmentBlock(0, 0).Bytes(g) }

// Append appends the rows of a segment, a rowblock.Block of HeadBytes for each head, so that files and
// sockets can cut them by heads.
func (g *Segment) Append(dst []byte) []byte {
	for head := g.heads.Lo; head < g.heads.Hi; head++ {
		dst, _ = g.g.SegmentBlock(head, g.at).Append(dst, g)
	}
	return dst
}

// RowShape implements rowblock.Shaper.
func (g *Segment) RowShape(layer, head int, plane rowblock.Plane) rowblock.Shape {
	return g.g.RowShape(layer, head, plane)
}

// ReadRows implements rowblock.Source. It does not fail.
func (g *Segment) ReadRows(dst []byte, b rowblock.Block) ([]byte, error) {
	return b.ReadEach(dst, g, func(dst []byte, at rowblock.Part) error {
		g.arena.ReadBlock(dst, g.block(at))
		return nil
	})
}

// WriteRows implements rowblock.Sink.
func (g *Segment) WriteRows(b rowblock.Block, body []byte) error {
	return b.WriteEach(body, g, func(at rowblock.Part, src []byte) error {
		g.arena.WriteBlock(g.block(at), src)
		return nil
	})
}

func (g *Segment) block(at rowblock.Part) []byte {
	if at.Plane == rowblock.State {
		return g.states[(at.Layer-g.g.Layers)*g.heads.Len()+at.Head-g.heads.Lo]
	}
	return g.blocks[at.Layer*g.heads.Len()+at.Head-g.heads.Lo]
}

// NewSegment makes block at of a text from the result of Append on a socket with the same heads. It
// checks the rows before it allocates. Errors wrap rowblock.Err, memory.ErrBudget and memory.ErrMemory.
func NewSegment(a *memory.Arena, g Geometry, heads tensor.Span, at int, rows []byte) (*Segment, error) {
	if heads.Lo < 0 || heads.Hi > g.KVHeads || heads.Len() < 1 || len(rows) != heads.Len()*HeadBytes(g) {
		return nil, fmt.Errorf("%w: %d bytes for heads [%d,%d) of %d layers", rowblock.Err, len(rows), heads.Lo, heads.Hi, g.Layers)
	}
	bodies := make([][]byte, heads.Len())
	var err error
	for i := range bodies {
		if bodies[i], rows, err = g.SegmentBlock(heads.Lo+i, at).Cut(rows, g); err != nil {
			return nil, err
		}
	}
	s := &Segment{arena: a, g: g, heads: heads, at: at}
	if s.blocks, err = a.AllocEach(func(yield func(size int)) {
		for layer := range g.Layers {
			for range heads.Len() {
				yield(g.LayoutOf(layer).BlockBytes())
			}
		}
	}); err != nil {
		return nil, fmt.Errorf("restoring block %d of a text: %w", at, err)
	}
	for i, body := range bodies {
		if err := s.WriteRows(g.SegmentBlock(heads.Lo+i, at), body); err != nil {
			s.arena.Release(s.blocks)
			return nil, err
		}
	}
	a.Register(s)
	return s, nil
}

// Form identifies the layout of rows in a block. Processes with equal forms can read each other's
// segments. It is a hash of the shape and of sample blocks, so that no build misreads the rows of
// another layout.
func Form(g Geometry) [sha256.Size]byte {
	h := sha256.New()
	fmt.Fprintf(h, "row blocks, %d layers, %+v, windows %v\x00", g.Layers, g.Layout, g.Windows)
	h.Write(sampleBlock(g.Layout))
	if g.Local.KDim > 0 {
		fmt.Fprintf(h, "%+v\x00", g.Local)
		h.Write(sampleBlock(g.Local))
	}
	return [sha256.Size]byte(h.Sum(nil))
}

// sampleBlock is a block of a layout with different values in all its rows.
func sampleBlock(l tensor.KVLayout) []byte {
	block, row := make([]byte, l.BlockBytes()), make([]byte, l.RowBytes())
	for slot := range tensor.BlockSlots {
		for i := 0; i+4 <= len(row); i += 4 {
			binary.LittleEndian.PutUint32(row[i:], uint32(slot*len(row)+i)*2654435761)
		}
		l.ImportRow(block, slot, row)
	}
	return block
}

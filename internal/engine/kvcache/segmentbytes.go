package kvcache

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"

	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// HeadBytes is the size of one KV head of a segment: its block of every layer.
func HeadBytes(g Geometry) int { return g.rowBytes(1, tensor.KVLayout.BlockBytes) }

// Bytes copies the segment's rows to dst: [head][layer] blocks as in memory, HeadBytes a head. dst
// has room for all of them.
func (g *Segment) Bytes(dst []byte) {
	heads := g.heads.Len()
	for head := range heads {
		for layer := range g.g.Layers {
			dst = dst[copy(dst, g.blocks[layer*heads+head]):]
		}
	}
}

// NewSegment makes block at of a text from the result of Bytes on a socket with the same heads. It
// allocates: errors wrap ErrBudget and ErrMemory.
func NewSegment(a *Arena, g Geometry, heads tensor.Span, at int, rows []byte) (*Segment, error) {
	if heads.Lo < 0 || heads.Hi > g.KVHeads || heads.Len() < 1 || len(rows) != heads.Len()*HeadBytes(g) {
		return nil, fmt.Errorf("%w: %d bytes for heads [%d,%d) of %d layers", ErrRows, len(rows), heads.Lo, heads.Hi, g.Layers)
	}
	blocks, err := a.allocAll(func(yield func(size int)) {
		for layer := range g.Layers {
			for range heads.Len() {
				yield(g.LayoutOf(layer).BlockBytes())
			}
		}
	})
	if err != nil {
		return nil, fmt.Errorf("restoring block %d of a text: %w", at, err)
	}
	for head := range heads.Len() {
		for layer := range g.Layers {
			rows = rows[copy(blocks[layer*heads.Len()+head], rows):]
		}
	}
	s := &Segment{arena: a, g: g, heads: heads, at: at, blocks: blocks}
	a.register(s)
	return s, nil
}

// Form identifies the layout of rows in a block. Processes with equal forms can read each other's
// Bytes. It is a hash of the shape and of sample blocks, so that no build misreads the rows of
// another layout.
func Form(g Geometry) [sha256.Size]byte {
	h := sha256.New()
	fmt.Fprintf(h, "%d layers, %+v, windows %v\x00", g.Layers, g.Layout, g.Windows)
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

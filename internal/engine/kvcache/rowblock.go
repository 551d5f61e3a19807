package kvcache

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// RowBlock names cache rows that move: some planes of a rectangle of layers, KV heads and slots. Rows
// leave a cache in no other form. The hand-over, replicas, blocks of the prefix cache (in memory, in
// a file, on another socket) and the pages of a running sequence in a file all use it.
//
// On the wire, little endian:
//
//	header  7 x uint32: layers [lo, hi), heads [lo, hi), slots [lo, hi), planes
//	body    for each head, layer and plane, in this order: the plane's rows of these slots
//
// So one head's part of a body is contiguous. Planes are in the order of their bits.
type RowBlock struct {
	Layers, Heads, Slots tensor.Span
	Planes               Plane
}

// Plane is a kind of data that a cache keeps of its slots, or a set of them.
type Plane uint32

const (
	// PlanePositions is the true position of the token in each slot, int32.
	PlanePositions Plane = 1 << iota
	// PlaneNumbers is the score of each slot under a Scored eviction, float32.
	PlaneNumbers
	// PlaneRows is key and value of each slot, as tensor.KVLayout.ExportRow writes them.
	PlaneRows
	// PlaneQueries is one row: the queries of the observation window.
	PlaneQueries
	// PlaneIndex is one row: what a PromptIndex moves with a prompt.
	PlaneIndex
	// PlaneStaged is PlaneRows of the running step. Its slots are positions.
	PlaneStaged
	// PlaneBlocks is whole blocks in the form that they have in memory.
	PlaneBlocks
	// PlanePages is pages of a Selector as files hold them.
	PlanePages
	// PlaneState is one row: the state of a recurrent layer after as many tokens as the block has
	// slots. Recurrent layers are numbered after those with rows.
	PlaneState
	// PlaneRecords is what the tokens of the running step add to all recurrent states. Its slots are
	// positions. The first head of layer 0 has it.
	PlaneRecords

	lastPlane = PlaneRecords
)

// RowShape is the shape of a plane in one head of a layer.
type RowShape struct {
	Bytes int // of a row; 0: the head has no such plane
	Slots int // slots that a row covers; 0: the plane has one row for any number of slots
}

// RowShaper returns the shape of a plane. Layers may differ. All sockets compute the same for a
// sequence, so that a receiver knows the size of what must come.
type RowShaper interface {
	RowShape(layer, head int, plane Plane) RowShape
}

// RowSource is a cache from which rows can be read: a Store, a Segment, a Selection of a prompt, or
// the cache of a device.
type RowSource interface {
	RowShaper
	// ReadRows appends the body of a block to dst.
	ReadRows(dst []byte, b RowBlock) ([]byte, error)
}

// RowSink is a cache that takes rows.
type RowSink interface {
	RowShaper
	// WriteRows stores the body of a block, which has the right length. It checks a head's rows
	// before it writes any of them. Errors wrap ErrRows.
	WriteRows(b RowBlock, body []byte) error
}

// ErrRows means that rows from another socket do not fit the cache.
var ErrRows = errors.New("kvcache: bad rows")

const (
	// RowBlockHeader is the size of a header in bytes.
	RowBlockHeader = 7 * 4
	// maxSpan bounds the numbers in a header. It exceeds every context.
	maxSpan = 1 << 26
)

func (b RowBlock) String() string {
	return fmt.Sprintf("layers [%d,%d), heads [%d,%d), slots [%d,%d), planes %#x", b.Layers.Lo, b.Layers.Hi, b.Heads.Lo, b.Heads.Hi, b.Slots.Lo, b.Slots.Hi, uint32(b.Planes))
}

// rowsAt are the rows of one plane of one head of a layer, and their size in bytes.
type rowsAt struct {
	layer, head, bytes int
	plane              Plane
	slots              tensor.Span
}

// each calls f with the parts of a block's body in order.
func (b RowBlock) each(of RowShaper, f func(at rowsAt) error) error {
	for head := b.Heads.Lo; head < b.Heads.Hi; head++ {
		for layer := b.Layers.Lo; layer < b.Layers.Hi; layer++ {
			for plane := Plane(1); plane <= lastPlane; plane <<= 1 {
				if b.Planes&plane == 0 {
					continue
				}
				at := rowsAt{layer: layer, head: head, plane: plane, slots: b.Slots}
				shape := of.RowShape(layer, head, plane)
				if at.bytes = shape.Bytes; shape.Slots > 0 {
					at.bytes *= (b.Slots.Len() + shape.Slots - 1) / shape.Slots
				}
				if at.bytes > 0 {
					if err := f(at); err != nil {
						return err
					}
				}
			}
		}
	}
	return nil
}

// Bytes is the size of a block: the result of Append.
func (b RowBlock) Bytes(of RowShaper) int {
	n := RowBlockHeader
	_ = b.each(of, func(at rowsAt) error { n += at.bytes; return nil })
	return n
}

// Append appends a block to dst.
func (b RowBlock) Append(dst []byte, from RowSource) ([]byte, error) {
	dst = append(slices.Grow(dst, b.Bytes(from)), b.Header()...)
	return from.ReadRows(dst, b)
}

// Header returns the header of the block, which ParseRowBlock reads.
func (b RowBlock) Header() (h []byte) {
	for _, n := range b.numbers() {
		h = binary.LittleEndian.AppendUint32(h, n)
	}
	return h
}

func (b RowBlock) numbers() [7]uint32 {
	return [...]uint32{uint32(b.Layers.Lo), uint32(b.Layers.Hi), uint32(b.Heads.Lo), uint32(b.Heads.Hi), uint32(b.Slots.Lo), uint32(b.Slots.Hi), uint32(b.Planes)}
}

// ParseRowBlock reads the header at the start of in.
func ParseRowBlock(in []byte) (b RowBlock, err error) {
	if len(in) < RowBlockHeader {
		return b, fmt.Errorf("%w: %d bytes, a header has %d", ErrRows, len(in), RowBlockHeader)
	}
	for i, span := range [...]*tensor.Span{&b.Layers, &b.Heads, &b.Slots} {
		lo, hi := binary.LittleEndian.Uint32(in[8*i:]), binary.LittleEndian.Uint32(in[8*i+4:])
		if lo > hi || hi > maxSpan {
			return b, fmt.Errorf("%w: a header has the range [%d,%d)", ErrRows, lo, hi)
		}
		*span = tensor.Span{Lo: int(lo), Hi: int(hi)}
	}
	if b.Planes = Plane(binary.LittleEndian.Uint32(in[24:])); b.Planes == 0 || b.Planes >= lastPlane<<1 {
		return b, fmt.Errorf("%w: a header has planes %#x", ErrRows, uint32(b.Planes))
	}
	return b, nil
}

// Cut checks that in starts with this block, and cuts it off. A header must have exactly the
// numbers that the receiver expects, so no number from another socket sizes an allocation.
func (b RowBlock) Cut(in []byte, of RowShaper) (body, rest []byte, err error) {
	got, err := ParseRowBlock(in)
	if err != nil {
		return nil, nil, err
	}
	if got != b {
		return nil, nil, fmt.Errorf("%w: %v came, not %v", ErrRows, got, b)
	}
	size := b.Bytes(of)
	if len(in) < size {
		return nil, nil, fmt.Errorf("%w: %v has %d bytes, not %d", ErrRows, b, len(in), size)
	}
	return in[RowBlockHeader:size], in[size:], nil
}

// Store stores this block, with which in starts, and returns what follows it.
func (b RowBlock) Store(in []byte, to RowSink) (rest []byte, err error) {
	body, rest, err := b.Cut(in, to)
	if err != nil {
		return nil, err
	}
	return rest, to.WriteRows(b, body)
}

// readEach appends the body of a block, part by part. It is ReadRows of a cache in host memory.
func (b RowBlock) readEach(dst []byte, of RowShaper, read func(dst []byte, at rowsAt) error) ([]byte, error) {
	err := b.each(of, func(at rowsAt) error {
		dst = slices.Grow(dst, at.bytes)
		dst = dst[:len(dst)+at.bytes]
		return read(dst[len(dst)-at.bytes:], at)
	})
	return dst, err
}

// writeEach passes the parts of a body to write. It is WriteRows of a cache in host memory.
func (b RowBlock) writeEach(body []byte, of RowShaper, write func(at rowsAt, src []byte) error) error {
	return b.each(of, func(at rowsAt) error {
		src := body[:at.bytes]
		body = body[at.bytes:]
		return write(at, src)
	})
}

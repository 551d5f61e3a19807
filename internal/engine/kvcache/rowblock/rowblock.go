// Package rowblock is the form in which cache rows move between caches, sockets and files.
package rowblock

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// Block names cache rows that move: some planes of a rectangle of layers, KV heads and slots. Rows
// leave a cache in no other form. The hand-over, replicas, blocks of the prefix cache (in memory, in
// a file, on another socket) and the pages of a running sequence in a file all use it.
//
// On the wire, little endian:
//
//	header  7 x uint32: layers [lo, hi), heads [lo, hi), slots [lo, hi), planes
//	body    for each head, layer and plane, in this order: the plane's rows of these slots
//
// So one head's part of a body is contiguous. Planes are in the order of their bits.
type Block struct {
	Layers, Heads, Slots tensor.Span
	Planes               Plane
}

// Plane is a kind of data that a cache keeps of its slots, or a set of them.
type Plane uint32

const (
	// Positions is the true position of the token in each slot, int32.
	Positions Plane = 1 << iota
	// Numbers is the score of each slot under a Scored eviction, float32.
	Numbers
	// Rows is key and value of each slot, as tensor.KVLayout.ExportRow writes them.
	Rows
	// Queries is one row: the queries of the observation window.
	Queries
	// Index is one row: the data of a PromptIndex that moves with a prompt.
	Index
	// Staged is Rows of the running step. Its slots are positions.
	Staged
	// Blocks is whole blocks in the form that they have in memory.
	Blocks
	// Pages is pages of a Selector as files hold them.
	Pages
	// State is one row: the state of a recurrent layer after as many tokens as the block has
	// slots. Recurrent layers are numbered after those with rows.
	State
	// Records are the contributions of the running step's tokens to all recurrent states. Their slots
	// are positions. The first head of layer 0 has it.
	Records

	lastPlane = Records
)

// Shape is the shape of a plane in one head of a layer.
type Shape struct {
	Bytes int // of a row; 0: the head has no such plane
	Slots int // slots that a row covers; 0: the plane has one row for any number of slots
}

// Shaper returns the shape of a plane. Layers may differ. All sockets compute the same shapes for a
// sequence, so a receiver can check the size of a block.
type Shaper interface {
	RowShape(layer, head int, plane Plane) Shape
}

// Source is a cache from which rows can be read: a Store, a Segment, a Selection of a prompt, or
// the cache of a device.
type Source interface {
	Shaper
	// ReadRows appends the body of a block to dst.
	ReadRows(dst []byte, b Block) ([]byte, error)
}

// Sink is a cache that takes rows.
type Sink interface {
	Shaper
	// WriteRows stores the body of a block, which has the right length. It checks a head's rows
	// before it writes any of them. Errors wrap Err.
	WriteRows(b Block, body []byte) error
}

// Err means that rows from another socket do not fit the cache.
var Err = errors.New("kvcache: bad rows")

const (
	// HeaderBytes is the size of a header in bytes.
	HeaderBytes = 7 * 4
	// maxSpan bounds the numbers in a header. It exceeds every context.
	maxSpan = 1 << 26
)

func (b Block) String() string {
	return fmt.Sprintf("layers [%d,%d), heads [%d,%d), slots [%d,%d), planes %#x",
		b.Layers.Lo, b.Layers.Hi, b.Heads.Lo, b.Heads.Hi, b.Slots.Lo, b.Slots.Hi, uint32(b.Planes))
}

// Part are the rows of one plane of one head of a layer, and their size in bytes.
type Part struct {
	Layer, Head, Bytes int
	Plane              Plane
	Slots              tensor.Span
}

// each calls f with the parts of a block's body in order.
func (b Block) each(of Shaper, f func(at Part) error) error {
	for head := b.Heads.Lo; head < b.Heads.Hi; head++ {
		for layer := b.Layers.Lo; layer < b.Layers.Hi; layer++ {
			for plane := Plane(1); plane <= lastPlane; plane <<= 1 {
				if b.Planes&plane == 0 {
					continue
				}
				at := Part{Layer: layer, Head: head, Plane: plane, Slots: b.Slots}
				shape := of.RowShape(layer, head, plane)
				if at.Bytes = shape.Bytes; shape.Slots > 0 {
					at.Bytes *= (b.Slots.Len() + shape.Slots - 1) / shape.Slots
				}
				if at.Bytes > 0 {
					if err := f(at); err != nil {
						return err
					}
				}
			}
		}
	}
	return nil
}

// Bytes returns the size of a block: the result of Append.
func (b Block) Bytes(of Shaper) int {
	n := HeaderBytes
	_ = b.each(of, func(at Part) error { n += at.Bytes; return nil })
	return n
}

// Append appends a block to dst.
func (b Block) Append(dst []byte, from Source) ([]byte, error) {
	dst = append(slices.Grow(dst, b.Bytes(from)), b.Header()...)
	return from.ReadRows(dst, b)
}

// Header returns the header of the block, which Parse reads.
func (b Block) Header() (h []byte) {
	for _, n := range b.numbers() {
		h = binary.LittleEndian.AppendUint32(h, n)
	}
	return h
}

func (b Block) numbers() [7]uint32 {
	return [...]uint32{
		uint32(b.Layers.Lo), uint32(b.Layers.Hi), uint32(b.Heads.Lo), uint32(b.Heads.Hi),
		uint32(b.Slots.Lo), uint32(b.Slots.Hi), uint32(b.Planes),
	}
}

// Parse reads the header at the start of in.
func Parse(in []byte) (b Block, err error) {
	if len(in) < HeaderBytes {
		return b, fmt.Errorf("%w: %d bytes, a header has %d", Err, len(in), HeaderBytes)
	}
	for i, span := range [...]*tensor.Span{&b.Layers, &b.Heads, &b.Slots} {
		lo, hi := binary.LittleEndian.Uint32(in[8*i:]), binary.LittleEndian.Uint32(in[8*i+4:])
		if lo > hi || hi > maxSpan {
			return b, fmt.Errorf("%w: a header has the range [%d,%d)", Err, lo, hi)
		}
		*span = tensor.Span{Lo: int(lo), Hi: int(hi)}
	}
	if b.Planes = Plane(binary.LittleEndian.Uint32(in[24:])); b.Planes == 0 || b.Planes >= lastPlane<<1 {
		return b, fmt.Errorf("%w: a header has planes %#x", Err, uint32(b.Planes))
	}
	return b, nil
}

// Cut checks that in starts with this block, and cuts it off. A header must have exactly the
// numbers that the receiver expects, so no number from another socket sizes an allocation.
func (b Block) Cut(in []byte, of Shaper) (body, rest []byte, err error) {
	got, err := Parse(in)
	if err != nil {
		return nil, nil, err
	}
	if got != b {
		return nil, nil, fmt.Errorf("%w: got %v, want %v", Err, got, b)
	}
	size := b.Bytes(of)
	if len(in) < size {
		return nil, nil, fmt.Errorf("%w: %v has %d bytes, not %d", Err, b, len(in), size)
	}
	return in[HeaderBytes:size], in[size:], nil
}

// Store stores this block, with which in starts, and returns the bytes after it.
func (b Block) Store(in []byte, to Sink) (rest []byte, err error) {
	body, rest, err := b.Cut(in, to)
	if err != nil {
		return nil, err
	}
	return rest, to.WriteRows(b, body)
}

// ReadEach appends the body of a block, part by part. It is ReadRows of a cache in host memory.
func (b Block) ReadEach(dst []byte, of Shaper, read func(dst []byte, at Part) error) ([]byte, error) {
	err := b.each(of, func(at Part) error {
		dst = slices.Grow(dst, at.Bytes)
		dst = dst[:len(dst)+at.Bytes]
		return read(dst[len(dst)-at.Bytes:], at)
	})
	return dst, err
}

// WriteEach passes the parts of a body to write. It is WriteRows of a cache in host memory.
func (b Block) WriteEach(body []byte, of Shaper, write func(at Part, src []byte) error) error {
	return b.each(of, func(at Part) error {
		src := body[:at.Bytes]
		body = body[at.Bytes:]
		return write(at, src)
	})
}

package layer

import (
	"unsafe"

	"shoal/topology"
)

// Activation names a matrix of a micro-batch. Rows are tokens but where it says otherwise.
type Activation uint8

// What crosses the wire.
const (
	Residual           Activation = iota // (T, Hidden) the residual stream
	QKV                                  // (T, qkvWidth) queries, keys and values
	Attended                             // (T, attnCols) outputs of heads
	Gate                                 // (T, FFN) what the down projection reads
	Sum                                  // (T, Hidden) what attention and the FFN add
	QuantizedNorm                        // (T, Hidden) in blocks, as the next two
	QuantizedAttention                   // (T, attnCols)
	QuantizedFFN                         // (T, FFN)
	Latents                              // (T, downCols), latent attention's
	LatentMeans                          // (T, Heads*rank), likewise
	ExpertGate                           // (pairs, FFN) of experts
	SharedGate                           // (T, Shared) of shared experts
)

// matrix is where an activation lies; ld is the distance between its rows. Blocks count as
// float32.
func (b *Batch) matrix(of Activation) (m []float32, ld int) {
	switch d := &b.Dims; of {
	case QKV:
		return b.QKV, b.qkvWidth()
	case Attended:
		return b.Attn, d.attnCols()
	case Gate:
		return b.Gate, d.gateWidth()
	case Sum:
		return b.Y, d.Hidden
	case QuantizedNorm:
		return b.quantized.norm, quantizedFloats(d.Hidden)
	case QuantizedAttention:
		return b.quantized.mid, quantizedFloats(d.attnCols())
	case QuantizedFFN:
		return b.quantized.mid, quantizedFloats(d.FFN)
	case Latents:
		return b.latent.down, d.downCols()
	case LatentMeans:
		return b.latent.out, d.Heads * d.Latent.Rank
	case ExpertGate:
		return b.mix.gate, d.MoE.FFN
	case SharedGate:
		return b.mix.sharedGate, d.MoE.Shared
	}
	return b.X, b.Dims.Hidden
}

// tile is a rectangle of an activation: rows x columns.
type tile struct {
	of         Activation
	rows, cols topology.Range
}

// gatherTiles names what a rank gives to everybody.
type gatherTiles func(b *Batch, rank int, yield func(tile))

// pairTiles names what one rank gives to another.
type pairTiles func(b *Batch, from, to int, yield func(tile))

// gathered and paired list tiles, until the next list.
func (b *Batch) gathered(tiles gatherTiles, rank int) []tile {
	b.tiles = b.tiles[:0]
	tiles(b, rank, b.addTile)
	return b.tiles
}

func (b *Batch) paired(tiles pairTiles, from, to int) []tile {
	b.tiles = b.tiles[:0]
	tiles(b, from, to, b.addTile)
	return b.tiles
}

func floats(tiles []tile) (n int) {
	for i := range tiles {
		n += tiles[i].rows.Len() * tiles[i].cols.Len()
	}
	return n
}

// pack is the values of tiles, row after row, in to or where there is room.
func (b *Batch) pack(to []float32, tiles []tile) []float32 {
	to = growF(to, floats(tiles))
	at := 0
	for _, t := range tiles {
		m, ld := b.matrix(t.of)
		for row := t.rows.Lo; row < t.rows.Hi; row++ {
			at += copy(to[at:], m[row*ld+t.cols.Lo:row*ld+t.cols.Hi])
		}
	}
	return to
}

// unpack puts packed values where tiles are.
func (b *Batch) unpack(from []float32, tiles []tile) {
	for _, t := range tiles {
		m, ld := b.matrix(t.of)
		for row := t.rows.Lo; row < t.rows.Hi; row++ {
			from = from[copy(m[row*ld+t.cols.Lo:row*ld+t.cols.Hi], from):]
		}
	}
}

func (b *Batch) packGather(tiles gatherTiles) {
	n := len(b.Place.Slices)
	b.out, b.in = grow(b.out, n), grow(b.in, n)
	for r := range n {
		if r == b.Rank {
			b.out[r], b.in[r] = b.pack(b.out[r], b.gathered(tiles, r)), nil
			continue
		}
		b.in[r] = growF(b.in[r], floats(b.gathered(tiles, r)))
	}
}

func (b *Batch) unpackGather(tiles gatherTiles) {
	for r := range b.Place.Slices {
		if r != b.Rank {
			b.unpack(b.in[r], b.gathered(tiles, r))
		}
	}
}

func (b *Batch) packPairs(tiles pairTiles) {
	n := len(b.Place.Slices)
	b.out, b.in = grow(b.out, n), grow(b.in, n)
	b.send, b.recv = grow(b.send, n), grow(b.recv, n)
	for r := range n {
		if r == b.Rank {
			b.send[r], b.recv[r] = nil, nil
			continue
		}
		b.out[r], b.in[r] = b.pack(b.out[r], b.paired(tiles, b.Rank, r)), growF(b.in[r], floats(b.paired(tiles, r, b.Rank)))
		b.send[r], b.recv[r] = floatBytes(b.out[r]), floatBytes(b.in[r])
	}
}

func (b *Batch) unpackPairs(tiles pairTiles) {
	for r := range b.Place.Slices {
		if r != b.Rank {
			b.unpack(b.in[r], b.paired(tiles, r, b.Rank))
		}
	}
}

// floatBytes views float32 values as the bytes that cross the wire: every
// supported host is little-endian, which the header's magic number checks.
func floatBytes(f []float32) []byte {
	if len(f) == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(&f[0])), 4*len(f))
}

func grow[T any](s [][]T, n int) [][]T {
	for cap(s) < n {
		s = append(s[:cap(s)], nil)
	}
	return s[:n]
}

func growF(s []float32, n int) []float32 {
	if cap(s) < n {
		return make([]float32, n)
	}
	return s[:n]
}

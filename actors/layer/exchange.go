package layer

import (
	"unsafe"

	"shoal/topology"
)

// tile is a rectangle of an activation matrix: rows x columns.
type tile struct{ rows, cols topology.Range }

// gatherTiles names what a rank gives to everybody: of matrices m, whose rows are ld
// apart, so many tiles.
type gatherTiles func(b *Batch, rank int, yield func(m []float32, ld int, t tile))

// pairTiles names what one rank gives to another, likewise.
type pairTiles func(b *Batch, from, to int, yield func(m []float32, ld int, t tile))

func (b *Batch) packGather(tiles gatherTiles) {
	n := len(b.Place.Slices)
	b.recvF = grow(b.recvF, n)
	for r := range n {
		size := 0
		tiles(b, r, func(_ []float32, _ int, t tile) { size += t.rows.Len() * t.cols.Len() })
		if r == b.Rank {
			b.sendF = growF(b.sendF, size)
			b.recvF[r] = nil
			continue
		}
		b.recvF[r] = growF(b.recvF[r], size)
	}
	at := 0
	tiles(b, b.Rank, func(m []float32, ld int, t tile) {
		for row := t.rows.Lo; row < t.rows.Hi; row++ {
			at += copy(b.sendF[at:], m[row*ld+t.cols.Lo:row*ld+t.cols.Hi])
		}
	})
}

func (b *Batch) unpackGather(tiles gatherTiles) {
	for r := range b.Place.Slices {
		if r == b.Rank {
			continue
		}
		at := 0
		tiles(b, r, func(m []float32, ld int, t tile) {
			for row := t.rows.Lo; row < t.rows.Hi; row++ {
				at += copy(m[row*ld+t.cols.Lo:row*ld+t.cols.Hi], b.recvF[r][at:])
			}
		})
	}
}

func (b *Batch) packPairs(tiles pairTiles) {
	n := len(b.Place.Slices)
	b.send, b.recv = grow(b.send, n), grow(b.recv, n)
	for r := range n {
		if r == b.Rank {
			b.send[r], b.recv[r] = nil, nil
			continue
		}
		size := func(from, to int) (bytes int) {
			tiles(b, from, to, func(_ []float32, _ int, t tile) { bytes += 4 * t.rows.Len() * t.cols.Len() })
			return bytes
		}
		b.send[r], b.recv[r] = growB(b.send[r], size(b.Rank, r)), growB(b.recv[r], size(r, b.Rank))
		at := 0
		tiles(b, b.Rank, r, func(m []float32, ld int, t tile) {
			for row := t.rows.Lo; row < t.rows.Hi; row++ {
				at += copy(b.send[r][at:], floatBytes(m[row*ld+t.cols.Lo:row*ld+t.cols.Hi]))
			}
		})
	}
}

func (b *Batch) unpackPairs(tiles pairTiles) {
	for r := range b.Place.Slices {
		if r == b.Rank {
			continue
		}
		at := 0
		tiles(b, r, b.Rank, func(m []float32, ld int, t tile) {
			for row := t.rows.Lo; row < t.rows.Hi; row++ {
				at += copy(floatBytes(m[row*ld+t.cols.Lo:row*ld+t.cols.Hi]), b.recv[r][at:])
			}
		})
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

func growB(s []byte, n int) []byte {
	if cap(s) < n {
		return make([]byte, n)
	}
	return s[:n]
}

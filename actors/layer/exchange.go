package layer

import (
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/topology"
)

// Tile is a rectangle of an activation: rows x columns. A quantized block counts as its bytes in
// units of float32.
type Tile struct {
	Of         Activation
	Rows, Cols topology.Range
}

// gatherTiles yields the tiles that a rank sends to all others.
type gatherTiles func(b *Batch, rank int, yield func(Tile))

// pairTiles yields the tiles that rank from sends to rank to.
type pairTiles func(b *Batch, from, to int, yield func(Tile))

// gathered and paired return lists of tiles, valid until the next call.
func (b *Batch) gathered(tiles gatherTiles, rank int) []Tile {
	b.tiles = b.tiles[:0]
	tiles(b, rank, b.addTile)
	return b.tiles
}

func (b *Batch) paired(tiles pairTiles, from, to int) []Tile {
	b.tiles = b.tiles[:0]
	tiles(b, from, to, b.addTile)
	return b.tiles
}

func floats(tiles []Tile) (n int) {
	for i := range tiles {
		n += tiles[i].Rows.Len() * tiles[i].Cols.Len()
	}
	return n
}

func (b *Batch) packGather(tiles gatherTiles) {
	n := len(b.Place.Slices)
	b.out, b.in = grow(b.out, n), grow(b.in, n)
	for r := range n {
		if r == b.Rank {
			b.out[r], b.in[r] = b.Backend.Pack(b.out[r], b.gathered(tiles, r)), nil
			continue
		}
		b.in[r] = growF(b.in[r], floats(b.gathered(tiles, r)))
	}
}

func (b *Batch) unpackGather(tiles gatherTiles) {
	for r := range b.Place.Slices {
		if r != b.Rank {
			b.Backend.Unpack(b.in[r], b.gathered(tiles, r))
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
		b.out[r], b.in[r] = b.Backend.Pack(b.out[r], b.paired(tiles, b.Rank, r)), growF(b.in[r], floats(b.paired(tiles, r, b.Rank)))
		b.send[r], b.recv[r] = tensor.FloatBytes(b.out[r]), tensor.FloatBytes(b.in[r])
	}
}

func (b *Batch) unpackPairs(tiles pairTiles) {
	for r := range b.Place.Slices {
		if r != b.Rank {
			b.Backend.Unpack(b.in[r], b.paired(tiles, r, b.Rank))
		}
	}
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

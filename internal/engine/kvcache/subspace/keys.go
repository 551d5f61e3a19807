// Package subspace scores cached tokens by a few components of their keys, in the basis of the subspace
// that has most of them. Loki and InfiniGen choose the tokens of a step by such scores.
package subspace

import (
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// Keys is the index of one head's keys: of each key its leading components. The basis is computed from
// the first Calibration keys of the sequence. So the index is a pure function of the stored keys,
// independent of earlier writes, rollbacks and moves, and of the end of the prompt. There is no index
// until these keys are stored.
//
// A block of the index has the components of tensor.BlockSlots keys, laid out as landmarks, and one piece
// of the basis. The first blocks together have all of it.
type Keys struct {
	Calibration int  // tokens
	Share       int  // of a key's elements, in thousandths
	Centred     bool // the basis is that of the keys' differences from their mean (PCA), else of the keys (SVD)
}

// components returns the number of components of a key: the share of its elements, rounded up to a multiple of 8.
func (k Keys) components(l tensor.KVLayout) int {
	return min(l.KDim, (l.KDim*k.Share+7999)/8000*8)
}

// layout returns the layout of the components, as keys without values.
func (k Keys) layout(l tensor.KVLayout) tensor.KVLayout {
	kind := tensor.BF16
	if l.Type == tensor.F32 {
		kind = tensor.F32
	}
	return tensor.KVLayout{Type: kind, KDim: k.components(l)}
}

// piece returns the number of elements of the basis in a block of the index, and their size in bytes.
func (k Keys) piece(l tensor.KVLayout) (elements, bytes int) {
	pieces := (k.Calibration + tensor.BlockSlots - 1) / tensor.BlockSlots
	elements = ((l.KDim*k.components(l)+pieces-1)/pieces + 31) / 32 * 32
	if l.Type == tensor.F32 {
		return elements, 4 * elements
	}
	return elements, 2 * elements
}

// Page implements kvcache.Selector: tokens are chosen one by one.
func (k Keys) Page() int { return 1 }

// Index implements kvcache.Selector.
func (k Keys) Index(l tensor.KVLayout) (bytes, slots int) {
	x := k.layout(l)
	_, piece := k.piece(l)
	return x.LandmarkBytes(x.Type) + piece, tensor.BlockSlots
}

// Update implements kvcache.Selector.
func (k Keys) Update(l tensor.KVLayout, index, blocks [][]byte, from, to int, s *tensor.AttnScratch) {
	if to < k.Calibration {
		return
	}
	if from < k.Calibration {
		from = 0
		k.setBasis(l, index, k.calibrate(l, blocks, s))
	}
	x, width, most := k.layout(l), k.components(l), min(tensor.BlockSlots, to-from)
	row := s.Row(most*(l.KDim+width) + l.VDim + l.KDim*width + tensor.TileFloats(most, l.KDim))
	take := func(n int) []float32 {
		part := row[:n]
		row = row[n:]
		return part
	}
	keys, out, value, basis := take(most*l.KDim), take(most*width), take(l.VDim), k.basis(l, index, take(l.KDim*width))
	for from < to {
		b, first := from/tensor.BlockSlots, from%tensor.BlockSlots
		n := min(tensor.BlockSlots-first, to-from)
		readKeys(keys, value, l, blocks[b], first, n)
		project(out[:n*width], keys, n, l.KDim, basis, width, row, s)
		for i := range n {
			x.SetLandmark(x.Type, index[b], first+i, out[i*width:][:width])
		}
		from += n
	}
}

// Scores returns the products of the queries and the first n keys in the subspace, [Heads][n]. The slice
// is in the scratch. n is at least Calibration.
func (k Keys) Scores(l tensor.KVLayout, index [][]byte, n int, q kvcache.Queries, s *tensor.AttnScratch) []float32 {
	x, width := k.layout(l), k.components(l)
	tiles, out := tensor.TileFloats(q.Heads, l.KDim), q.Heads*width
	row := s.Row(tiles + out + l.KDim*width)
	basis := k.basis(l, index, row[tiles+out:])
	project(row[tiles:][:out], q.Rows, q.Heads, l.KDim, basis, width, row[:tiles], s)
	return s.ScoreLandmarks(x, x.Type, index, n, row[tiles:][:out], q.Heads)
}

// project computes out [n][width], the components of n rows of d elements in a basis [d][width]. tile is
// scratch of TileFloats(n, d).
func project(out, rows []float32, n, d int, basis []float32, width int, tile []float32, s *tensor.AttnScratch) {
	for i := range n {
		for e := 0; e < d; e += tensor.BlockSlots {
			copy(tile[tensor.Tile(n, i, e):][:min(tensor.BlockSlots, d-e)], rows[i*d+e:(i+1)*d])
		}
	}
	clear(out)
	tensor.MulAdd(out, width, tile, n, 0, n, basis, width, d, 0, width, s)
}

// readKeys reads the keys of n slots of a block, [n][KDim]. value is scratch of VDim elements.
func readKeys(keys, value []float32, l tensor.KVLayout, block []byte, first, n int) {
	for i := range n {
		l.Get(block, first+i, keys[i*l.KDim:][:l.KDim], value)
	}
}

// calibrate computes the basis of the first keys, [KDim][components].
func (k Keys) calibrate(l tensor.KVLayout, blocks [][]byte, s *tensor.AttnScratch) []float32 {
	d := l.KDim
	keys, value := make([]float32, k.Calibration*d), make([]float32, l.VDim)
	for first := 0; first < k.Calibration; first += tensor.BlockSlots {
		readKeys(keys[first*d:], value, l, blocks[first/tensor.BlockSlots], 0, min(tensor.BlockSlots, k.Calibration-first))
	}
	if k.Centred {
		centre(keys, d)
	}
	gram, tile := make([]float32, d*d), make([]float32, tensor.TileFloats(d, k.Calibration))
	for i := range k.Calibration {
		for e, x := range keys[i*d:][:d] {
			tile[tensor.Tile(d, e, i)] = x
		}
	}
	tensor.MulAdd(gram, d, tile, d, 0, d, keys, d, k.Calibration, 0, d, s)
	width := k.components(l)
	leading, basis := Leading(gram, d, width, s), make([]float32, d*width)
	for r := range width {
		for e, x := range leading[r*d:][:d] {
			basis[e*width+r] = x
		}
	}
	return basis
}

// centre subtracts the mean of rows of d elements from each: one chain of additions per element.
func centre(rows []float32, d int) {
	mean := make([]float32, d)
	for at := 0; at < len(rows); at += d {
		for e, x := range rows[at:][:d] {
			mean[e] += x
		}
	}
	n := float32(len(rows) / d)
	for at := 0; at < len(rows); at += d {
		for e := range mean {
			rows[at+e] -= float32(mean[e] / n)
		}
	}
}

// setBasis stores the basis in its pieces.
func (k Keys) setBasis(l tensor.KVLayout, index [][]byte, basis []float32) {
	x := k.layout(l)
	each, _ := k.piece(l)
	for i := 0; i*each < len(basis); i++ {
		tensor.Store(index[i][x.LandmarkBytes(x.Type):], basis[i*each:min((i+1)*each, len(basis))], x.Type)
	}
}

// basis fills to with the stored basis, [KDim][components].
func (k Keys) basis(l tensor.KVLayout, index [][]byte, to []float32) []float32 {
	x := k.layout(l)
	each, _ := k.piece(l)
	for i := 0; i*each < len(to); i++ {
		tensor.Widen(to[i*each:min((i+1)*each, len(to))], index[i][x.LandmarkBytes(x.Type):], x.Type)
	}
	return to
}

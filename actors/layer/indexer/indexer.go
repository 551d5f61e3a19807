// Package indexer chooses the tokens that a query of latent attention reads (DeepSeek V3.2, arXiv
// 2512.02556, section 2.1). The score of a slot with key k is
//
//	sum over heads h, ascending, of w_h (q_h . k / sqrt(dim))+
//
// A product is one chain of fused multiply-adds. So every machine chooses the same slots.
package indexer

import (
	"math"
	"math/bits"
	"slices"

	"github.com/shoal-llm/shoal/internal/engine/kvcache/topk"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// Rows describes where the keys are: elements [At, At+Dim) of the rows of a layout.
type Rows struct {
	Layout  tensor.KVLayout
	At, Dim int
}

// Scratch is reused memory. It belongs to one goroutine at a time.
type Scratch struct{ row, tile, turned, products, scores []float32 }

// Choose returns the mask of the k slots with the largest scores among the first n that valid has (nil:
// all). Of equal scores the earlier slot is chosen. q are the queries of the heads, [len(w)][Dim]. If
// there are at most k slots, Choose returns nil.
func (s *Scratch) Choose(r Rows, blocks [][]byte, n int, valid []uint64, q, w []float32, k int, attn *tensor.AttnScratch) []uint64 {
	if !Chooses(n, valid, k) {
		return nil
	}
	s.scores = grow(s.scores, n)
	s.Score(r, blocks, 0, len(blocks), valid, q, w, s.scores, attn)
	return Best(s.scores, k, attn)
}

// Chooses reports whether there are more than k slots among the first n that valid has.
func Chooses(n int, valid []uint64, k int) bool { return count(n, valid) > k }

// Score computes the scores of the slots of blocks [lo, hi), of which there are len(scores) in all blocks.
func (s *Scratch) Score(r Rows, blocks [][]byte, lo, hi int, valid []uint64, q, w, scores []float32, attn *tensor.AttnScratch) {
	s.turn(q, len(w), r.Dim)
	for b := lo; b < min(hi, (len(scores)+tensor.BlockSlots-1)/tensor.BlockSlots); b++ {
		slots := uint64(math.MaxUint64)
		if left := len(scores) - b*tensor.BlockSlots; left < tensor.BlockSlots {
			slots = 1<<left - 1
		}
		if valid != nil {
			slots &= valid[b]
		}
		s.block(r, blocks[b], slots, w, scores[b*tensor.BlockSlots:min(len(scores), (b+1)*tensor.BlockSlots)], attn)
	}
}

// Best returns the mask of the k largest scores. Of equal ones the earlier is chosen.
func Best(scores []float32, k int, attn *tensor.AttnScratch) []uint64 {
	mask := make([]uint64, (len(scores)+63)/64)
	topk.Highest(scores, k, mask, attn)
	return mask
}

func count(n int, valid []uint64) (all int) {
	if valid == nil {
		return n
	}
	for i, word := range valid[:(n+63)/64] {
		if left := n - i*64; left < 64 {
			word &= 1<<left - 1
		}
		all += bits.OnesCount64(word)
	}
	return all
}

// padded returns the number of heads up to a whole vector.
func padded(heads int) int { return (heads + 7) &^ 7 }

// turn stores the queries as [dim][padded heads].
func (s *Scratch) turn(q []float32, heads, dim int) {
	width := padded(heads)
	s.turned = grow(s.turned, dim*width)
	clear(s.turned)
	for h := range heads {
		for j, x := range q[h*dim:][:dim] {
			s.turned[j*width+h] = x
		}
	}
}

// block computes the scores of the slots of a block; those of others are NaN.
func (s *Scratch) block(r Rows, block []byte, slots uint64, w, scores []float32, attn *tensor.AttnScratch) {
	for i := range scores {
		scores[i] = topk.NaN
	}
	if slots == 0 {
		return
	}
	width := padded(len(w))
	s.row, s.tile, s.products = grow(s.row, r.Layout.KDim+r.Layout.VDim), grow(s.tile, tensor.TileFloats(tensor.BlockSlots, r.Dim)),
		grow(s.products, tensor.BlockSlots*width)
	clear(s.products)
	for left := slots; left != 0; left &= left - 1 {
		slot := bits.TrailingZeros64(left)
		r.Layout.Get(block, slot, s.row[:r.Layout.KDim], s.row[r.Layout.KDim:])
		for j, x := range s.row[r.At:][:r.Dim] {
			s.tile[tensor.Tile(tensor.BlockSlots, slot, j)] = x
		}
	}
	tensor.MulAdd(s.products, width, s.tile, tensor.BlockSlots, 0, tensor.BlockSlots, s.turned, width, r.Dim, 0, width, attn)
	scale := float32(1 / math.Sqrt(float64(r.Dim)))
	for left := slots; left != 0; left &= left - 1 {
		slot := bits.TrailingZeros64(left)
		sum := float32(0)
		for h, by := range w {
			sum += float32(by * max(0, float32(s.products[slot*width+h]*scale)))
		}
		scores[slot] = sum
	}
}

func grow(x []float32, n int) []float32 { return slices.Grow(x[:0], n)[:n] }

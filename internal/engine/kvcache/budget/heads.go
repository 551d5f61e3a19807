package budget

import (
	"cmp"
	"slices"
)

// Heads divides the slots of a layer among its KV heads (Ada-KV, arXiv 2407.11550, algorithm 1): heads
// whose attention is spread over many tokens get more. The tokens with the most votes among all heads
// of the layer stay. So the sum of the kept votes is maximal. Then each head's budget is mixed with the
// mean, since a head with too few tokens loses them all (the safeguard of section 4.2).
//
// Budgets move in blocks of tokens. So the memory of a layer is that of equal budgets.
type Heads struct {
	Floor int // share of the mean in a budget, in thousandths
	Block int // slots of a block
}

// Blocks returns the mean number of whole blocks among topk slots. The rest of them is the same in every head.
func (h Heads) Blocks(topk int) int { return topk / h.Block }

// Curve returns the votes that each further block of a head's tokens adds, highest first: as many blocks as
// the candidates fill beyond the rest, at most all of a layer.
func (h Heads) Curve(votes []float32, topk, heads int) []float32 {
	curve := make([]float32, h.Steps(len(votes), topk, heads))
	sorted := slices.Clone(votes)
	slices.SortFunc(sorted, func(a, b float32) int { return cmp.Compare(b, a) })
	for i := range curve {
		for _, v := range sorted[topk%h.Block+i*h.Block:][:h.Block] {
			curve[i] += v
		}
	}
	return curve
}

// Steps returns the length of a curve.
func (h Heads) Steps(candidates, topk, heads int) int {
	if candidates <= topk {
		return 0
	}
	return min((candidates-topk%h.Block)/h.Block, heads*h.Blocks(topk))
}

// Divide returns the blocks of each head: heads*Blocks(topk) together. curves are those of all heads.
func (h Heads) Divide(curves [][]float32, topk int) []int {
	mean, blocks := h.Blocks(topk), make([]int, len(curves))
	for range len(curves) * mean {
		best := -1
		for head, curve := range curves {
			if at := blocks[head]; at < len(curve) && (best < 0 || curve[at] > curves[best][blocks[best]]) {
				best = head
			}
		}
		blocks[best]++
	}
	return h.mix(blocks, mean)
}

// mix rounds the mixtures with the mean so that their sum stays: those with the largest fractions up.
func (h Heads) mix(blocks []int, mean int) []int {
	order, left := make([]int, len(blocks)), len(blocks)*mean
	fractions := make([]int, len(blocks))
	for head, own := range blocks {
		mixed := own*(1000-h.Floor) + mean*h.Floor
		blocks[head], fractions[head], order[head] = mixed/1000, mixed%1000, head
		left -= mixed / 1000
	}
	slices.SortStableFunc(order, func(a, b int) int { return fractions[b] - fractions[a] })
	for _, head := range order[:left] {
		blocks[head]++
	}
	return blocks
}

// Deal gives the i-th list blocks[i] of the blocks that all lists begin with, mean each, in order. A block
// has size elements. The elements after these blocks stay.
func Deal[T any](lists []*[]T, blocks []int, mean, size int) {
	var all []T
	for _, l := range lists {
		all = append(all, (*l)[:mean*size]...)
	}
	for i, l := range lists {
		n := blocks[i] * size
		*l = append(all[:n:n], (*l)[mean*size:]...)
		all = all[n:]
	}
}

// Dealt returns the list and the place that block b of list i has after Deal.
func Dealt(blocks []int, mean, i, b int) (list, at int) {
	if b >= mean {
		return i, b - mean + blocks[i]
	}
	at = i*mean + b
	for list = 0; at >= blocks[list]; list++ {
		at -= blocks[list]
	}
	return list, at
}

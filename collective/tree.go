package collective

import "github.com/shoal-llm/shoal/internal/engine/tensor"

// isTiling reports whether nodes, in order, are the leaves of a pruned canonical tree over
// [0,units). It checks input: the nodes come from another machine's placement.
func isTiling(nodes []tensor.Span, units int) bool {
	next := 0
	var walk func(lo, hi int) bool
	walk = func(lo, hi int) bool {
		if next < len(nodes) && nodes[next].Lo == lo && nodes[next].Hi == hi {
			next++
			return true
		}
		if hi-lo < 2 {
			return false
		}
		mid := tensor.TreeSplit(lo, hi)
		return walk(lo, mid) && walk(mid, hi)
	}
	return units > 0 && walk(0, units) && next == len(nodes)
}

const combineTile = 512

// combiner computes tensor.CombineTree without allocating: it keeps its scratch between sums, since
// it is part of a reused operation, and accumulates the left operand in place. Tests compare the
// bits.
type combiner struct {
	nodes []tensor.Span // in order, tiling the units
	parts [][]float32
	at    int                     // first element of the current tile
	next  int                     // index of the next leaf
	tmp   [4][combineTile]float32 // right operands: MaxUnits is 16, so the tree is 4 deep
}

// sum writes the sum of the tree to dst, which overlaps none of the parts.
func (c *combiner) sum(dst []float32, units int) {
	if mutated {
		c.sumInRow(dst)
		return
	}
	for at := 0; at < len(dst); at += combineTile {
		c.at, c.next = at, 0
		c.node(dst[at:min(at+combineTile, len(dst))], 0, units, 0)
	}
}

// sumInRow sums in the wrong order; see mutated.
func (c *combiner) sumInRow(dst []float32) {
	clear(dst)
	for _, v := range c.parts {
		tensor.Add(dst, v)
	}
}

func (c *combiner) node(dst []float32, lo, hi, depth int) {
	if v := c.leaf(lo, hi, len(dst)); v != nil {
		copy(dst, v)
		return
	}
	mid := tensor.TreeSplit(lo, hi)
	c.node(dst, lo, mid, depth+1)
	v := c.leaf(mid, hi, len(dst))
	if v == nil {
		v = c.tmp[depth][:len(dst)]
		c.node(v, mid, hi, depth+1)
	}
	tensor.Add(dst, v)
}

// leaf returns the value of node [lo,hi) if a rank contributed it, else nil.
func (c *combiner) leaf(lo, hi, n int) []float32 {
	if s := c.nodes[c.next]; s.Lo != lo || s.Hi != hi {
		return nil
	}
	v := c.parts[c.next][c.at : c.at+n]
	c.next++
	return v
}

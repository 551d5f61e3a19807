package collective

import (
	"fmt"

	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// sliceGrain aligns the slices of a two-shot all-reduce to cache lines, in floats.
const sliceGrain = 16

// AllReduceTree sums over all units of the canonical tree and gives every rank the whole result in
// out. nodes[r] are the tree nodes that rank r contributes: tensor.Subtrees of its contiguous
// units, or none. mine[i] is the value of nodes[Rank][i] and is as long as out. Together the nodes
// tile [0,units). out overlaps none of mine. The result has the same bits as one machine that
// computes the tree alone.
//
// It uses one shot (every rank sends all its values and sums everything) while the busiest rank
// receives at most OneShotBytes. Above that it uses two: each rank sums a slice of the elements,
// then the slices are gathered.
func (g *Group) AllReduceTree(id OpID, units int, nodes [][]tensor.Span, mine [][]float32, out []float32, done func(error)) {
	g.begin(id, done, func(o *op) string {
		if why := g.checkTree(o, "AllReduceTree", units, nodes, mine, len(out)); why != "" {
			return why
		}
		if g.oneShot(nodes, len(out)) {
			g.oneShotReduce(o, nodes, mine, out)
		} else {
			g.scatterPhase(o, nodes, mine, out, func(r int) (int, int) { return Slice(len(out), g.cfg.Size, r) })
			g.gatherPhase(o, out)
		}
		return ""
	})
}

// ReduceScatterTree is the first half of a two-shot all-reduce: rank r gets elements [bounds[r],
// bounds[r+1]) of the sum. bounds has Size+1 ascending entries, and mine[i] has bounds[Size]
// values. out receives this rank's elements.
func (g *Group) ReduceScatterTree(id OpID, units int, nodes [][]tensor.Span, mine [][]float32,
	bounds []int, out []float32, done func(error)) {
	g.begin(id, done, func(o *op) string {
		n, me := g.cfg.Size, g.cfg.Rank
		if len(bounds) != n+1 || bounds[0] != 0 {
			return fmt.Sprintf("ReduceScatterTree: bounds %v for %d ranks, want %d entries from 0", bounds, n, n+1)
		}
		for r := range n {
			if bounds[r] > bounds[r+1] {
				return fmt.Sprintf("ReduceScatterTree: bounds fall at rank %d: %v", r, bounds)
			}
		}
		if len(out) != bounds[me+1]-bounds[me] {
			return fmt.Sprintf("ReduceScatterTree: out has %d values, bounds give this rank %d", len(out), bounds[me+1]-bounds[me])
		}
		if why := g.checkTree(o, "ReduceScatterTree", units, nodes, mine, bounds[n]); why != "" {
			return why
		}
		g.scatterPhase(o, nodes, mine, nil, func(r int) (int, int) { return bounds[r], bounds[r+1] })
		o.reduce.out = out
		return ""
	})
}

// Slice returns the range of n elements that rank r of size owns in a two-shot.
func Slice(n, size, r int) (lo, hi int) {
	cut := func(r int) int {
		if r == size {
			return n
		}
		return n * r / size / sliceGrain * sliceGrain
	}
	return cut(r), cut(r + 1)
}

// oneShot depends only on values that are equal on all ranks, so all ranks make the same choice.
func (g *Group) oneShot(nodes [][]tensor.Span, n int) bool {
	all, least := 0, len(nodes[0])
	for _, of := range nodes {
		all += len(of)
		least = min(least, len(of))
	}
	return (all-least)*n*4 <= g.cfg.OneShotBytes
}

func (g *Group) checkTree(o *op, what string, units int, nodes [][]tensor.Span, mine [][]float32, n int) string {
	if len(nodes) != g.cfg.Size || len(mine) != len(nodes[g.cfg.Rank]) {
		return fmt.Sprintf("%s: nodes of %d ranks, %d own values; want %d ranks, one value per own node", what, len(nodes), len(mine), g.cfg.Size)
	}
	for i, v := range mine {
		if len(v) != n {
			return fmt.Sprintf("%s: value %d has %d elements, want %d", what, i, len(v), n)
		}
	}
	if units < 1 || units > tensor.MaxUnits {
		return fmt.Sprintf("%s: %d units, want 1..%d", what, units, tensor.MaxUnits)
	}
	if !o.reduce.lay(units, nodes) {
		return fmt.Sprintf("%s: nodes %v are not tree nodes that tile %d units", what, nodes, units)
	}
	return ""
}

func (g *Group) oneShotReduce(o *op, nodes [][]tensor.Span, mine [][]float32, out []float32) {
	n := len(out)
	ph := o.phase(KindReduceOneShot, dtypeF32, g.cfg.Size)
	ph.combine = true
	if g.cfg.Size > 1 {
		for _, v := range mine {
			o.seg(floatBytes(v))
		}
		o.send(ph, broadcastAddress, 0, false)
	}
	o.receiveNodes(ph, g.cfg, nodes, mine, 0, n)
	o.reduce.out = out
}

// scatterPhase sends each rank its elements of all own nodes. This rank's slice of the sum goes to
// its place in out; if out is nil, the caller sets reduce.out.
func (g *Group) scatterPhase(o *op, nodes [][]tensor.Span, mine [][]float32, out []float32, slice func(r int) (int, int)) {
	me, size := g.cfg.Rank, g.cfg.Size
	ph := o.phase(KindReduceScatter, dtypeF32, size)
	ph.combine = true
	for i := 1; i < size; i++ {
		r := (me + i) % size
		lo, hi := slice(r)
		first := len(o.segs)
		for _, v := range mine {
			o.seg(floatBytes(v[lo:hi]))
		}
		o.send(ph, r, first, false)
	}
	lo, hi := slice(me)
	o.receiveNodes(ph, g.cfg, nodes, mine, lo, hi)
	if out != nil {
		o.reduce.out = out[lo:hi]
	}
}

// gatherPhase broadcasts the reduced slices.
func (g *Group) gatherPhase(o *op, out []float32) {
	me, size := g.cfg.Rank, g.cfg.Size
	ph := o.phase(KindReduceGather, dtypeF32, size)
	for r := range size {
		lo, hi := Slice(len(out), size, r)
		if r != me {
			o.expect(ph, r, floatBytes(out[lo:hi]), g.cfg.ChunkBytes, false)
		} else if size > 1 {
			first := len(o.segs)
			o.seg(floatBytes(out[lo:hi]))
			o.send(ph, broadcastAddress, first, false)
		}
	}
}

// receiveNodes allocates scratch for elements [lo,hi) of the other ranks' nodes and registers each
// node's values with the reduction.
func (o *op) receiveNodes(ph *phase, cfg Config, nodes [][]tensor.Span, mine [][]float32, lo, hi int) {
	n := hi - lo
	others := 0
	for r, of := range nodes {
		if r != cfg.Rank {
			others += len(of)
		}
	}
	if cap(o.scratch) < others*n {
		o.scratch = make([]float32, others*n)
	}
	o.scratch = o.scratch[:others*n]
	at := 0
	for r, of := range nodes {
		if r == cfg.Rank {
			for i := range of {
				o.reduce.place(of[i], mine[i][lo:hi])
			}
			continue
		}
		o.expect(ph, r, floatBytes(o.scratch[at:at+len(of)*n]), cfg.ChunkBytes, false)
		for i := range of {
			o.reduce.place(of[i], o.scratch[at:at+n])
			at += n
		}
	}
}

// reduction is a sum over the tree whose operands may still be arriving.
type reduction struct {
	combiner
	units int
	out   []float32
}

// lay sorts all ranks' nodes into tree order and checks that they tile it.
func (d *reduction) lay(units int, nodes [][]tensor.Span) bool {
	d.units, d.nodes = units, d.nodes[:0]
	for _, of := range nodes {
		for _, s := range of {
			i := len(d.nodes)
			d.nodes = append(d.nodes, s)
			for ; i > 0 && d.nodes[i-1].Lo > s.Lo; i-- {
				d.nodes[i] = d.nodes[i-1]
			}
			d.nodes[i] = s
		}
		if len(d.nodes) > units {
			return false
		}
	}
	if cap(d.parts) < len(d.nodes) {
		d.parts = make([][]float32, len(d.nodes))
	}
	d.parts = d.parts[:len(d.nodes)]
	return isTiling(d.nodes, units)
}

func (d *reduction) place(s tensor.Span, v []float32) {
	for i := range d.nodes {
		if d.nodes[i] == s {
			d.parts[i] = v
		}
	}
}

func (d *reduction) run() { d.sum(d.out, d.units) }

func (d *reduction) reset() {
	clear(d.parts)
	d.nodes, d.parts, d.out = d.nodes[:0], d.parts[:0], nil
}

package layer

import (
	"time"

	"github.com/shoal-llm/shoal/topology"
)

// usesCaches is 1 for an operation that reads or writes the caches of sequences.
func (o Op) usesCaches() int {
	return index(o == OpAttend || o == OpAttendLatents || o == OpDelta || o == OpPutKV)
}

// Follow makes the batch wait for another micro-batch of the same step in layers where they share
// caches. It must be called after Reset of both, before they run through the layers.
func (b *Batch) Follow(before *Batch) { b.order.Follow(&before.order) }

// Join takes over the result of micro-batches whose segments divide those of b, after they have run
// through the layers: their rows of the residual stream, and their times.
func (b *Batch) Join(parts ...*Batch) {
	rows, at := 0, make(map[uint64]*Segment, len(b.Segments))
	for _, p := range parts {
		rows += p.T
	}
	if rows < b.T { // the layers have dropped rows
		b.dropRows()
	}
	for i := range b.Segments {
		at[b.Segments[i].Seq] = &b.Segments[i]
	}
	for _, p := range parts {
		for _, s := range p.Segments {
			b.out = grow(b.out, 1)
			b.out[0] = p.Backend.Pack(b.out[0][:0], p.residual(s.First, s.N))
			b.Backend.Unpack(b.out[0], b.residual(at[s.Seq].First+s.Start-at[s.Seq].Start, s.N))
		}
		b.Compute, b.Wait, b.Observed, b.ExpertsRead = b.Compute+p.Compute, b.Wait+p.Wait, b.Observed+p.Observed, b.ExpertsRead+p.ExpertsRead
		for i := range b.Spent {
			b.Spent[i] += p.Spent[i]
		}
		b.own.Sum += p.own.Sum
	}
}

// residual is rows of the residual stream.
func (b *Batch) residual(first, n int) []Tile {
	return []Tile{{Of: Residual, Rows: topology.Range{Lo: first, Hi: first + n}, Cols: topology.Range{Hi: b.Dims.Hidden}}}
}

// Own returns the portion of Compute that other ranks may not have.
func (b *Batch) Own() time.Duration { return b.own.Sum }

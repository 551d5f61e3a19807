package socket

import (
	"fmt"

	"shoal/actors/layer"
	"shoal/model"
	"shoal/tensor"
	"shoal/topology"
)

// latent reads a layer's latent attention: with Gather the rows of me, with Reduce all.
func (l *loader) latent(c *model.Config, i int, m topology.Mapping, me topology.Slice) *layer.Latent {
	n, d := model.LatentLayer(i), c.Latent
	group := c.Heads / c.HeadUnits()
	heads := topology.Range{Lo: me.KVHeads.Lo * group, Hi: me.KVHeads.Hi * group}
	down := me.K
	if m == topology.Reduce {
		heads, down = topology.Range{Lo: 0, Hi: c.Heads}, topology.Range{Lo: 0, Hi: d.QueryRank + d.Rank + d.Rope}
	}
	w := &layer.Latent{KVNorm: l.vector(n.KVNorm, true), QNorm: l.vector(n.QNorm, d.QueryRank > 0)}
	up, width := n.Q, c.Hidden
	if d.QueryRank > 0 {
		up, width = n.QUp, d.QueryRank
	}
	// Rows of rotated pairs are read in the order evens, odds (see deepseek.go).
	w.QUp = l.rows(width, heads.Lo*c.HeadDim, heads.Hi*c.HeadDim, func(r int) (string, int) {
		head, at := r/c.HeadDim, r%c.HeadDim
		if at >= d.Nope {
			at = d.Nope + halves(at-d.Nope, d.Rope)
		}
		return up, head*c.HeadDim + at
	})
	w.Down = l.rows(c.Hidden, down.Lo, down.Hi, func(r int) (string, int) {
		if r < d.QueryRank {
			return n.QDown, r
		}
		if r -= d.QueryRank; r >= d.Rank {
			r = d.Rank + halves(r-d.Rank, d.Rope)
		}
		return n.KVDown, r
	})
	l.headMatrices(w, n.KVUp, d, heads)
	return w
}

// halves is the place among pairs of neighbours of element i of pairs of halves.
func halves(i, width int) int {
	if i < width/2 {
		return 2 * i
	}
	return 2*(i-width/2) + 1
}

// rows packs rows [lo, hi) of a matrix of width cols, each from where it lies.
func (l *loader) rows(cols, lo, hi int, from func(r int) (tensor string, row int)) *tensor.Weight {
	if l.err == nil {
		l.err = l.ctx.Err()
	}
	if l.err != nil || lo == hi {
		return nil
	}
	if l.measure {
		l.total += tensor.WeightBytes(l.dt, hi-lo, cols)
		return nil
	}
	tensors := map[string]model.Tensor{}
	for r := lo; r < hi; r++ {
		name, _ := from(r)
		if _, ok := tensors[name]; ok {
			continue
		}
		t, err := l.tensor(name)
		if err != nil {
			l.err = err
			return nil
		}
		tensors[name] = t
	}
	w, err := tensor.NewWeight(l.dt, hi-lo, cols)
	if err != nil {
		l.err = fmt.Errorf("socket: no memory for latent attention: %w", err)
		return nil
	}
	l.pool.Run((hi-lo+panelGrain-1)/panelGrain, func(p int) {
		row := make([]float32, cols)
		for r := p * panelGrain; r < min((p+1)*panelGrain, hi-lo); r++ {
			name, at := from(lo + r)
			t := tensors[name]
			t.Row(row, at, 0, cols)
			w.SetRow(r, row)
		}
		l.packed(w.Bytes() / int64((hi-lo+panelGrain-1)/panelGrain))
	})
	return w
}

// packed tells of bytes that were read.
func (l *loader) packed(bytes int64) {
	if done := l.done.Add(bytes); l.progress != nil {
		l.progress(min(done, l.total), l.total)
	}
}

// headMatrices cuts the projection up from the latent into heads: of keys transposed,
// because queries are absorbed by it, of values as it is.
func (l *loader) headMatrices(w *layer.Latent, name string, d model.Latent, heads topology.Range) {
	if l.err == nil {
		l.err = l.ctx.Err()
	}
	if l.err != nil {
		return
	}
	if l.measure {
		l.total += int64(heads.Len()) * (tensor.WeightBytes(l.dt, d.Rank, d.Nope) + tensor.WeightBytes(l.dt, d.Value, d.Rank))
		return
	}
	t, err := l.tensor(name)
	if err != nil {
		l.err = err
		return
	}
	w.KUp, w.VUp = make([]*tensor.Weight, heads.Len()), make([]*tensor.Weight, heads.Len())
	for i := range w.KUp {
		for _, m := range []struct {
			to         **tensor.Weight
			rows, cols int
		}{{&w.KUp[i], d.Rank, d.Nope}, {&w.VUp[i], d.Value, d.Rank}} {
			if *m.to, err = tensor.NewWeight(l.dt, m.rows, m.cols); err != nil {
				l.err = fmt.Errorf("socket: no memory for %s: %w", name, err)
				return
			}
		}
	}
	l.pool.Run(heads.Len(), func(i int) {
		first, row := (heads.Lo+i)*(d.Nope+d.Value), make([]float32, d.Rank)
		turned := make([]float32, d.Rank*d.Nope)
		for r := range d.Nope {
			t.Row(row, first+r, 0, d.Rank)
			for k, v := range row {
				turned[k*d.Nope+r] = v
			}
		}
		for k := range d.Rank {
			w.KUp[i].SetRow(k, turned[k*d.Nope:(k+1)*d.Nope])
		}
		for r := range d.Value {
			t.Row(row, first+d.Nope+r, 0, d.Rank)
			w.VUp[i].SetRow(r, row)
		}
		l.packed(w.KUp[i].Bytes() + w.VUp[i].Bytes())
	})
}

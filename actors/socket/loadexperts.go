package socket

import (
	"fmt"

	"shoal/actors/layer"
	"shoal/model"
	"shoal/tensor"
	"shoal/topology"
)

// experts reads a socket's slices of the experts of layer i: of every gate and up
// the rows Slice.Part, of every down projection the rows Slice.Down.
func (l *loader) experts(c *model.Config, i int, me topology.Slice) *layer.Experts {
	m, n := &c.MoE, c.MoELayer(i)
	all := func(n int) topology.Range { return topology.Range{Lo: 0, Hi: n} }
	hidden, units := all(tensor.Units(c.Hidden)), tensor.Units(c.FFN)
	narrow := me.Part(units, m.FFN)
	e := &layer.Experts{
		Router: l.matrixAs(tensor.F32, n.Router, c.Hidden, all(m.Experts), hidden),
		Bias:   l.vector(n.Bias, m.Router.Bias),
		Gate:   l.bank(m.Experts, narrow, c.Hidden), Up: l.bank(m.Experts, narrow, c.Hidden), Down: l.bank(m.Experts, me.Down, m.FFN),
	}
	for x := range m.Experts {
		if l.measure {
			break
		}
		gate, up, down := n.Expert(x)
		for _, p := range []struct {
			bank *tensor.Bank
			name string
			rows topology.Range
		}{{e.Gate, gate, narrow}, {e.Up, up, narrow}, {e.Down, down, me.Down}} {
			if p.bank != nil {
				l.fill(p.bank.At(x), p.name, p.rows)
			}
		}
	}
	if m.Shared > 0 {
		wide := me.Part(units, m.Shared)
		e.SharedGate, e.SharedUp = l.matrix(n.SharedGate, c.Hidden, wide, hidden), l.matrix(n.SharedUp, c.Hidden, wide, hidden)
		e.SharedDown = l.matrix(n.SharedDown, m.Shared, me.Down, all(tensor.Units(m.Shared)))
	}
	return e
}

// bank is room for n matrices of some rows; nil for none.
func (l *loader) bank(n int, rows topology.Range, cols int) *tensor.Bank {
	if l.err != nil || rows.Len() == 0 {
		return nil
	}
	if l.measure {
		l.total += int64(n) * tensor.WeightBytes(l.dt, rows.Len(), cols)
		return nil
	}
	b, err := tensor.NewBank(l.dt, n, rows.Len(), cols)
	if err != nil {
		l.err = fmt.Errorf("socket: no memory for %d experts: %w", n, err)
		return nil
	}
	return b
}

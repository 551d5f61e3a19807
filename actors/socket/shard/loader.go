package shard

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/shoal-llm/shoal/actors/layer"
	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/engine/tensor/kernel"
	"github.com/shoal-llm/shoal/internal/sys/sharedmem"
	"github.com/shoal-llm/shoal/topology"
)

// panelGrain is the number of rows that a worker packs at once: whole panels, so that no two workers
// write to the same panel.
const panelGrain = 64

type loader struct {
	ctx    context.Context
	ck     *checkpoint.Checkpoint // nil: measure
	config *model.Config          // with measure
	dt     tensor.DType
	pool   *tensor.Pool
	err    error

	device layer.Device // stores the packed weights

	measure  bool // count bytes into total; allocate and read nothing
	total    int64
	done     atomic.Int64
	progress func(done, total int64)
	cache    *Cache            // for quantized matrices; nil: none
	shared   *sharedmem.Region // for matrices that other nodes of this machine have too; nil: none
	wait     time.Duration     // see Options.sharedWait
	source   string            // identity of the checkpoint
	fidelity fidelity
	mark     checkpoint.Mark // state of the files when loading began
}

// unchanged reports whether the bytes read of a tensor belong to the model. Only then may they be
// stored in the disk cache or shared with other nodes.
func (l *loader) unchanged(name string) bool {
	if l.err == nil && !l.ck.Random() {
		t, err := l.ck.Tensor(name)
		if err == nil {
			err = l.ck.SinceOf(l.mark, t)
		}
		l.err = err
	}
	return l.err == nil
}

// matrix packs rows of a projection of width cols.
func (l *loader) matrix(m model.Linear, cols int, rows topology.Range) *tensor.Weight {
	return l.units(m, cols, rows, upTo(tensor.Units(cols)))
}

// sharedWait bounds the wait for one matrix. A node packs one in a few seconds.
const sharedWait = 10 * time.Second

// common is matrix for rows that other nodes on this machine have as well. One node packs them, and the
// machine stores them once.
func (l *loader) common(m model.Linear, cols int, rows topology.Range) *tensor.Weight {
	if l.shared == nil || l.measure || l.stopped() || rows.Len() == 0 {
		return l.matrix(m, cols, rows)
	}
	units := tensor.Units(cols)
	dt := l.typeOf(m.Weight)
	at := &tensor.Weight{Type: dt, Cols: cols, UnitHi: units}
	key := cacheKey(l.source, part(m), topology.Range{Lo: m.First + rows.Lo, Hi: m.First + rows.Hi}, at)
	ctx, cancel := context.WithTimeout(l.ctx, l.wait)
	part, err := l.shared.Take(ctx, key, int(tensor.WeightBytes(dt, rows.Len(), cols)))
	cancel()
	if err != nil { // the shared memory is full, or the node that packs the matrix hangs
		return l.matrix(m, cols, rows)
	}
	w, err := tensor.NewWeightIn(dt, rows.Len(), cols, 0, units, part.Bytes(), part.Close)
	switch {
	case err != nil:
		l.err = errors.Join(err, part.Close())
	case part.Filled():
		l.packed(w.Bytes())
	default:
		if l.fill(w, 0, m, rows); l.unchanged(m.Weight) {
			part.Done()
		}
	}
	return w
}

// units packs rows of a projection of width cols, and keeps only the columns of some units.
func (l *loader) units(m model.Linear, cols int, rows, units topology.Range) *tensor.Weight {
	w := l.room(l.typeOf(m.Weight), m.Weight, rows.Len(), cols, units)
	l.fill(w, 0, m, rows)
	return w
}

// part names the tensor of a projection in keys. Two projections whose rows alternate in one tensor
// have different names.
func part(m model.Linear) string {
	if m.Gap == 0 {
		return m.Weight
	}
	return fmt.Sprintf("%s, %d of %d rows from %d", m.Weight, m.Run, m.Run+m.Gap, m.First)
}

// room allocates a matrix. It returns nil if the socket has no rows of it.
func (l *loader) room(dt tensor.DType, name string, rows, cols int, units topology.Range) *tensor.Weight {
	if l.stopped() || rows == 0 || units.Len() == 0 {
		return nil
	}
	if l.measure {
		span := tensor.UnitsSpan(cols, units.Lo, units.Hi)
		l.total += tensor.WeightBytes(dt, rows, span.Hi-span.Lo)
		return nil
	}
	w, err := tensor.NewWeightUnits(dt, rows, cols, units.Lo, units.Hi)
	if err != nil {
		l.err = fmt.Errorf("shard: no memory for %s: %w", name, err)
		return nil
	}
	return w
}

// typeOf returns the type in which a matrix of the rows of some tensors is held. An empty name is no tensor. A
// type that keeps the codes of the files needs codes in all of them.
func (l *loader) typeOf(names ...string) tensor.DType {
	held := l.dt
	for _, name := range names {
		switch {
		case name == "" || held != l.dt:
		case l.ck == nil:
			held = l.config.HeldAs(name, l.dt)
		default:
			held = l.ck.HeldAs(name, l.dt)
		}
	}
	return held
}

// turnedType is typeOf for a matrix that is packed in another order than that of the files, in which its blocks do
// not have one scale each. Quantizing it again to 4 bits would lose most of its precision.
func (l *loader) turnedType(name string) tensor.DType {
	c := l.config
	if l.ck != nil {
		c = &l.ck.Config
	}
	if dt := l.typeOf(name); c.Quantized == nil || !c.Quantized.IsNative(dt) {
		return dt
	}
	return tensor.Q8_0
}

// stopped reports whether loading has failed or was cancelled.
func (l *loader) stopped() bool {
	if l.err == nil {
		l.err = l.ctx.Err()
	}
	return l.err != nil
}

// fill packs rows of a projection, with the columns that w has, into rows from `to` on. A matrix that
// comes from a single tensor is stored in the cache.
func (l *loader) fill(w *tensor.Weight, to int, m model.Linear, rows topology.Range) {
	if l.stopped() || w == nil || rows.Len() == 0 {
		return
	}
	if l.cache != nil && rows.Len() == w.Rows && kernel.Quantized(w.Type) && w.Bytes() > 0 && !l.ck.Random() {
		key := cacheKey(l.source, part(m), topology.Range{Lo: m.First + rows.Lo, Hi: m.First + rows.Hi}, w)
		if l.cache.load(key, w, l.pool) {
			l.packed(w.Bytes())
			return
		}
		defer func() {
			if l.unchanged(m.Weight) {
				l.cache.store(key, w)
			}
		}()
	}
	t, err := l.ck.Tensor(m.Weight)
	if err != nil {
		l.err = err
		return
	}
	span, want := w.Span(), topology.Range{Lo: m.First + rows.Lo, Hi: m.First + rows.Hi}
	if h := max(m.Order.Head, m.Run); h > 0 { // whole heads
		lo, hi := rows.Lo/h, (rows.Hi+h-1)/h
		want = topology.Range{Lo: m.First + lo*(h+m.Gap), Hi: m.First + (hi-1)*(h+m.Gap) + h}
	}
	if l.err = l.ck.Fetch(l.ctx, m.Weight, want.Lo, want.Hi, span.Lo, span.Hi); l.err != nil {
		return
	}
	first, last := to/panelGrain, (to+rows.Len()-1)/panelGrain
	l.pool.Run(last+1-first, func(p int) {
		row := make([]float32, span.Hi-span.Lo)
		lo, hi := max(to, (first+p)*panelGrain), min(to+rows.Len(), (first+p+1)*panelGrain)
		for r := lo; r < hi; r++ {
			at := m.Row(rows.Lo + r - to)
			t.Row(row, at, span.Lo, span.Hi)
			kept := w.SetRowCodes(r, row, func(c *tensor.Codes, k int) bool { return t.Codes(c, at, span.Lo+k) })
			l.fidelity.add(w, r, row, kept, r == lo)
		}
		l.packed(w.Bytes() * int64(hi-lo) / int64(w.Rows))
	})
	l.err = t.Damage()
}

// packed adds to the progress.
func (l *loader) packed(bytes int64) {
	if done := l.done.Add(bytes); l.progress != nil {
		l.progress(min(done, l.total), l.total)
	}
}

// bank allocates a matrix of the given rows for each of some tensors, all of one type; nil if there are no rows.
func (l *loader) bank(of []string, rows topology.Range, cols int) *tensor.Bank {
	if l.err != nil || rows.Len() == 0 {
		return nil
	}
	if l.measure {
		l.total += int64(len(of)) * tensor.WeightBytes(l.typeOf(of...), rows.Len(), cols)
		return nil
	}
	b, err := tensor.NewBank(l.typeOf(of...), len(of), rows.Len(), cols)
	if err != nil {
		l.err = fmt.Errorf("shard: no memory for %d experts: %w", len(of), err)
		return nil
	}
	return b
}

func (l *loader) fillBank(b *tensor.Bank, i int, name string, rows topology.Range) {
	if b != nil {
		l.fill(b.At(i), 0, model.Linear{Weight: name}, rows)
	}
}

// heads divides the up projection from the latent into heads: keys (rank, nope), transposed because
// they are applied to the queries, and values (value, rank).
func (l *loader) heads(name string, d *model.Latent, heads topology.Range) (keys, values []*tensor.Weight) {
	keys, values = make([]*tensor.Weight, heads.Len()), make([]*tensor.Weight, heads.Len())
	dt := l.turnedType(name)
	for i := range keys {
		keys[i], values[i] = l.room(dt, name, d.Rank, d.Nope, upTo(tensor.Units(d.Nope))),
			l.room(dt, name, d.Value, d.Rank, upTo(tensor.Units(d.Rank)))
	}
	if l.stopped() || l.measure || heads.Len() == 0 {
		return keys, values
	}
	t, err := l.tensor(name)
	if err != nil {
		l.err = err
		return keys, values
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
			keys[i].SetRow(k, turned[k*d.Nope:(k+1)*d.Nope])
		}
		for r := range d.Value {
			t.Row(row, first+d.Nope+r, 0, d.Rank)
			values[i].SetRow(r, row)
		}
		l.packed(keys[i].Bytes() + values[i].Bytes())
	})
	l.err = t.Damage()
	return keys, values
}

// tensor returns a tensor that is read whole, or row by row later.
func (l *loader) tensor(name string) (checkpoint.Tensor, error) {
	t, err := l.ck.Tensor(name)
	if err == nil {
		err = l.ck.Fetch(l.ctx, name, 0, t.Rows(), 0, t.Cols())
	}
	return t, err
}

// bias reads the bias of a projection. Without one it returns nil.
func (l *loader) bias(m model.Linear) []float32 { return ordered(l.vector(m.Bias), m.Order) }

// headNorm reads the weights of a norm of the heads of a projection.
func (l *loader) headNorm(name string, heads model.Linear, of *model.LayerSpec) []float32 {
	return ordered(l.norm(name, of), heads.Order)
}

// ordered returns the elements of a stored vector in the order of the computation.
func ordered(v []float32, o model.Order) []float32 {
	if v == nil || o.Head == 0 {
		return v
	}
	out := make([]float32, len(v))
	for i := range out {
		out[i] = v[o.Row(i)]
	}
	return out
}

// vector reads a whole vector. Without a name it returns nil.
func (l *loader) vector(name string) []float32 {
	if l.err != nil || name == "" || l.measure {
		return nil
	}
	t, err := l.tensor(name)
	if err != nil {
		l.err = err
		return nil
	}
	v := make([]float32, t.Shape[0])
	t.Row(v, 0, 0, len(v))
	return v
}

// rows reads a whole matrix without packing it.
func (l *loader) rows(name string) []float32 {
	if l.err != nil || l.measure {
		return nil
	}
	t, err := l.tensor(name)
	if err != nil {
		l.err = err
		return nil
	}
	n := t.Cols()
	v := make([]float32, t.Rows()*n)
	for r := range t.Rows() {
		t.Row(v[r*n:], r, 0, n)
	}
	return v
}

// norm reads the weights of a norm.
func (l *loader) norm(name string, of *model.LayerSpec) []float32 {
	v := l.vector(name)
	if of.NormsAddOne {
		for i := range v {
			v[i]++
		}
	}
	if of.NormBias && name != "" {
		v = append(v, l.vector(model.BiasOf(name))...)
	}
	return v
}

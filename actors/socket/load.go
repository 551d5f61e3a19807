package socket

import (
	"context"
	"crypto/sha256"
	"fmt"
	"sync/atomic"

	"shoal/actors/layer"
	"shoal/model"
	"shoal/tensor"
	"shoal/topology"
)

// Slices are the weights of one socket: its part of every matrix.
type Slices struct {
	Layers    []*layer.Weights
	Head      *tensor.Weight // vocabulary rows of the output head; nil when empty
	FinalNorm []float32      // (Hidden)
	Embedding model.Tensor   // read through the mapped file, a row a token

	EmbeddingScale float32 // of those rows; 1: as stored
}

// Bytes is the memory the matrices take.
func (s *Slices) Bytes() int64 {
	var n int64
	for _, l := range s.Layers {
		n += l.Bytes()
	}
	if s.Head != nil {
		n += s.Head.Bytes()
	}
	return n
}

// Close frees the matrices.
func (s *Slices) Close() {
	for _, l := range s.Layers {
		l.Close()
	}
	if s.Head != nil {
		s.Head.Close()
	}
}

// panelGrain is the run of rows one worker packs: whole panels, so that
// workers never share one.
const panelGrain = 64

// LoadSlices reads a socket's slices from the checkpoint and converts them.
// progress (may be nil) is told the bytes done and to do, in the type of the
// slices, from any goroutine and often. A cancelled ctx ends it between matrices.
func LoadSlices(ctx context.Context, ck *model.Checkpoint, p topology.Placement, rank int, dt tensor.DType, pool *tensor.Pool,
	cache *WeightsCache, progress func(done, total int64)) (_ *Slices, err error) {
	l := loader{ctx: ctx, ck: ck, dt: dt, pool: pool, cache: cache, source: ck.Hash() + " " + ck.Stamp(), progress: progress, total: SliceBytes(&ck.Config, p, rank, dt)}
	s := l.slices(&ck.Config, p, rank)
	if err = l.err; err == nil {
		s.Embedding, err = l.tensor(model.LlamaEmbedding)
		s.EmbeddingScale = ck.Config.EmbeddingScale(s.Embedding.DType)
	}
	if err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// SliceBytes is what Slices.Bytes of a rank will be, by the same code that loads.
func SliceBytes(c *model.Config, p topology.Placement, rank int, dt tensor.DType) int64 {
	l := loader{ctx: context.Background(), dt: dt, measure: true}
	l.slices(c, p, rank)
	return l.total
}

// slices reads them all, or with measure only counts their bytes. After an error
// (l.err) it is incomplete.
func (l *loader) slices(c *model.Config, p topology.Placement, rank int) *Slices {
	me := p.Slices[rank]
	s := &Slices{}
	all := func(n int) topology.Range { return topology.Range{Lo: 0, Hi: n} }
	q, k, v, out, down := me.Q, me.K, me.V, me.Out, me.Down
	units := all(tensor.Units(c.FFN))
	if p.Mapping == topology.Reduce {
		q, k, v, out, down = all(c.Heads*c.HeadDim), all(c.KVHeads*c.HeadDim), all(c.KVHeads*c.HeadDim), all(c.Hidden), all(c.Hidden)
		units = me.FFNUnits
	}
	attnCols := c.Heads * c.ValueDim()
	attn := all(tensor.Units(attnCols))
	hidden := all(tensor.Units(c.Hidden))
	for i := range c.Layers {
		n := c.LayerNames(i)
		w := &layer.Weights{
			Index:    i,
			O:        l.matrix(n.O, attnCols, out, attn),
			AttnNorm: l.norm(n.AttnNorm, true), FFNNorm: l.norm(n.MLPNorm, true),
			PostAttnNorm: l.norm(n.PostAttnNorm, c.PostNorms), PostFFNNorm: l.norm(n.PostMLPNorm, c.PostNorms),
			QBias: l.vector(n.QBias, c.QKVBias), KBias: l.vector(n.KBias, c.QKVBias), VBias: l.vector(n.VBias, c.QKVBias),
			QNorm: l.norm(n.QNorm, c.QKNorm), KNorm: l.norm(n.KNorm, c.QKNorm),
			OBias:  l.vector(n.OBias, c.OutBias),
			Window: c.Window(i), Rope: c.RopeOf(i),
		}
		s.Layers = append(s.Layers, w)
		if c.Latent.Rank > 0 {
			w.Latent = l.latent(c, i, p.Mapping, me)
		} else {
			w.Q, w.K, w.V = l.matrix(n.Q, c.Hidden, q, hidden), l.matrix(n.K, c.Hidden, k, hidden), l.matrix(n.V, c.Hidden, v, hidden)
		}
		if c.Sparse(i) {
			w.Experts = l.experts(c, i, me)
		} else {
			w.Gate, w.Up = l.matrix(n.Gate, c.Hidden, me.FFN, hidden), l.matrix(n.Up, c.Hidden, me.FFN, hidden)
			w.Down = l.matrix(n.Down, c.FFN, down, units)
			w.GateBias, w.UpBias, w.DownBias = l.vector(n.GateBias, c.MLPBias), l.vector(n.UpBias, c.MLPBias), l.vector(n.DownBias, c.MLPBias)
		}
		if l.err != nil {
			return s
		}
	}
	head := model.LlamaHead
	if c.Tied {
		head = model.LlamaEmbedding
	}
	s.Head = l.matrix(head, c.Hidden, me.Vocab, hidden)
	s.FinalNorm = l.norm(model.LlamaNorm, true)
	return s
}

type loader struct {
	ctx  context.Context
	ck   *model.Checkpoint
	dt   tensor.DType
	pool *tensor.Pool
	err  error

	measure  bool // count into total, allocate and read nothing
	total    int64
	done     atomic.Int64
	progress func(done, total int64)
	cache    *WeightsCache // of quantised matrices; nil: none
	source   string        // what they were made from
}

// matrix packs rows of a tensor of width cols, of which it keeps some units.
func (l *loader) matrix(name string, cols int, rows, units topology.Range) *tensor.Weight {
	return l.matrixAs(l.dt, name, cols, rows, units)
}

func (l *loader) matrixAs(dt tensor.DType, name string, cols int, rows, units topology.Range) *tensor.Weight {
	if l.err == nil {
		l.err = l.ctx.Err()
	}
	if l.err != nil || rows.Len() == 0 || units.Len() == 0 {
		return nil
	}
	if l.measure {
		span := tensor.UnitsSpan(cols, units.Lo, units.Hi)
		l.total += tensor.WeightBytes(dt, rows.Len(), span.Hi-span.Lo)
		return nil
	}
	w, err := tensor.NewWeightUnits(dt, rows.Len(), cols, units.Lo, units.Hi)
	if err != nil {
		l.err = fmt.Errorf("socket: no memory for %s: %w", name, err)
		return nil
	}
	l.fill(w, name, rows)
	return w
}

// fill packs rows of a tensor, and of them the columns that w has.
func (l *loader) fill(w *tensor.Weight, name string, rows topology.Range) {
	if l.err == nil {
		l.err = l.ctx.Err()
	}
	if l.err != nil {
		return
	}
	var key [sha256.Size]byte
	cached := l.cache != nil && tensor.Quantised(w.Type) && w.Bytes() > 0 && !l.ck.Random()
	if cached {
		key = cacheKey(l.source, name, rows, w)
		if l.cache.load(key, w, l.pool) {
			if done := l.done.Add(w.Bytes()); l.progress != nil {
				l.progress(min(done, l.total), l.total)
			}
			return
		}
		defer func() {
			if l.err == nil {
				l.cache.store(key, w)
			}
		}()
	}
	span := w.Span()
	if l.err = l.ck.Want(l.ctx, name, rows.Lo, rows.Hi, span.Lo, span.Hi); l.err != nil {
		return
	}
	t, err := l.ck.Tensor(name)
	if err != nil {
		l.err = err
		return
	}
	bytes := w.Bytes() / int64((rows.Len()+panelGrain-1)/panelGrain)
	l.pool.Run((rows.Len()+panelGrain-1)/panelGrain, func(p int) {
		row := make([]float32, span.Hi-span.Lo)
		for r := p * panelGrain; r < min((p+1)*panelGrain, rows.Len()); r++ {
			t.Row(row, rows.Lo+r, span.Lo, span.Hi)
			w.SetRow(r, row)
		}
		if done := l.done.Add(bytes); l.progress != nil {
			l.progress(min(done, l.total), l.total)
		}
	})
}

// tensor is one that is read whole, or row by row later.
func (l *loader) tensor(name string) (model.Tensor, error) {
	t, err := l.ck.Tensor(name)
	if err == nil {
		err = l.ck.Want(l.ctx, name, 0, t.Rows(), 0, t.Cols())
	}
	return t, err
}

func (l *loader) vector(name string, present bool) []float32 {
	if l.err != nil || !present || l.measure {
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

// norm is a vector that multiplies what was normed.
func (l *loader) norm(name string, present bool) []float32 {
	v := l.vector(name, present)
	if v != nil && l.ck.Config.NormsAddOne {
		for i := range v {
			v[i]++
		}
	}
	return v
}

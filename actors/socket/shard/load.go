package shard

import (
	"cmp"
	"context"
	"math"
	"slices"
	"time"

	"github.com/shoal-llm/shoal/actors/layer"
	"github.com/shoal-llm/shoal/actors/layer/experts"
	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/sys/sharedmem"
	"github.com/shoal-llm/shoal/topology"
)

// Weights are the weights of one socket: its slice of every matrix.
type Weights struct {
	Layers    []layer.Layer // in order, including SwiftKV's pass
	Ends      layer.Held
	Embedding checkpoint.Tensor // read row by row from its file
	Fidelity  Fidelity
}

// Bytes returns the memory of the matrices.
func (s *Weights) Bytes() int64 {
	var n int64
	for _, l := range s.Layers {
		n += l.Bytes()
	}
	return n + s.Ends.Bytes()
}

func (s *Weights) Close() {
	for _, l := range s.Layers {
		l.Close()
	}
	s.Ends.Close()
}

// Options are the resources and callbacks of a load.
type Options struct {
	Pool     *tensor.Pool            // packs rows
	Device   layer.Device            // stores the weights; nil: a layer.Host
	Cache    *Cache                  // for quantized matrices; nil: none
	Shared   *sharedmem.Region       // memory shared with other nodes of this machine; nil: none
	Progress func(done, total int64) // called often and from any goroutine with the bytes done and in total, in the type of the slices; or nil

	// sharedWait is how long a load waits for another node to pack a shared matrix; 0: the default. A node that is stopped
	// or hangs must not hold up the others.
	sharedWait time.Duration
}

func (o *Options) device() layer.Device {
	if o.Device == nil {
		return layer.Host{Pool: o.Pool}
	}
	return o.Device
}

// Load reads a socket's slices from the checkpoint and converts them. If ctx is cancelled, it stops
// before the next matrix.
func Load(ctx context.Context, ck *checkpoint.Checkpoint, p topology.Placement, rank int,
	dt tensor.DType, o Options) (_ *Weights, err error) {
	mark, err := ck.Recheck(ctx)
	if err != nil {
		return nil, err
	}
	l := loader{ctx: ctx, ck: ck, dt: dt, pool: o.Pool, device: o.device(), cache: o.Cache, shared: o.Shared,
		wait: cmp.Or(o.sharedWait, sharedWait), source: ck.Hash(), mark: mark,
		progress: o.Progress, total: Bytes(&ck.Config, p, rank, dt)}
	s, ends := l.slices(&ck.Config, p, rank)
	l.embedding(s, ends, ck)
	if l.err == nil {
		l.err = ck.Since(mark)
	}
	if l.err != nil {
		s.Close()
		return nil, l.err
	}
	s.Fidelity = l.fidelity.result(dt)
	return s, nil
}

// Bytes returns the value of Weights.Bytes for a rank. It runs the code of Load without reading.
func Bytes(c *model.Config, p topology.Placement, rank int, dt tensor.DType) int64 {
	l := loader{ctx: context.Background(), config: c, dt: dt, measure: true}
	l.slices(c, p, rank)
	return l.total
}

// cut is the ranges that a socket has of each kind of matrix. A tensor's slice follows from its role.
type cut struct {
	q, k, out      topology.Range // rows of the projections; v has the rows of k
	latents, heads topology.Range // latent attention: rows of the down projection, heads
	delta          topology.Range // gated delta rule: rows of its joint projection
	ffn            topology.Range // rows of gate and up
	down, units    topology.Range // rows of down, units of the FFN that are its columns
	expert, shared topology.Range // rows of gate and up of every expert, of the shared experts
	expertDown     topology.Range // rows of down, of all experts
	vocab          topology.Range // rows of the head
	whole          bool           // every socket has all of attention
}

// cutOf returns the part of layer i that a rank loads.
func cutOf(c *model.Config, i int, p topology.Placement, rank int) cut {
	s := layer.SliceOf(c, i, p.Slices[rank])
	ffn, kv := c.FFNOf(i), c.KVOf(i)
	units, group := tensor.Units(ffn), c.Heads/max(1, c.HeadUnits())
	cut := cut{
		q: s.Q, k: s.K, out: s.Out, latents: s.K, heads: topology.Range{Lo: s.KVHeads.Lo * group, Hi: s.KVHeads.Hi * group},
		ffn: s.FFN, down: s.Down, units: upTo(units), expert: s.Part(units, c.MoE.FFN), shared: s.Part(units, c.MoE.Shared),
		expertDown: s.Down, vocab: s.Vocab,
	}
	if d := layer.DimsOf(c); d.Recurrent.Layers > 0 {
		cut.delta = d.DeltaRows(p, rank)
	}
	if p.Mapping == topology.Reduce {
		cut.whole = true
		cut.q, cut.k, cut.out = upTo(c.Heads*kv.Dim), upTo(kv.Heads*kv.Dim), upTo(c.Hidden)
		cut.latents, cut.heads = upTo(c.Latent.Columns()), upTo(c.Heads)
		cut.down, cut.units = upTo(c.Hidden), s.FFNUnits
	}
	return cut
}

func upTo(n int) topology.Range { return topology.Range{Lo: 0, Hi: n} }

// slices reads all slices except the embedding; with measure it only counts their bytes. After an error
// (l.err) the result is incomplete. The ends have not been passed to the device.
func (l *loader) slices(c *model.Config, p topology.Placement, rank int) (*Weights, *layer.Ends) {
	ends := &layer.Ends{LogitScale: c.Multipliers.Logits, LogitCap: c.LogitCap}
	s, me := &Weights{Ends: ends}, cutOf(c, 0, p, rank)
	for i := 0; i < c.Layers && l.err == nil; i++ {
		n := c.Layer(i)
		me := cutOf(c, i, p, rank)
		if n.KVSource != nil && n.KVSource.Layer == i {
			s.Layers = append(s.Layers, l.hold(&layer.Weights{SwiftKV: l.swiftKV(c, i, me)}))
		}
		s.Layers = append(s.Layers, l.hold(l.layer(c, i, &n, me)))
	}
	if w := c.PerLayer.Width; w > 0 {
		ends.PerLayer = &layer.PerLayerInputs{Project: l.matrix(model.Linear{Weight: model.PerLayerProject}, c.Hidden, upTo(c.Layers*w)),
			Norm: l.vector(model.PerLayerNorm)}
	}
	last := c.Layer(c.Layers - 1)
	if ends.FinalNorm = l.norm(model.FinalNorm, &last); !c.Headless {
		ends.Head = l.matrix(model.Linear{Weight: c.HeadName()}, c.Hidden, me.vocab)
	}
	return s, ends
}

// hold passes a layer to the device. After an error, and with measure, it returns the layer unchanged.
func (l *loader) hold(w *layer.Weights) layer.Layer {
	if l.measure || l.err != nil {
		return w
	}
	held, err := l.device.Layer(w)
	if err != nil {
		l.err = err
		return &layer.Weights{}
	}
	return held
}

// embedding adds a checkpoint's embedding to the ends and passes them to the device.
func (l *loader) embedding(s *Weights, ends *layer.Ends, of *checkpoint.Checkpoint) {
	if l.err != nil {
		return
	}
	from := loader{ctx: l.ctx, ck: of}
	if s.Embedding, l.err = from.tensor(model.Embedding); l.err != nil {
		return
	}
	if p := ends.PerLayer; p != nil {
		if p.Table, l.err = from.tensor(model.PerLayerTable); l.err != nil {
			return
		}
		p.Scale = of.Config.PerLayerScale(p.Table.DType)
	}
	ends.Inputs = from.inputs(&of.Config)
	if l.err = from.err; l.err != nil {
		return
	}
	ends.Embedding, ends.EmbeddingScale = s.Embedding, of.Config.EmbeddingScale(s.Embedding.DType)
	held, err := l.device.Ends(ends)
	if err != nil {
		s.Ends, l.err = &layer.Ends{}, err
		return
	}
	s.Ends = held
}

func (l *loader) layer(c *model.Config, i int, n *model.LayerSpec, me cut) *layer.Weights {
	w := &layer.Weights{
		Number: i, Index: n.Cache, KVComputed: n.KVSource != nil, SharesCache: n.Borrows || n.KVSource != nil && n.K.Weight == "",
		Window: n.Window, Rope: n.Rope, Grows: n.Grows, Activation: n.Activation,
		AttnNorm: l.norm(n.AttnNorm, n), PostAttnNorm: l.norm(n.PostAttnNorm, n), QNorm: l.headNorm(n.QNorm, n.Q, n),
		KNorm:    l.headNorm(n.KNorm, n.K, n),
		SameNorm: n.SameNorm, MixFactor: n.MixFactor, FFNFactor: n.FFNFactor, GateFactor: n.GateFactor,
		FFNNorm: l.norm(n.FFNNorm, n), PostFFNNorm: l.norm(n.PostFFNNorm, n),
		QBias: l.bias(n.Q), OBias: l.bias(n.O),
		Borrows: n.Borrows, Lends: c.Lends(i), VFromK: n.Latent == nil && n.K.Weight != "" && n.V.Weight == "",
		Widths: layer.WidthsOf(c, i),
	}
	if c.Chunked {
		w.Window = -n.Window
	}
	w.EndsPrompts = i+1 == c.OwnKV
	if w.Borrows || w.Lends {
		w.Lent = c.KVOwner(i)
	}
	ones := slices.Repeat([]float32{1}, n.KV.Dim)
	if n.VNorm {
		w.VNorm = ones
	}
	if n.UnitNorm {
		w.QNorm, w.KNorm = ones, ones
	}
	if s := l.vector(n.Scalar); s != nil {
		w.Scalar = s[0]
	}
	if p := n.PerLayer; p != nil {
		w.PerLayer = &layer.PerLayer{Gate: l.matrix(p.Gate, c.Hidden, upTo(c.PerLayer.Width)),
			Project: l.matrix(p.Project, c.PerLayer.Width, upTo(c.Hidden)),
			Norm:    l.norm(p.Norm, n), Layer: i}
	}
	attention := l.matrix
	if me.whole {
		attention = l.common
	}
	if n.Latent != nil {
		w.Latent = l.latent(c, n.Latent, me)
	} else if n.Delta != nil {
		w.Delta, w.O = l.delta(c, n.Delta, me), attention(n.Delta.Out, c.Delta.ValueHeads*c.Delta.ValueDim, me.out)
	} else {
		w.Q = attention(n.Q, c.Hidden, me.q)
	}
	if n.QGate.Weight != "" {
		w.QGate = attention(n.QGate, c.Hidden, me.q)
	}
	if n.Latent == nil && n.Delta == nil && n.KVSource == nil && !n.Borrows {
		if w.K = attention(n.K, c.Hidden, me.k); !w.VFromK {
			w.V = attention(n.V, c.Hidden, me.k)
		}
		w.KBias, w.VBias = l.bias(n.K), l.bias(n.V)
	}
	if n.Delta == nil {
		w.O = attention(n.O, c.Heads*c.ValueOf(n), me.out)
	}
	if n.Experts != nil {
		w.Experts = l.experts(c, n.Experts, me)
		return w
	}
	if w.Bare = n.Gate.Weight == ""; w.Bare {
		return w
	}
	if w.Gate = l.matrix(n.Gate, c.Hidden, me.ffn); n.Up.Weight != "" {
		w.Up = l.matrix(n.Up, c.Hidden, me.ffn)
	}
	w.Down = l.units(n.Down, n.FFN, me.down, me.units)
	w.GateBias, w.UpBias, w.DownBias = l.bias(n.Gate), l.bias(n.Up), l.bias(n.Down)
	return w
}

// swiftKV reads the weights that compute the keys and values of the layers from first on.
func (l *loader) swiftKV(c *model.Config, first int, me cut) *layer.SwiftKV {
	s := &layer.SwiftKV{First: c.CacheOf(first)}
	for i := first; i < c.Layers; i++ {
		n := c.Layer(i)
		if s.Norm == nil {
			s.Norm = l.norm(n.KVSource.Norm, &n)
		}
		if n.K.Weight != "" {
			s.Caches = append(s.Caches, layer.KV{K: l.matrix(n.K, c.Hidden, me.k), V: l.matrix(n.V, c.Hidden, me.k),
				KBias: l.bias(n.K), VBias: l.bias(n.V), KNorm: l.headNorm(n.KNorm, n.K, &n)})
		}
	}
	return s
}

// experts reads a layer's experts. Both mappings slice them in the same way.
func (l *loader) experts(c *model.Config, n *model.MoENames, me cut) *experts.Weights {
	m := &c.MoE
	gates, ups, downs := make([]string, m.Experts), make([]string, m.Experts), make([]string, m.Experts)
	for x := range m.Experts {
		gates[x], ups[x], downs[x] = n.Expert(x)
	}
	e := &experts.Weights{Gate: l.bank(gates, me.expert, c.Hidden), Down: l.bank(downs, me.expertDown, m.FFN)}
	if !m.Ungated {
		e.Up = l.bank(ups, me.expert, c.Hidden)
	}
	e.Router = l.room(tensor.F32, n.Router, m.Experts, c.Hidden, upTo(tensor.Units(c.Hidden)))
	l.fill(e.Router, 0, model.Linear{Weight: n.Router}, upTo(m.Experts))
	if m.Router.Bias {
		e.Bias = l.vector(n.Bias)
	}
	for x := range m.Experts {
		l.fillBank(e.Gate, x, gates[x], me.expert)
		if !m.Ungated {
			l.fillBank(e.Up, x, ups[x], me.expert)
		}
		l.fillBank(e.Down, x, downs[x], me.expertDown)
	}
	if m.Shared > 0 {
		if e.SharedGate = l.matrix(model.Linear{Weight: n.SharedGate}, c.Hidden, me.shared); !m.Ungated {
			e.SharedUp = l.matrix(model.Linear{Weight: n.SharedUp}, c.Hidden, me.shared)
		}
		e.SharedDown = l.matrix(model.Linear{Weight: n.SharedDown}, m.Shared, me.expertDown)
	}
	if m.Gated {
		e.SharedFactor = l.room(tensor.F32, n.SharedFactor, 1, c.Hidden, upTo(tensor.Units(c.Hidden)))
		l.fill(e.SharedFactor, 0, model.Linear{Weight: n.SharedFactor}, upTo(1))
	}
	if b := n.Biases; b != nil {
		e.Biases = &experts.Biases{Router: l.vector(b.Router), Gate: l.rows(b.Gate), Up: l.rows(b.Up), Down: l.rows(b.Down)}
		if l.measure {
			l.total += 4 * int64(m.Experts) * int64(1+2*m.FFN+c.Hidden)
		}
	}
	if b := n.DenseFFN; b != nil {
		e.DenseFFN = &experts.DenseFFN{RouterScale: l.vector(b.RouterScale), ExpertScale: l.vector(b.ExpertScale),
			SharedNorm: l.vector(b.SharedNorm),
			Norm:       l.vector(b.Norm), PostNorm: l.vector(b.PostNorm)}
		for i := range e.DenseFFN.RouterScale {
			e.DenseFFN.RouterScale[i] *= float32(1 / math.Sqrt(float64(c.Hidden)))
		}
	}
	return e
}

// latent reads a layer's latent attention. Its down projection combines two matrices of the checkpoint.
func (l *loader) latent(c *model.Config, n *model.LatentSpec, me cut) *layer.Latent {
	d := &c.Latent
	w := &layer.Latent{KVNorm: l.vector(n.KVNorm), QNorm: l.vector(n.QNorm)}
	parts, rows := n.Down(d)
	names := make([]string, len(parts))
	for i, m := range parts {
		names[i] = m.Weight
	}
	w.Down = l.room(l.typeOf(names...), n.KVDown.Weight, me.latents.Len(), c.Hidden, upTo(tensor.Units(c.Hidden)))
	at, from := 0, 0
	for i, m := range parts {
		own := me.latents.Intersect(topology.Range{Lo: from, Hi: from + rows[i]})
		if own.Len() > 0 {
			l.fill(w.Down, at, m, topology.Range{Lo: own.Lo - from, Hi: own.Hi - from})
		}
		at, from = at+own.Len(), from+rows[i]
	}
	if x := n.Index; x != nil {
		w.Index = &layer.Indexer{Q: l.matrix(x.Q, d.QueryRank, upTo(d.Index.Heads*d.Index.Dim)),
			Norm: l.vector(x.Norm), Shift: l.vector(x.NormShift)}
	}
	width := c.Hidden
	if d.QueryRank > 0 {
		width = d.QueryRank
	}
	w.QUp = l.matrix(n.QUp, width, topology.Range{Lo: me.heads.Lo * c.HeadDim, Hi: me.heads.Hi * c.HeadDim})
	w.KUp, w.VUp = l.heads(n.KVUp.Weight, d, me.heads)
	return w
}

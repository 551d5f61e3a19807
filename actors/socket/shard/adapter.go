package shard

import (
	"context"
	"fmt"
	"strings"

	"github.com/shoal-llm/shoal/actors/layer/lowrank"
	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
	"github.com/shoal-llm/shoal/internal/engine/lora"
	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/topology"
)

// MaxAdapterRank is the largest rank of an adapter that is served.
const MaxAdapterRank = 256

// target is a matrix of a layer that an adapter may change.
type target struct {
	layer      int
	matrix     lowrank.Matrix
	from       model.Linear
	rows, cols int
	part       topology.Range // rows of this rank
	units      topology.Range // units of the columns of this rank
}

// targets lists the matrices of a model that adapters may change, in the order of its layers. The
// factors are cut as their matrix is.
func targets(c *model.Config, p topology.Placement, rank int) (all []target) {
	for i := range c.Layers {
		n, me := c.Layer(i), cutOf(c, i, p, rank)
		add := func(m lowrank.Matrix, from model.Linear, rows, cols int, part, units topology.Range) {
			if from.Weight != "" {
				all = append(all, target{i, m, from, rows, cols, part, units})
			}
		}
		h, whole := c.Hidden, upTo(tensor.Units(c.Hidden))
		if n.Latent == nil && n.Delta == nil {
			q, kv := c.Heads*n.KV.Dim, n.KV.Heads*n.KV.Dim
			add(lowrank.Q, n.Q, q, h, me.q, whole)
			add(lowrank.QGate, n.QGate, q, h, me.q, whole)
			if n.KVSource == nil && !n.Borrows {
				add(lowrank.K, n.K, kv, h, me.k, whole)
				add(lowrank.V, n.V, kv, h, me.k, whole)
			}
		}
		if n.Delta == nil {
			wide := c.Heads * c.ValueOf(&n)
			add(lowrank.O, n.O, h, wide, me.out, upTo(tensor.Units(wide)))
		}
		if n.Experts == nil {
			add(lowrank.Gate, n.Gate, n.FFN, h, me.ffn, whole)
			add(lowrank.Up, n.Up, n.FFN, h, me.ffn, whole)
			add(lowrank.Down, n.Down, h, n.FFN, me.down, me.units)
		}
	}
	return all
}

// storedRows returns the number of rows of the stored matrix that the target reads, up to its last.
func (t *target) storedRows() (n int) {
	for r := range t.rows {
		n = max(n, t.from.Row(r)+1)
	}
	return max(n, t.from.Of)
}

// moduleOf returns the name of a module as this program names it. PEFT names it as the class that the
// adapter was trained with, which may have the decoder in a larger model.
func moduleOf(module string) string {
	if prefix, rest, ok := strings.Cut(module, "layers."); ok {
		switch prefix {
		case "model.", "language_model.model.", "model.language_model.", "model.language_model.model.", "language_model.", "":
			return "model.layers." + rest
		}
	}
	return module
}

// CheckAdapter compares an adapter with the model. It refuses ranks above MaxAdapterRank, and matrices
// that the model does not have or that adapters cannot change.
func CheckAdapter(c *model.Config, a *lora.Adapter) error {
	if c.SwiftKV.Layers > 0 {
		return &model.Error{File: a.Dir, Kind: model.ErrUnsupported,
			Detail: "an adapter cannot be chosen by request on a SwiftKV model: merge it into its base and distil that, or serve the model " +
				"without SwiftKV"}
	}
	rows, cols := map[string]int{}, map[string]int{}
	for _, t := range targets(c, whole(c), 0) {
		name := strings.TrimSuffix(t.from.Weight, ".weight")
		rows[name], cols[name] = max(rows[name], t.storedRows()), t.cols
	}
	bad := &model.Problems{Dir: a.Dir}
	seen := map[string]bool{}
	for i := range a.Pairs {
		p := &a.Pairs[i]
		name := moduleOf(p.Module)
		fail := func(kind error, format string, args ...any) {
			bad.List = append(bad.List, &model.Error{File: a.Dir, Tensor: p.Module, Kind: kind, Detail: fmt.Sprintf(format, args...)})
		}
		const merge = "merge the adapter into its base with PEFT (merge_and_unload) and serve the result"
		switch r := rows[name]; {
		case seen[name]:
			fail(model.ErrMismatch, "is there twice, under two names")
		case p.Rank() > MaxAdapterRank:
			fail(model.ErrUnsupported, "has rank %d, at most %d can be chosen by request: "+merge, p.Rank(), MaxAdapterRank)
		case r == 0 && strings.Contains(name, ".experts"):
			fail(model.ErrUnsupported, "is a matrix of experts, which an adapter cannot change by request: "+merge)
		case r == 0 && (strings.HasSuffix(name, "lm_head") || strings.Contains(name, "embed_tokens")):
			fail(model.ErrUnsupported, "is the head or the embedding, which an adapter cannot change by request: "+merge)
		case r == 0:
			fail(model.ErrMismatch,
				"is not a matrix that an adapter can change here (projections of attention and of a dense feed-forward network): is this another "+
					"model's adapter?")
		case p.B.Rows() != r || p.A.Cols() != cols[name]:
			fail(model.ErrMismatch, "changes a matrix of shape [%d %d], which has shape [%d %d] in the model", p.B.Rows(), p.A.Cols(), r, cols[name])
		}
		seen[name] = true
	}
	if len(bad.List) > 0 {
		return bad
	}
	return nil
}

// whole returns the placement of a model on one socket.
func whole(c *model.Config) topology.Placement {
	p, err := topology.Place(1, topology.Gather, ShapeOf(c), make([]topology.Member, 1))
	if err != nil {
		panic(err) // one socket can have every shape
	}
	return p
}

// AdapterBytes returns the memory of a whole adapter on one socket. No slice takes more.
func AdapterBytes(c *model.Config, a *lora.Adapter) int64 {
	w := adapterLoader{pairs: pairsOf(a), measure: true}
	w.load(c, whole(c), 0)
	return int64(w.at)
}

func pairsOf(a *lora.Adapter) map[string]*lora.Pair {
	pairs := map[string]*lora.Pair{}
	for i := range a.Pairs {
		pairs[moduleOf(a.Pairs[i].Module)+".weight"] = &a.Pairs[i]
	}
	return pairs
}

// LoadAdapter packs a socket's part of an adapter that CheckAdapter has accepted. If ctx is cancelled,
// it stops before the next matrix.
func LoadAdapter(ctx context.Context, c *model.Config, a *lora.Adapter, p topology.Placement, rank int) (*lowrank.Adapter, error) {
	w := adapterLoader{ctx: ctx, pairs: pairsOf(a), measure: true}
	w.load(c, p, rank)
	const column = 64 // bytes of a column of a panel in float32
	memory, err := tensor.NewWeight(tensor.F32, tensor.RowGrain, max(1, (w.at+column-1)/column))
	if err != nil {
		return nil, fmt.Errorf("shard: no memory for the adapter %s: %w", a.Dir, err)
	}
	w.measure, w.at, w.memory = false, 0, memory.Packed()
	out := &lowrank.Adapter{Key: a.ID.String(), Memory: memory}
	out.Layers = w.load(c, p, rank)
	if w.err == nil && !a.Unchanged() {
		w.err = fmt.Errorf("shard: %s: %w while it was read: load the adapter again", a.Dir, model.ErrChanged)
	}
	if w.err != nil {
		_ = memory.Close()
		return nil, w.err
	}
	return out, nil
}

// adapterLoader packs the factors of an adapter into one block of memory; with measure it only counts
// the bytes.
type adapterLoader struct {
	ctx     context.Context
	pairs   map[string]*lora.Pair // by the name of the stored matrix
	measure bool
	memory  []byte
	at      int
	err     error
}

func (w *adapterLoader) load(c *model.Config, p topology.Placement, rank int) []lowrank.Layer {
	layers := make([]lowrank.Layer, c.Layers)
	a := map[string]*lowrank.Pair{} // of fused matrices
	for _, t := range targets(c, p, rank) {
		from := w.pairs[t.from.Weight]
		if from == nil {
			continue
		}
		pair := &lowrank.Pair{Rank: from.Rank(), Scale: from.Scale, Fused: t.from.Of > 0 || t.from.Gap > 0}
		if one := a[t.from.Weight]; one != nil {
			pair.A = one.A
		} else {
			a[t.from.Weight] = pair
			pair.A = w.pack(from.A, upTo(from.Rank()), func(r int) int { return r }, t.cols, t.units)
		}
		columns := lowrank.Padded(from.Rank())
		pair.B = w.pack(from.B, t.part, t.from.Row, columns, upTo(tensor.Units(columns)))
		layers[t.layer][t.matrix] = pair
	}
	return layers
}

// pack packs rows of a factor, with the columns of some units of an axis of cols. Columns that the
// factor does not have are zero.
func (w *adapterLoader) pack(t checkpoint.Tensor, rows topology.Range, stored func(int) int,
	cols int, units topology.Range) *tensor.Weight {
	if rows.Len() == 0 || units.Len() == 0 || w.err != nil {
		return nil
	}
	span, dt := tensor.UnitsSpan(cols, units.Lo, units.Hi), t.DType
	size := int(tensor.WeightBytes(dt, rows.Len(), span.Len()))
	at := w.at
	if w.at += (size + 63) &^ 63; w.measure {
		return nil
	}
	if w.err = w.ctx.Err(); w.err != nil {
		return nil
	}
	m, err := tensor.NewWeightIn(dt, rows.Len(), cols, units.Lo, units.Hi, w.memory[at:at+size:at+size], nil)
	if err != nil {
		w.err = err
		return nil
	}
	row := make([]float32, span.Len())
	for r := range rows.Len() {
		t.Row(row[:min(span.Hi, t.Cols())-span.Lo], stored(rows.Lo+r), span.Lo, min(span.Hi, t.Cols()))
		m.SetRow(r, row)
	}
	return m
}

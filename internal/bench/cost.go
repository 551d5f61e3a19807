package bench

import (
	"fmt"
	"time"

	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/options"
	"github.com/shoal-llm/shoal/topology"
)

// Costs counts the bytes that one step must read, and its operations, for any implementation. It gives the
// lower bound for a measurement.
type Costs struct {
	LayerParams int64 // elements of the layers' matrices that one token multiplies; of experts only the chosen ones
	HeadParams  int64
	WeightBytes int64   // of all matrices, packed
	attention   int64   // attention's part of WeightBytes
	ExpertBytes int64   // of WeightBytes: one expert in every layer with experts
	slotBytes   []int64 // one token's cache, per layer
	experts     int     // per layer; 0: none
	sparse      int     // layers with experts
	windows     []int   // per layer, in slots; 0: none
	attnFlops   []int64 // per query token and slot, per layer
	later       int     // layers that prompts skip (SwiftKV)
	laterParams int64   // of LayerParams: the later layers' matrices for rows that stay
}

// CostsOf returns the costs of a model with given types of weights and cache. Latent attention is
// counted in its absorbed form, which is how it is computed.
func CostsOf(c *model.Config, weights, kv tensor.DType) Costs {
	var k Costs
	add := func(n *int64, rows, cols int) {
		*n += int64(rows) * int64(cols)
		k.WeightBytes += tensor.WeightBytes(weights, rows, cols)
	}
	e, l := c.MoE, c.Latent
	k.experts, k.sparse = e.Experts, c.SparseLayers()
	for i := range c.Layers {
		k.windows = append(k.windows, c.Window(i))
		layer, before, bytes := c.Layer(i), k.LayerParams, k.WeightBytes
		q, v := c.Heads*layer.KV.Dim, layer.KV.Heads*layer.KV.Dim
		if layer.Delta != nil {
			k.deltaLayer(c, i, add)
		} else if l.Rank > 0 {
			if up := c.Hidden; l.QueryRank > 0 {
				add(&k.LayerParams, l.QueryRank, c.Hidden)
				add(&k.LayerParams, q, l.QueryRank)
			} else {
				add(&k.LayerParams, q, up)
			}
			add(&k.LayerParams, l.Row()+l.Index.Heads, c.Hidden)
			add(&k.LayerParams, l.Index.Heads*l.Index.Dim, l.QueryRank)
			for range c.Heads { // packed separately
				add(&k.LayerParams, l.Rank, l.Nope)
				add(&k.LayerParams, l.Value, l.Rank)
			}
		} else {
			for _, m := range []model.Linear{layer.K, layer.V} {
				if m.Weight != "" {
					add(&k.LayerParams, v, c.Hidden)
				}
			}
			if layer.KVSource != nil {
				before, k.later = k.LayerParams, k.later+1
			}
			add(&k.LayerParams, q, c.Hidden)
			if layer.QGate.Weight != "" {
				add(&k.LayerParams, q, c.Hidden)
			}
		}
		if layer.Delta == nil {
			add(&k.LayerParams, c.Hidden, c.Heads*c.ValueOf(&layer))
		}
		k.attention += k.WeightBytes - bytes
		if !c.Sparse(i) {
			for _, m := range []model.Linear{layer.Gate, layer.Up} {
				if m.Weight != "" {
					add(&k.LayerParams, layer.FFN, c.Hidden)
				}
			}
			if layer.Down.Weight != "" {
				add(&k.LayerParams, c.Hidden, layer.FFN)
			}
		} else {
			k.sparseLayer(c, weights, add)
		}
		if layer.KVSource != nil {
			k.laterParams += k.LayerParams - before
		}
	}
	add(&k.HeadParams, c.Vocab, c.Hidden)
	for i := range c.Layers {
		heads, key, value := c.CacheRow()
		row := c.CacheLayout(kv)
		if s := c.KVOf(i); l.Rank == 0 {
			heads, key, value = s.Heads, s.Dim, s.Dim
			row.KDim, row.VDim = key, value
		}
		k.slotBytes = append(k.slotBytes, int64(row.RowBytes())*int64(heads))
		k.attnFlops = append(k.attnFlops, 2*int64(c.Heads)*int64(key+value))
	}
	if w := c.PerLayer.Width; w > 0 {
		add(&k.LayerParams, c.Layers*w, c.Hidden)
		for range c.Layers {
			add(&k.LayerParams, w, c.Hidden)
			add(&k.LayerParams, c.Hidden, w)
		}
	}
	return k
}

// deltaLayer adds the projections of a layer with a recurrent state. Its state has a fixed size: it
// counts as one slot.
func (k *Costs) deltaLayer(c *model.Config, i int, add func(n *int64, rows, cols int)) {
	d := &c.Delta
	values := d.ValueHeads * d.ValueDim
	k.windows[i] = 1
	add(&k.LayerParams, d.KeyHeads*d.Width()+d.GateRows(), c.Hidden)
	add(&k.LayerParams, c.Hidden, values)
}

// sparseLayer adds the experts of a layer.
func (k *Costs) sparseLayer(c *model.Config, weights tensor.DType, add func(n *int64, rows, cols int)) {
	e := c.MoE
	in := 2 // gate and up
	if e.Ungated {
		in = 1
	}
	k.LayerParams += int64(e.Experts)*int64(c.Hidden) + int64(in+1)*int64(c.Hidden)*int64(e.PerToken*e.FFN)
	k.WeightBytes += tensor.WeightBytes(tensor.F32, e.Experts, c.Hidden) // the router
	one := int64(in)*tensor.WeightBytes(weights, e.FFN, c.Hidden) + tensor.WeightBytes(weights, c.Hidden, e.FFN)
	k.ExpertBytes += one
	k.WeightBytes += int64(e.Experts) * one
	if e.Shared > 0 {
		add(&k.LayerParams, in*e.Shared, c.Hidden)
		add(&k.LayerParams, c.Hidden, e.Shared)
	}
}

// over returns the reads of several sockets of one machine together, `owners` of which own
// sequences. With the reduce mapping each owner reads all of attention's weights.
func (k Costs) over(m topology.Mapping, owners int) Costs {
	if m == topology.Reduce {
		k.WeightBytes += int64(owners-1) * k.attention
	}
	return k
}

// slots returns how many of context slots a query at their end reads, over all layers, each times
// the value of its layer.
func (k Costs) slots(context int, each []int64) (n int64) {
	for i, w := range k.windows {
		if w == 0 || context < w {
			w = context
		}
		n += int64(w) * each[i]
	}
	return n
}

// KVBytes returns the bytes that attention reads of a cache of context tokens.
func (k Costs) KVBytes(context int) int64 { return k.slots(context, k.slotBytes) }

// heldBytes returns the maximum size of a cache of this many tokens: a prompt is held completely.
func (k Costs) heldBytes(context int) (n int64) {
	for _, bytes := range k.slotBytes {
		n += int64(context) * bytes
	}
	return n
}

// Decode returns the bytes and flops (a multiply-add is two) of a step that decodes one token for
// each of batch sequences with context tokens. experts is the number of experts that the step reads
// over all layers.
func (k Costs) Decode(batch, context int, experts float64) (bytes, matFlops, attnFlops float64) {
	b := float64(batch)
	unread := 0.0
	if k.sparse > 0 {
		unread = (float64(k.sparse*k.experts) - experts) * float64(k.ExpertBytes) / float64(k.sparse)
	}
	return float64(k.WeightBytes) - unread + b*float64(k.KVBytes(context)),
		2 * b * float64(k.LayerParams+k.HeadParams), b * float64(k.slots(context, k.attnFlops))
}

// Prefill returns the flops of a prompt. Logits are computed for its last token only.
func (k Costs) Prefill(tokens int) (matFlops, attnFlops float64) {
	t := float64(tokens)
	flops := 0.0 // of pairs of a query and a slot
	for i, w := range k.windows {
		if i >= len(k.windows)-k.later {
			flops += t * float64(k.attnFlops[i]) // for the last token
			continue
		}
		full := t // queries whose window is not full yet
		if w > 0 && w < tokens {
			full = float64(w)
		}
		flops += (full*(full+1)/2 + (t-full)*full) * float64(k.attnFlops[i])
	}
	return 2*t*float64(k.LayerParams-k.laterParams) + 2*float64(k.laterParams+k.HeadParams), flops
}

// fits returns an error if this machine's memory is too small.
func (k Costs) fits(batch, context, step int, c *model.Config) error {
	kv := int64(batch) * k.KVBytes(context+64)
	e := c.MoE
	act := int64(step) * 4 * int64(3*c.Hidden+3*c.Heads*max(c.HeadDim,
		c.Global.Dim)+2*c.FFNOf(c.Layers-1)+e.PerToken*(c.Hidden+2*e.FFN)+2*e.Shared)
	need, have := k.WeightBytes+kv+act+64*4*int64(c.Vocab), Available()
	if have > 0 && need > have-have/16 {
		return fmt.Errorf("bench: needs %s (weights %s, cache %s of %d x %d tokens), the machine has %s left: choose a smaller --model, "+
			"--quant, --context or --batch",
			options.SizeText(need), options.SizeText(k.WeightBytes), options.SizeText(kv), batch, context, options.SizeText(have))
	}
	return nil
}

// PrefillFloor returns the time of Prefill at a machine's peaks.
func (k Costs) PrefillFloor(tokens int, weights tensor.DType, c Ceiling) time.Duration {
	mat, attn := k.Prefill(tokens)
	return time.Duration(mat/c.peak(weights) + attn/c.FMA) // GOP/s are operations per nanosecond
}

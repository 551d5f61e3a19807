package bench

import (
	"fmt"
	"time"

	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/topology"
)

// Costs are what one step must read and compute, whoever does it: the floor
// that a measurement is held against.
type Costs struct {
	LayerParams int64 // elements of the layers' matrices that one token multiplies: of experts, those it chooses
	HeadParams  int64
	WeightBytes int64 // of all matrices, packed
	attention   int64 // of that, those of attention
	ExpertBytes int64 // of WeightBytes, one expert in every layer that has some
	SlotBytes   int64 // of one token's cache in one layer
	experts     int   // of a layer; 0: none
	sparse      int   // layers with experts
	windows     []int // of each layer, in slots; 0: none
	attnFlops   int64 // of one query token and one slot, in one layer
	later       int   // layers that prompts leave ahead of (SwiftKV)
	laterParams int64 // of LayerParams, what these multiply rows by that stay
}

// CostsOf a model with weights of a type and a cache of another. Latent attention is
// counted absorbed, as it is computed.
func CostsOf(c *model.Config, weights, kv tensor.DType) Costs {
	var k Costs
	add := func(n *int64, rows, cols int) {
		*n += int64(rows) * int64(cols)
		k.WeightBytes += tensor.WeightBytes(weights, rows, cols)
	}
	q, v := c.Heads*c.HeadDim, c.KVHeads*c.HeadDim
	e, l := c.MoE, c.Latent
	k.experts, k.sparse = e.Experts, c.SparseLayers()
	for i := range c.Layers {
		k.windows = append(k.windows, c.Window(i))
		layer, before, bytes := c.Layer(i), k.LayerParams, k.WeightBytes
		if l.Rank > 0 {
			if up := c.Hidden; l.QueryRank > 0 {
				add(&k.LayerParams, l.QueryRank, c.Hidden)
				add(&k.LayerParams, q, l.QueryRank)
			} else {
				add(&k.LayerParams, q, up)
			}
			add(&k.LayerParams, l.Rank+l.Rope, c.Hidden)
			for range c.Heads { // each packed by itself
				add(&k.LayerParams, l.Rank, l.Nope)
				add(&k.LayerParams, l.Value, l.Rank)
			}
		} else {
			if layer.K.Weight != "" {
				add(&k.LayerParams, v, c.Hidden)
				add(&k.LayerParams, v, c.Hidden)
			}
			if layer.KVSource != nil {
				before, k.later = k.LayerParams, k.later+1
			}
			add(&k.LayerParams, q, c.Hidden)
		}
		add(&k.LayerParams, c.Hidden, c.Heads*c.ValueDim())
		k.attention += k.WeightBytes - bytes
		if !c.Sparse(i) {
			add(&k.LayerParams, c.FFN, c.Hidden)
			add(&k.LayerParams, c.FFN, c.Hidden)
			add(&k.LayerParams, c.Hidden, c.FFN)
		} else {
			k.sparseLayer(c, weights, add)
		}
		if layer.KVSource != nil {
			k.laterParams += k.LayerParams - before
		}
	}
	add(&k.HeadParams, c.Vocab, c.Hidden)
	heads, key, value := c.CacheRow()
	k.SlotBytes = int64(c.CacheLayout(kv).RowBytes()) * int64(heads)
	k.attnFlops = 2 * int64(c.Heads) * int64(key+value)
	return k
}

// sparseLayer counts the experts of a layer.
func (k *Costs) sparseLayer(c *model.Config, weights tensor.DType, add func(n *int64, rows, cols int)) {
	e := c.MoE
	k.LayerParams += int64(e.Experts)*int64(c.Hidden) + 3*int64(c.Hidden)*int64(e.PerToken*e.FFN)
	k.WeightBytes += tensor.WeightBytes(tensor.F32, e.Experts, c.Hidden) // the router
	one := 2*tensor.WeightBytes(weights, e.FFN, c.Hidden) + tensor.WeightBytes(weights, c.Hidden, e.FFN)
	k.ExpertBytes += one
	k.WeightBytes += int64(e.Experts) * one
	if e.Shared > 0 {
		add(&k.LayerParams, e.Shared, c.Hidden)
		add(&k.LayerParams, e.Shared, c.Hidden)
		add(&k.LayerParams, c.Hidden, e.Shared)
	}
}

// over is what several sockets of one machine read together, of which so many own sequences: under
// reduce each of these has all of attention's weights.
func (k Costs) over(m topology.Mapping, owners int) Costs {
	if m == topology.Reduce {
		k.WeightBytes += int64(owners-1) * k.attention
	}
	return k
}

// slots is how many of context slots a query at their end reads, in all layers.
func (k Costs) slots(context int) float64 {
	n := 0
	for _, w := range k.windows {
		if w == 0 || context < w {
			w = context
		}
		n += w
	}
	return float64(n)
}

// KVBytes is the cache of one sequence of so many tokens, as attention reads it.
func (k Costs) KVBytes(context int) int64 { return int64(k.slots(context)) * k.SlotBytes }

// heldBytes is the most that a cache of so many tokens takes: a prompt is held whole.
func (k Costs) heldBytes(context int) int64 {
	return int64(len(k.windows)) * int64(context) * k.SlotBytes
}

// Decode is the bytes and the flops (a multiply-add is two) of a step that
// takes batch sequences, each of context tokens, one token further, and reads so many
// experts in all layers together, as the step says.
func (k Costs) Decode(batch, context int, experts float64) (bytes, matFlops, attnFlops float64) {
	b := float64(batch)
	unread := 0.0
	if k.sparse > 0 {
		unread = (float64(k.sparse*k.experts) - experts) * float64(k.ExpertBytes) / float64(k.sparse)
	}
	return float64(k.WeightBytes) - unread + b*k.slots(context)*float64(k.SlotBytes),
		2 * b * float64(k.LayerParams+k.HeadParams), b * k.slots(context) * float64(k.attnFlops)
}

// Prefill is the same for a prompt, of whose last token alone logits are wanted.
func (k Costs) Prefill(tokens int) (matFlops, attnFlops float64) {
	t := float64(tokens)
	pairs := 0.0 // of a query and a slot
	for i, w := range k.windows {
		if i >= len(k.windows)-k.later {
			pairs += t // of the last token
			continue
		}
		full := t // queries that see less than the window
		if w > 0 && w < tokens {
			full = float64(w)
		}
		pairs += full*(full+1)/2 + (t-full)*full
	}
	return 2*t*float64(k.LayerParams-k.laterParams) + 2*float64(k.laterParams+k.HeadParams), pairs * float64(k.attnFlops)
}

// fits refuses what this machine's memory does not hold.
func (k Costs) fits(batch, context, step int, c *model.Config) error {
	kv := int64(batch) * k.KVBytes(context+64)
	e := c.MoE
	act := int64(step) * 4 * int64(3*c.Hidden+3*c.Heads*c.HeadDim+2*c.FFN+e.PerToken*(c.Hidden+2*e.FFN)+2*e.Shared)
	need, have := k.WeightBytes+kv+act+64*4*int64(c.Vocab), Available()
	if have > 0 && need > have-have/16 {
		return fmt.Errorf("bench: needs %s (weights %s, cache %s of %d x %d tokens), the machine has %s left: choose a smaller --model, --quant, --context or --batch",
			gib(need), gib(k.WeightBytes), gib(kv), batch, context, gib(have))
	}
	return nil
}

// PrefillFloor is the time of the same at the peaks of a machine.
func (k Costs) PrefillFloor(tokens int, weights tensor.DType, c Ceiling) time.Duration {
	mat, attn := k.Prefill(tokens)
	return time.Duration(mat/c.peak(weights) + attn/c.FMA) // GOP/s are operations a nanosecond
}

package bench

import (
	"fmt"
	"math"

	"shoal/model"
	"shoal/tensor"
)

// Costs are what one step must read and compute, whoever does it: the floor
// that a measurement is held against.
type Costs struct {
	LayerParams int64 // elements of the layers' matrices that one token multiplies: of experts, those it chooses
	HeadParams  int64
	WeightBytes int64 // of all matrices, packed
	ExpertBytes int64 // of that, one expert in every layer that has some
	experts     int   // of a layer; 0: none
	perToken    int
	KVToken     int64 // bytes of cache of one token
	attnFlops   int64 // of one query token and one slot
}

// CostsOf a model with weights of a type and a cache of another.
func CostsOf(c *model.Config, weights, kv tensor.DType) Costs {
	var k Costs
	add := func(n *int64, rows, cols int) {
		*n += int64(rows) * int64(cols)
		k.WeightBytes += tensor.WeightBytes(weights, rows, cols)
	}
	q, v := c.Heads*c.HeadDim, c.KVHeads*c.HeadDim
	e := c.MoE
	k.experts, k.perToken = e.Experts, e.PerToken
	for i := range c.Layers {
		add(&k.LayerParams, q, c.Hidden)
		add(&k.LayerParams, v, c.Hidden)
		add(&k.LayerParams, v, c.Hidden)
		add(&k.LayerParams, c.Hidden, q)
		if !c.Sparse(i) {
			add(&k.LayerParams, c.FFN, c.Hidden)
			add(&k.LayerParams, c.FFN, c.Hidden)
			add(&k.LayerParams, c.Hidden, c.FFN)
			continue
		}
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
	add(&k.HeadParams, c.Vocab, c.Hidden)
	layout := tensor.KVLayout{Type: kv, KDim: c.HeadDim, VDim: c.HeadDim}
	k.KVToken = int64(layout.RowBytes()) * int64(c.Layers*c.KVHeads)
	k.attnFlops = 4 * int64(c.Layers) * int64(q)
	return k
}

// ExpertsHit is how many of a layer's experts a batch of tokens is expected to
// choose, each of them any PerToken alike: weights of the others are not read. A
// trained router is less even, and reads fewer.
func (k Costs) ExpertsHit(batch int) float64 {
	if k.experts == 0 {
		return 0
	}
	n := float64(k.experts)
	return n * (1 - math.Pow(1-float64(k.perToken)/n, float64(batch)))
}

// Decode is the bytes and the flops (a multiply-add is two) of a step that
// takes batch sequences, each of context tokens, one token further.
func (k Costs) Decode(batch, context int) (bytes, matFlops, attnFlops float64) {
	b := float64(batch)
	unread := (float64(k.experts) - k.ExpertsHit(batch)) * float64(k.ExpertBytes)
	return float64(k.WeightBytes) - unread + b*float64(context)*float64(k.KVToken),
		2 * b * float64(k.LayerParams+k.HeadParams), b * float64(context) * float64(k.attnFlops)
}

// Prefill is the same for a prompt, of whose last token alone logits are wanted.
func (k Costs) Prefill(tokens int) (matFlops, attnFlops float64) {
	t := float64(tokens)
	return 2*t*float64(k.LayerParams) + 2*float64(k.HeadParams), t * (t + 1) / 2 * float64(k.attnFlops)
}

// fits refuses what this machine's memory does not hold.
func (k Costs) fits(batch, context, step int, c *model.Config) error {
	kv := int64(batch) * int64(context+64) * k.KVToken
	e := c.MoE
	act := int64(step) * 4 * int64(3*c.Hidden+3*c.Heads*c.HeadDim+2*c.FFN+e.PerToken*(c.Hidden+2*e.FFN)+2*e.Shared)
	need, have := k.WeightBytes+kv+act+64*4*int64(c.Vocab), Available()
	if have > 0 && need > have-have/16 {
		return fmt.Errorf("bench: needs %s (weights %s, cache %s of %d x %d tokens), the machine has %s left: choose a smaller --model, --quant, --context or --batch",
			gib(need), gib(k.WeightBytes), gib(kv), batch, context, gib(have))
	}
	return nil
}

package probe

import (
	"fmt"
	"math/rand/v2"

	"github.com/shoal-llm/shoal/internal/engine/cuda/launch"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

var massComparisons = func() (all []comparison) {
	for _, t := range cacheTypes {
		all = append(all, comparison{fmt.Sprintf("attention that slots of a cache of %v receive", t),
			[]string{"mass_sums_" + t.String(), "mass_add_" + t.String()},
			func(k *card, r *rand.Rand) {
				k.masses(r, t)
				k.promptMasses(r, t)
			}})
	}
	return all
}()

// masses compares the attention of single tokens.
func (k *card) masses(r *rand.Rand, t tensor.DType) {
	for _, c := range []attentionCase{
		{2, 4, 64, 0, 0, false, []int{1, 63, 200, 1100}},
		{1, 9, 80, 0, 30, false, []int{130}},
		{3, 1, 256, 0, 0, false, []int{64, 65}},
	} {
		cache := newHostCache(t, c.kvheads, c.dim)
		for i, slots := range c.slots {
			cache.add(r, slots)
			cache.fill(r, i)
		}
		n, most := len(c.slots), c.slots[len(c.slots)-1]+24
		o, q := k.mass(r, c, cache, n)
		want := make([]float32, n*c.kvheads*most)
		var scratch tensor.AttnScratch
		for i, slots := range c.slots {
			o.Slots = max(o.Slots, slots)
			for h := range c.kvheads {
				tensor.AttentionMass(want[(i*c.kvheads+h)*most:][:slots], q[i*o.LdQ+h*c.group*c.dim:], o.LdQ, 1, slots-1, c.group,
					tensor.Score{Scale: o.Scale, Cap: o.Cap}, cache.layout, cache.blocks(i, h), &scratch)
			}
		}
		o.Rows, o.Ld, o.Out = k.upload(launch.RowsBytes(cache.rows)), most, k.upload(make([]float32, len(want)))
		k.run(o)
		k.equalFloats(c.String(), o.Out, want)
	}
}

// promptMasses compares the attention of a chunk of a prompt, added to that of the chunk before.
func (k *card) promptMasses(r *rand.Rand, t tensor.DType) {
	for _, c := range []attentionCase{
		{2, 4, 64, 0, 0, false, []int{0, 70}},
		{1, 3, 96, 0, 20, false, []int{100, 37}},
	} {
		before, n := c.slots[0], c.slots[1]
		cache := newHostCache(t, c.kvheads, c.dim)
		cache.add(r, before+n)
		cache.fill(r, 0)
		rows := make([]launch.Row, n)
		for i := range rows {
			rows[i] = cache.rows[0]
			rows[i].Slot = uint32(before + i)
		}
		o, q := k.mass(r, c, cache, n)
		o.Prompt, o.Slots, o.Ld = true, before+n, before+n+8
		want := make([]float32, c.kvheads*o.Ld)
		for i := range want {
			want[i] = r.Float32()
		}
		o.Rows, o.Out = k.upload(launch.RowsBytes(rows)), k.upload(want)
		var scratch tensor.AttnScratch
		for h := range c.kvheads {
			tensor.AttentionMass(want[h*o.Ld:][:o.Slots], q[h*c.group*c.dim:], o.LdQ, n, before, c.group,
				tensor.Score{Scale: o.Scale, Cap: o.Cap}, cache.layout, cache.blocks(0, h), &scratch)
		}
		k.run(o)
		k.equalFloats(c.String(), o.Out, want)
	}
}

// mass returns the operation for n rows of random queries.
func (k *card) mass(r *rand.Rand, c attentionCase, cache *hostCache, n int) (launch.Mass, []float32) {
	score, _ := c.score(r)
	ld := c.kvheads*c.group*c.dim + 24
	q := normal(r, n*ld, 1)
	o := launch.Mass{Cache: k.cache(cache), Q: k.upload(q), LdQ: ld, Heads: c.kvheads * c.group, Scale: score.Scale, Cap: c.top, N: n}
	o.Scratch = k.alloc(int(o.ScratchBytes()))
	return o, q
}

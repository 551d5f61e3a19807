package probe

import (
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/shoal-llm/shoal/internal/engine/cuda/launch"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

var turnedComparisons = func() (all []comparison) {
	for _, t := range cacheTypes {
		all = append(all, comparison{fmt.Sprintf("rotation within attention over a cache of %v", t), []string{"attend_scores_" + t.String()},
			func(k *card, r *rand.Rand) { k.rotated(r, t) }})
	}
	return all
}()

// rotated computes attention of a token whose query, key and value are not rotated, normed and written yet. Its slot in
// the cache has other numbers before.
func (k *card) rotated(r *rand.Rand, t tensor.DType) {
	for _, c := range []attentionCase{
		{2, 4, 128, 0, 0, false, []int{77}},
		{1, 6, 64, 100, 30, true, []int{1100}},
		{2, 1, 256, 0, 0, false, []int{1}},
		{2, 4, 64, 0, 0, false, []int{1025}},
	} {
		for _, normed := range []bool{false, true} {
			heads, width, slots, half := c.kvheads*c.group, c.kvheads*c.group*c.dim, c.slots[0], c.dim/2
			cache := newHostCache(t, c.kvheads, c.dim)
			cache.add(r, slots)
			cache.fill(r, 0)
			score, sinks := c.score(r)
			qkv := normal(r, width+2*c.kvheads*c.dim+8, 1)
			cos, sin, qnorm, knorm := make([]float32, half), make([]float32, half), normal(r, c.dim, 1), normal(r, c.dim, 1)
			for i := range cos {
				s, c := math.Sincos(r.Float64() * 7)
				sin[i], cos[i] = float32(s), float32(c)
			}
			o := launch.Attend{Cache: k.cache(cache), Q: k.upload(qkv), LdQ: len(qkv), Heads: heads, Scale: score.Scale, Cap: c.top,
				Window: c.window,
				Rows:   k.upload(launch.RowsBytes(cache.rows)), N: 1, Slots: slots, Parts: 4, Out: k.alloc(4 * width), LdOut: width,
				To:       k.rounded(width),
				Rotation: launch.Rotation{Cos: k.upload(cos), Sin: k.upload(sin), Eps: 1e-6}}
			if normed {
				o.Rotation.QNorm, o.Rotation.KNorm = k.upload(qnorm), k.upload(knorm)
			}
			if sinks != nil {
				o.Sinks = k.upload(sinks)
			}
			o.Scratch = k.alloc(int(o.ScratchBytes()))
			k.run(o)

			turn := func(h int, norm []float32) []float32 {
				x := qkv[h*c.dim:][:c.dim]
				if normed {
					tensor.RMSNorm(x, x, norm, o.Rotation.Eps)
				}
				tensor.RopeRotateHalf(x, cos, sin)
				return x
			}
			for h := range heads {
				turn(h, qnorm)
			}
			want := make([]float32, width)
			var scratch tensor.AttnScratch
			for h := range c.kvheads {
				blocks := cache.blocks(0, h)
				cache.layout.Put(blocks[(slots-1)/tensor.BlockSlots], (slots-1)%tensor.BlockSlots, turn(heads+h, knorm),
					qkv[(heads+c.kvheads+h)*c.dim:][:c.dim])
				at := h * c.group * c.dim
				tensor.AttendCausal(want[at:], width, qkv[at:], len(qkv), 1, slots-1, c.window, c.group,
					score.Heads(0, h*c.group, c.group), cache.layout, blocks, &scratch)
			}
			what := fmt.Sprintf("%v, norms %v", c, normed)
			k.equalCache(what, o.Arena, cache)
			k.equalFloats(what, o.Out, want)
			k.equalRounded(what, o.To, want)
		}
	}
}

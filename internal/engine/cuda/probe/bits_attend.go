package probe

import (
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/shoal-llm/shoal/internal/engine/cuda/launch"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

var attentionComparisons = func() (all []comparison) {
	for _, t := range cacheTypes {
		all = append(all,
			comparison{fmt.Sprintf("attention of tokens over a cache of %v", t), []string{"attend_" + t.String(), "attend_fold"},
				func(k *card, r *rand.Rand) { k.attention(r, t, 1) }},
			comparison{fmt.Sprintf("attention of tokens over a cache of %v, in parts", t),
				[]string{"attend_" + t.String() + "_4", "attend_scores_" + t.String()},
				func(k *card, r *rand.Rand) { k.attention(r, t, 4) }},
			comparison{fmt.Sprintf("attention of a prompt over a cache of %v", t), []string{"attend_prompt_" + t.String()},
				func(k *card, r *rand.Rand) { k.prompts(r, t, 32) }},
			comparison{fmt.Sprintf("attention of a prompt over a cache of %v, 64 rows", t), []string{"attend_prompt_" + t.String() + "_64"},
				func(k *card, r *rand.Rand) { k.prompts(r, t, 64) }})
	}
	return all
}()

// attentionCase is a shape of attention. Slots are those of each sequence; of a prompt, the first
// number is the slots before the chunk and the second the tokens of the chunk.
type attentionCase struct {
	kvheads, group, dim, window int
	top                         float32 // cap of scores
	sinks                       bool
	slots                       []int
}

func (c attentionCase) String() string {
	return fmt.Sprintf("%d KV heads of %d queries, %d elements, window %d, cap %g, sinks %v, slots %d", c.kvheads,
		c.group, c.dim, c.window, c.top, c.sinks, c.slots)
}

// fill writes random keys and values to all slots of a sequence.
func (c *hostCache) fill(r *rand.Rand, sequence int) {
	for head := range c.kvheads {
		blocks := c.blocks(sequence, head)
		for slot := range int(c.rows[sequence].Slot) + 1 {
			c.layout.Put(blocks[slot/tensor.BlockSlots], slot%tensor.BlockSlots, normal(r, c.layout.KDim, 1), normal(r, c.layout.VDim, 1))
		}
	}
}

// score returns the score of a case and the sinks of all heads, or nil.
func (c attentionCase) score(r *rand.Rand) (s tensor.Score, sinks []float32) {
	s = tensor.Score{Scale: float32(1 / math.Sqrt(float64(c.dim))), Cap: c.top}
	if c.sinks {
		sinks = normal(r, c.kvheads*c.group, 2)
		s.Sinks = [][]float32{sinks}
	}
	return s, sinks
}

func (k *card) attention(r *rand.Rand, t tensor.DType, parts int) {
	for _, c := range []attentionCase{
		{2, 4, 64, 0, 0, false, []int{1, 63, 64, 200, 1025}},
		{1, 7, 80, 0, 30, true, []int{1000, 2049}},
		{1, 1, 128, 100, 0, true, []int{3, 99, 1150}},
		{2, 2, 256, -70, 0, false, []int{70, 71, 139}},
		{2, 5, 128, 0, 0, true, []int{1, 700}},
		{4, 4, 8, 0, 0, false, []int{7, 1023, 1024, 1025, 1400}},
		{1, 5, 96, 1100, 50, false, []int{2300}},
	} {
		if parts > 1 && c.dim%64 != 0 { // a part is whole units of 16 bytes
			continue
		}
		n, heads, width := len(c.slots), c.kvheads*c.group, c.kvheads*c.group*c.dim
		cache := newHostCache(t, c.kvheads, c.dim)
		for i, slots := range c.slots {
			cache.add(r, slots)
			cache.fill(r, i)
		}
		score, sinks := c.score(r)
		ld := width + 24
		q, want := normal(r, n*ld, 1), make([]float32, n*width)
		var scratch tensor.AttnScratch
		most := 0
		for i, slots := range c.slots {
			most = max(most, slots)
			for h := range c.kvheads {
				at := h * c.group * c.dim
				tensor.AttendCausal(want[i*width+at:], width, q[i*ld+at:], ld, 1, slots-1, c.window, c.group, score.Heads(0, h*c.group, c.group),
					cache.layout, cache.blocks(i, h), &scratch)
			}
		}
		o := launch.Attend{Cache: k.cache(cache), Q: k.upload(q), LdQ: ld, Heads: heads, Scale: score.Scale, Cap: c.top, Window: c.window,
			Rows: k.upload(launch.RowsBytes(cache.rows)), N: n, Slots: most, Parts: parts, Out: k.alloc(4 * n * width), LdOut: width}
		if sinks != nil {
			o.Sinks = k.upload(sinks)
		}
		if width%tensor.BlockWidth == 0 {
			o.To = k.rounded(n * width)
		}
		o.Scratch = k.alloc(int(o.ScratchBytes()))
		k.run(o)
		k.equalFloats(c.String(), o.Out, want)
		if width%tensor.BlockWidth == 0 {
			k.equalRounded(c.String(), o.To, want)
		}
	}
}

// prompts compares attention of prompts, with a number of rows a thread block.
func (k *card) prompts(r *rand.Rand, t tensor.DType, tile int) {
	for _, c := range []attentionCase{
		{2, 4, 64, 0, 0, false, []int{0, 70}},
		{1, 7, 80, 0, 30, true, []int{1000, 40}},
		{1, 1, 128, 100, 0, true, []int{90, 130}},
		{2, 2, 256, -70, 0, false, []int{60, 90}},
		{1, 40, 32, 0, 0, true, []int{5, 3}},
		{1, 70, 8, 0, 0, false, []int{60, 10}},
		{1, 3, 96, 1100, 0, false, []int{2040, 30}},
	} {
		before, n, heads, width := c.slots[0], c.slots[1], c.kvheads*c.group, c.kvheads*c.group*c.dim
		cache := newHostCache(t, c.kvheads, c.dim)
		cache.add(r, before+n)
		cache.fill(r, 0)
		score, sinks := c.score(r)
		ld := width + 24
		q, want := normal(r, n*ld, 1), make([]float32, n*width)
		var scratch tensor.AttnScratch
		for h := range c.kvheads {
			at := h * c.group * c.dim
			tensor.AttendCausal(want[at:], width, q[at:], ld, n, before, c.window, c.group, score.Heads(0, h*c.group, c.group),
				cache.layout, cache.blocks(0, h), &scratch)
		}
		rows := make([]launch.Row, n)
		for i := range rows {
			rows[i] = cache.rows[0]
			rows[i].Slot = uint32(before + i)
		}
		o := launch.Attend{Cache: k.cache(cache), Q: k.upload(q), LdQ: ld, Heads: heads, Scale: score.Scale, Cap: c.top, Window: c.window,
			Rows: k.upload(launch.RowsBytes(rows)), N: n, Slots: before + n, Prompt: true, Tile: tile, Out: k.alloc(4 * n * width), LdOut: width}
		if sinks != nil {
			o.Sinks = k.upload(sinks)
		}
		k.run(o)
		k.equalFloats(c.String(), o.Out, want)
	}
}

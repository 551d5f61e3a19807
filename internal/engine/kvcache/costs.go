package kvcache

import "github.com/shoal-llm/shoal/internal/engine/tensor"

// Geometry is the shape of a model's cache.
type Geometry struct {
	Layers  int  // layers with a cache of their own
	Across  bool // other layers read these too (AcrossKV)
	KVHeads int  // per layer
	Group   int  // query heads that share a KV head; 0 counts as 1
	Layout  tensor.KVLayout

	// Windows has the sliding window of each layer in tokens, 0 for one that attends to
	// everything; nil: all do. See window.go.
	Windows []int

	// Chunk is how many prompt tokens a step reads at most, 0: any number. While a
	// prompt is read, a layer with a window holds these and its ring.
	Chunk int

	// Units is for latent attention, where all query heads share the one KV head
	// and sockets divide the query heads: the number of equal runs of heads that a
	// socket may own. A socket that reads any of them keeps the whole row of every
	// prompt token, and so does the owner of the sequence. 0: sockets divide KV heads.
	Units int
}

// PromptHeads is how many KV heads' rows of a prompt a socket keeps that reads
// `cut` of what the sockets divide, KV heads or units.
func (g Geometry) PromptHeads(cut int, owner bool) int {
	switch {
	case g.Units == 0:
		return cut
	case cut > 0 || owner:
		return 1
	}
	return 0
}

// Cut is how many things the sockets divide in prefill: KV heads, or units.
func (g Geometry) Cut() int {
	if g.Units > 0 {
		return g.Units
	}
	return g.KVHeads
}

// Single says that a sequence decodes one token a step: in a step of several a policy that goes
// by scores chooses by what the first of the layers that share a cache attended to, between
// the tokens, which the others cannot follow.
func (g Geometry) Single(p *Policy) bool { return g.Across && p.Scored() }

func (g Geometry) group() int { return max(g.Group, 1) }

// TokenBytes is what one token takes in a full cache, without the rounding to blocks.
func (g Geometry) TokenBytes() int64 {
	return int64(g.Layers) * int64(g.KVHeads) * int64(g.Layout.BlockBytes()) / tensor.BlockSlots
}

// PrefillBytes is the most that a socket holds for a sequence of which `tokens` prompt
// tokens were read, when the socket has `heads` KV heads of every layer. Prefill
// attends to the whole prompt under every policy, but for layers with a window.
func PrefillBytes(g Geometry, heads, tokens int, p *Policy) int64 {
	blocks := int64(0)
	for _, r := range g.rules(p) {
		blocks += r.layers * g.promptBlocks(r, tokens)
	}
	return blockBytes(g, blocks*int64(heads))
}

// promptBlocks are those of one head of a layer under rule r, at most, while a prompt is
// read: of a layer with a window, what a step reads and the ring before it, neither of
// which need begin with a block.
func (g Geometry) promptBlocks(r rule, tokens int) int64 {
	all := blocksOf(tokens)
	if r.window > 0 && g.Chunk > 0 {
		return min(all, blocksOf(windowRing(r.window))+blocksOf(g.Chunk)+1)
	}
	return all
}

// ResidentBytes is what the owner holds for a sequence once `tokens` tokens are
// in its cache (or reserved by the step that is running), `prompt` of which were
// there at the end of prefill. All KV heads of all layers, slot tables and the
// rows that Rollback would need included.
func ResidentBytes(g Geometry, prompt, tokens int, p *Policy) int64 {
	return StepBytes(g, prompt, tokens, 1, p)
}

// StepBytes is ResidentBytes while a step runs that takes the cache to `tokens` tokens with
// `staged` of its own: with what it takes to roll back any of them.
func StepBytes(g Geometry, prompt, tokens, staged int, p *Policy) int64 {
	var bytes int64
	undo := false
	for _, r := range g.rules(p) {
		slots := r.Slots(prompt, tokens)
		table := blocksOf(slots) * tableBytes(r.Policy)
		for _, plane := range g.planesOf(r.Policy) {
			table += int64(plane.size) * int64(plane.room(slots))
		}
		if staged > 1 && r.Scored() {
			table += int64(staged) * 4 * blocksOf(slots) * tensor.BlockSlots
		}
		bytes += r.layers * (int64(g.KVHeads)*table + r.factorBytes(g, prompt) - r.keyBytes(g, prompt))
		undo = undo || overwrites(r.Policy, prompt, tokens)
	}
	if undo {
		bytes += blockBytes(g, undoBlocks(int64(g.Layers)*int64(g.KVHeads), staged))
	}
	return bytes
}

// HandoverBytes is the peak on the owner while a prompt of `prompt` tokens is
// handed over, when `heads` of the KV heads were read on the owner itself. Under a policy
// that keeps every token their blocks are adopted; otherwise, and in layers with a window,
// the kept rows are copied beside them.
func HandoverBytes(g Geometry, heads, prompt int, p *Policy) int64 {
	bytes := ResidentBytes(g, prompt, prompt, p)
	for _, r := range g.rules(p) {
		bytes += r.layers * int64(g.KVHeads) * queryBytes(g, r.Policy, prompt)
		switch gone := r.factored(g, prompt); {
		case gone > 0: // the rows, and of adopted heads those that stay twice
			bytes += r.layers*r.keyBytes(g, prompt) + blockBytes(g, r.layers*int64(heads)*(blocksOf(prompt)-int64(gone)))
		case !r.Adopts(g, prompt) || !p.Adopts(g, prompt):
			bytes += blockBytes(g, r.layers*int64(heads)*g.promptBlocks(r, prompt))
		}
	}
	return bytes
}

// queryBytes are those of the queries that an owner gets with the rows of one head.
func queryBytes(g Geometry, p *Policy, prompt int) int64 {
	if !p.Needs.Queries {
		return 0
	}
	return 4 * int64(min(p.Needs.Window, prompt)) * int64(g.group()*g.Layout.KDim)
}

// ReadBytes is what attention of one token reads of the cache of a sequence with `tokens`
// tokens, `prompt` of which were there at the end of prefill: rows, and of an index the pages
// in use.
func ReadBytes(g Geometry, prompt, tokens int, p *Policy) int64 {
	var bytes int64
	for _, r := range g.rules(p) {
		slots, index := r.Slots(prompt, tokens), 0
		if c := r.Selector; c != nil && slots > c.Reads(slots) {
			size, covers := c.Index(g.Layout)
			index = (slots + c.Page() - 1) / c.Page() * (size * c.Page() / covers)
			slots = c.Reads(slots)
			index += r.rebuiltBytes(g, prompt)
		}
		if r.window > 0 {
			slots = min(tokens, r.window)
		}
		bytes += r.layers * int64(g.KVHeads) * int64(slots*g.Layout.RowBytes()+index)
	}
	return bytes
}

// overwrites says whether some token up to `tokens` has taken the slot of another.
func overwrites(p *Policy, prompt, tokens int) bool {
	return tokens-prompt > p.Slots(prompt, tokens)-p.Slots(prompt, prompt)
}

// tableBytes is what the slot table of one block takes beside it.
func tableBytes(p *Policy) int64 {
	if p.KeepsAll() {
		return 0
	}
	n := int64(4 * tensor.BlockSlots)
	if p.Scored() {
		n += 4 * tensor.BlockSlots
	}
	if p.cachePositions {
		n += 4 * tensor.BlockSlots
	}
	return n
}

func blocksOf(slots int) int64 { return int64(slots+tensor.BlockSlots-1) / tensor.BlockSlots }

// undoBlocks hold one row per head of each staged token, in blocks of BlockSlots rows.
func undoBlocks(heads int64, staged int) int64 {
	return (heads*int64(staged) + tensor.BlockSlots - 1) / tensor.BlockSlots
}

func blockBytes(g Geometry, blocks int64) int64 { return blocks * int64(g.Layout.BlockBytes()) }

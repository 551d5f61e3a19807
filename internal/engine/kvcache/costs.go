package kvcache

import (
	"github.com/shoal-llm/shoal/internal/engine/kvcache/states"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/window"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// Geometry is the shape of a model's cache.
type Geometry struct {
	Layers  int  // layers with their own cache
	Across  bool // other layers read these caches too (AcrossKV)
	KVHeads int  // per layer

	// Begins has the first cache of each layer, ascending, if layers have several; nil: one each.
	Begins []int

	// Later is the first of SwiftKV's later layers, whose keys and values are all computed from the input of
	// the first of them; 0: none.
	Later  int
	Group  int // query heads that share a KV head; 0 counts as 1
	Layout tensor.KVLayout

	// Local is the layout of a row in the layers with a window, if their heads have another width;
	// zero: Layout. Policies act on the other layers only.
	Local tensor.KVLayout

	// Windows is the sliding window of each layer in tokens; 0: the layer attends to all tokens;
	// nil: all layers do. See window.go.
	Windows []int

	// Chunked is set if windows are chunks: a token attends from the last multiple of the window on.
	Chunked bool

	// Chunk is the maximum number of prompt tokens in a step; 0: unlimited. During prefill a layer
	// with a window holds a chunk and its ring.
	Chunk int

	// Recurrent is the shape of layers with a recurrent state. Layers does not count them.
	Recurrent states.Shape

	// Unturned is set if stored keys must not be rotated further: they are normalised after their
	// rotation, or contain the rotated key of an indexer.
	Unturned bool

	// Units is for latent attention, where all query heads share one KV head and sockets divide the
	// query heads. It is the number of equal runs of heads that a socket may own. A socket that
	// computes any of them keeps the whole row of every prompt token, and so does the owner of the
	// sequence. 0: sockets divide KV heads.
	Units int
}

// PromptHeads returns the number of KV heads whose prompt rows a socket keeps if it computes cut of the
// KV heads or units.
func (g Geometry) PromptHeads(cut int, owner bool) int {
	switch {
	case g.Units == 0:
		return cut
	case cut > 0 || owner:
		return 1
	}
	return 0
}

// Cut returns the number of KV heads or units that the sockets divide in prefill.
func (g Geometry) Cut() int {
	if g.Units > 0 {
		return g.Units
	}
	return g.KVHeads
}

// LayoutOf returns the layout of a row in a layer.
func (g Geometry) LayoutOf(layer int) tensor.KVLayout { return g.rows(g.window(layer)) }

// rows returns the layout of a row in the layers with a window of that size; 0: in those without one.
func (g Geometry) rows(window int) tensor.KVLayout {
	if window > 0 && g.Local.KDim > 0 {
		return g.Local
	}
	return g.Layout
}

// rowBytes returns the size of a token in a number of heads of every layer, for a size of one row in a
// layout.
func (g Geometry) rowBytes(heads int, size func(tensor.KVLayout) int) int {
	plain := g.unwindowed()
	return heads * (plain*size(g.Layout) + (g.Layers-plain)*size(g.rows(1)))
}

// Single reports whether a sequence must decode one token a step. With several tokens, a scored
// policy evicts between them by the attention of the first of the layers that share a cache. The
// other layers cannot follow that.
func (g Geometry) Single(p *Policy) bool { return g.Across && p.Scored() }

func (g Geometry) group() int { return max(g.Group, 1) }

// TokenBytes returns the size of one token in a full cache, not rounded to blocks.
func (g Geometry) TokenBytes() int64 {
	return int64(g.rowBytes(g.KVHeads, tensor.KVLayout.BlockBytes)) / tensor.BlockSlots
}

// states returns the shape of recurrent states, divided as KV heads are.
func (g Geometry) states() states.Cut { return states.Cut{Shape: g.Recurrent, KVHeads: g.KVHeads} }

// StateBytes returns the size of a sequence's recurrent states on a socket with this number of
// KV heads. It does not depend on the number of tokens.
func StateBytes(g Geometry, heads int) int64 { return g.states().Bytes(heads) }

// PrefillBytes returns the maximum that a socket holds for a sequence after reading a number of prompt
// tokens. heads is its number of KV heads in every layer. Prefill attends to the whole prompt under every
// policy, except in layers with a window.
func PrefillBytes(g Geometry, heads, tokens int, p *Policy) int64 {
	bytes := int64(0)
	for _, r := range g.rules(p, make([]rule, 0, fewRules)) {
		bytes += r.blockBytes(g, r.layers*int64(heads)*g.promptBlocks(r, tokens))
	}
	return bytes + StateBytes(g, heads)
}

// promptBlocks returns the maximum number of blocks of one head of a layer under rule r during prefill.
// A layer with a window holds the tokens of a step and its ring, neither of which need start at a
// block boundary.
func (g Geometry) promptBlocks(r rule, tokens int) int64 {
	all := blocksOf(tokens)
	if r.window > 0 && g.Chunk > 0 {
		return min(all, blocksOf(window.Slots(r.window))+blocksOf(g.Chunk)+1)
	}
	return all
}

// ResidentBytes is the memory of the owner for a sequence: all KV heads of all layers, slot tables,
// and the rows that Rollback would need. tokens counts the tokens in the cache, including those
// reserved by the running step; prompt is their number at the end of prefill.
func ResidentBytes(g Geometry, prompt, tokens int, p *Policy) int64 {
	return StepBytes(g, prompt, tokens, 1, p)
}

// StepBytes is ResidentBytes during a step with staged new tokens, after which the cache has the
// given number of tokens. It includes the undo rows of a rollback.
func StepBytes(g Geometry, prompt, tokens, staged int, p *Policy) int64 {
	bytes := StateBytes(g, g.KVHeads) + g.states().RecordBytes(staged)
	undo := false
	for _, r := range g.rules(p, make([]rule, 0, fewRules)) {
		slots := r.Slots(prompt, tokens)
		table := blocksOf(slots) * tableBytes(r.Policy)
		for j, plane := range g.planesOf(r.Policy, r.window) {
			table += int64(plane.size) * int64(plane.room(r.planeSlots(j, prompt, tokens)))
		}
		if staged > 1 && r.Scored() {
			table += int64(staged) * 4 * blocksOf(slots) * tensor.BlockSlots
		}
		x := r.plan(g, prompt)
		bytes += r.layers * (int64(g.KVHeads)*table + x.Bytes - blockBytes(g.Layout, int64(g.KVHeads*x.Replaced)))
		undo = undo || overwrites(r.Policy, prompt, tokens)
	}
	if undo {
		heads := int64(g.KVHeads)
		plain := int64(g.unwindowed()) * heads
		if g.rows(1) == g.Layout {
			plain = int64(g.Layers) * heads
		}
		bytes += blockBytes(g.Layout, undoBlocks(plain, staged)) + blockBytes(g.Local, undoBlocks(int64(g.Layers)*heads-plain, staged))
	}
	return bytes
}

// HandoverBytes returns the peak on the owner during the hand-over of a prompt when the owner
// computed `heads` of the KV heads itself. A policy that keeps the prompt in place adopts their blocks. Otherwise, and
// in layers with a window, the kept rows are copied.
func HandoverBytes(g Geometry, heads, prompt int, p *Policy) int64 {
	bytes := ResidentBytes(g, prompt, prompt, p) + StateBytes(g, heads)
	for _, r := range g.rules(p, make([]rule, 0, fewRules)) {
		bytes += r.layers * int64(g.KVHeads) * queryBytes(g, r.Policy, prompt)
		switch replaced := r.plan(g, prompt).Replaced; {
		case replaced > 0: // the rows, and a second copy of those that stay of adopted heads
			stay := blocksOf(prompt) - int64(replaced)
			bytes += r.layers*blockBytes(g.Layout, int64(g.KVHeads*replaced)) + blockBytes(g.Layout, r.layers*int64(heads)*stay)
		case !r.Shares(g, prompt) || !p.Shares(g, prompt):
			bytes += r.blockBytes(g, r.layers*int64(heads)*g.promptBlocks(r, prompt))
		}
	}
	return bytes
}

// queryBytes returns the size of the queries that an owner receives with the rows of one head.
func queryBytes(g Geometry, p *Policy, prompt int) int64 {
	if !p.Needs.Queries {
		return 0
	}
	return 4 * int64(min(p.Needs.Window, prompt)) * int64(g.group()*g.Layout.KDim)
}

// ReadBytes returns the bytes that the attention of one token reads from a sequence's cache: rows, the
// pages in use of an index, and recurrent states. prompt is the number of tokens at the end of prefill.
func ReadBytes(g Geometry, prompt, tokens int, p *Policy) int64 {
	bytes := StateBytes(g, g.KVHeads)
	for _, r := range g.rules(p, make([]rule, 0, fewRules)) {
		slots, index := r.Slots(prompt, tokens), 0
		among := r.selectable(prompt, slots)
		if c := r.Selector; c != nil && among > c.Reads(among) {
			size, covers := c.Index(g.Layout)
			index = (among + c.Page() - 1) / c.Page() * (size * c.Page() / covers)
			slots += c.Reads(among) - among
			index += r.plan(g, prompt).Read
		}
		if r.window > 0 {
			slots = min(tokens, r.window)
		}
		bytes += r.layers * int64(g.KVHeads) * int64(slots*g.rows(r.window).RowBytes()+index)
	}
	return bytes
}

// overwrites reports whether some token up to tokens takes the slot of another.
func overwrites(p *Policy, prompt, tokens int) bool {
	return tokens-prompt > p.Slots(prompt, tokens)-p.Slots(prompt, prompt)
}

// tableBytes returns the size of the slot table of one block.
func tableBytes(p *Policy) int64 {
	if p.KeepsPrompt() {
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

// Shares reports whether the owner of a sequence continues with the blocks of its prompt as they
// were read.
func (p *Policy) Shares(g Geometry, prompt int) bool {
	return p.KeepsPrompt() && p.plan(g, prompt).Replaced == 0
}

func blocksOf(slots int) int64 { return int64(slots+tensor.BlockSlots-1) / tensor.BlockSlots }

// undoBlocks returns the number of blocks that hold one row per head for each staged token, BlockSlots
// rows a block.
func undoBlocks(heads int64, staged int) int64 {
	return (heads*int64(staged) + tensor.BlockSlots - 1) / tensor.BlockSlots
}

func blockBytes(l tensor.KVLayout, blocks int64) int64 {
	if blocks == 0 {
		return 0
	}
	return blocks * int64(l.BlockBytes())
}

// blockBytes returns the size of a number of blocks in a layer under the rule.
func (r rule) blockBytes(g Geometry, blocks int64) int64 { return blockBytes(g.rows(r.window), blocks) }

// ScoreOf is Score for the query heads that share a KV head.
func (s *Store) ScoreOf(layer, head int) tensor.Score { return s.g.scoreOf(layer, head, s.Score) }

// scoreOf returns the score of the query heads that share a KV head.
func (g *Geometry) scoreOf(layer, head int, score tensor.Score) tensor.Score {
	return score.Heads(layer, head*g.group(), g.group())
}

package batcher

import "github.com/shoal-llm/shoal/internal/engine/tensor"

// Blocks of generated tokens. A prompt and its output are the beginning of the conversation's next
// turn. With policies that rebuild by prefill, the rows of the output equal those of a prefill. But
// only the owner has them, with all heads. With one socket they stay there. With several, the ended
// sequence keeps its memory until each socket has fetched the rows of its heads. That happens while
// steps run, in memory that is otherwise unused. With recurrent states, the last of the blocks gets the
// copy of the states (prefixcopies.go); without a copy no block is kept.
//
// No later row commits the tokens of the last step. The order to keep or to fetch the blocks does: the
// owner commits the tokens up to the end of the last of them.

// keepOutput moves the blocks of an ended sequence to the cache. held reports that the sequence
// keeps its memory until their fetch ends.
func (c *prefixCache) keepOutput(r *request) (held bool) {
	if r.phase != decoding || !c.keepsOutput(r) {
		return false
	}
	end := c.outputEnd(r)
	switch {
	case end == 0:
		return false
	case len(c.s.ledger.sockets) == 1:
		c.keepHere(r, end)
		return false
	}
	return c.fetches.Spread(&r.prefix.Text, len(r.Prompt)/tensor.BlockSlots, end, endedSequence{c.s, r}, r.seq, r.owner)
}

// endedSequence is a prefix.Sequence.
type endedSequence struct {
	s *State
	r *request
}

func (e endedSequence) Free() { e.s.free(e.r) }

// keepsOutput reports whether the cache can keep the output of a request.
func (c *prefixCache) keepsOutput(r *request) bool {
	return c.serves(r) && r.Prefill == 0 && c.s.cfg.Geometry.Windows == nil && r.Policy.RebuildsByPrefill()
}

// outputEnd returns the number of tokens that the blocks of an ended sequence have.
func (c *prefixCache) outputEnd(r *request) int {
	if c.tree.Recurrent() {
		r.prefix.copy.commit(r)
		return r.prefix.copy.after
	}
	return r.cached / tensor.BlockSlots * tensor.BlockSlots
}

// keepHere keeps the blocks of the first tokens of an ended sequence on the only socket.
func (c *prefixCache) keepHere(r *request, tokens int) {
	k, last := c.tree.Keep(&r.prefix.Text, r.seq, tokens, func() { c.s.ledger.takeOver(r, 1) })
	if last != nil && last.Tokens == r.prefix.copy.after && c.keepCopy(r, last) {
		k.Snapshot = last.ID
	}
	if len(k.Blocks) > 0 || k.Snapshot != 0 {
		c.kept.Add(k)
	}
}

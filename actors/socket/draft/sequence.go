package draft

import (
	"slices"

	"github.com/shoal-llm/shoal/actors/layer"
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/speculate"
	"github.com/shoal-llm/shoal/internal/proto"
)

// State is the state of the draft model for one sequence. Feed, Undo and Release of a nil State do
// nothing.
type State struct {
	mtp    bool
	tokens []int32      // tokens of the sequence; with MTP, of the queued rows
	hidden layer.States // hidden states of the queued rows, the input of the model's head; nil without MTP
	cached []int32      // tokens in the draft model's cache
	cache  *kvcache.Store
}

// Release frees the cache and drops the tokens.
func (d *State) Release() {
	if d != nil {
		d.tokens = nil
		d.dropHidden()
		d.clearCache()
	}
}

// dropHidden drops the states of the queued rows.
func (d *State) dropHidden() {
	if d.hidden != nil {
		d.hidden.Drop(d.hidden.Len())
	}
}

// clearCache releases the cache with its memory.
func (d *State) clearCache() {
	if d.cache != nil {
		d.cache.Release()
	}
	d.cache, d.cached = nil, nil
}

// Feed appends a token of the sequence. MTP gets its tokens with their rows instead, by Queue.
func (d *State) Feed(token int32) {
	if d != nil && !d.mtp {
		d.tokens = append(d.tokens, token)
	}
}

// Undo removes the newest token. MTP starts again after it.
func (d *State) Undo() {
	switch {
	case d == nil:
	case d.mtp:
		d.Release()
	default:
		d.tokens = d.tokens[:len(d.tokens)-1]
	}
}

// Skip reports that the rows of a step will not be queued. MTP starts again after them.
func (d *State) Skip() {
	if d.mtp {
		d.Release()
	}
}

// Queue queues the rows of a step whose next token is known, for MTP. row is the first row of tokens in
// the batch of b, and next is the token after the last one.
func (d *State) Queue(b layer.Backend, ends layer.Held, tokens []int32, row int, next int32) {
	if !d.mtp {
		return
	}
	skip := max(0, len(tokens)-maxQueued)
	tokens, row = tokens[skip:], row+skip
	d.tokens = append(d.tokens, tokens[1:]...)
	d.tokens = append(d.tokens, next)
	states := make([]int, len(tokens))
	for i := range states {
		states[i] = row + i
	}
	b.Keep(d.hidden, ends, states)
	d.trim()
}

// trim drops the oldest queued rows above the limit. It also empties the cache, which then has a gap.
func (d *State) trim() {
	if n := len(d.tokens) - maxQueued; n > 0 {
		d.clearCache()
		d.tokens = slices.Delete(d.tokens, 0, n)
		d.hidden.Drop(n)
	}
}

// Request is a request to draft at most n tokens of a sequence.
type Request struct {
	of   *State
	n    int
	out  *proto.Sampled
	rows []int32 // tokens that are not in the cache yet
}

// Request returns a request to draft at most n tokens after next. The drafts go to out.
func (d *State) Request(n int, next int32, out *proto.Sampled) Request {
	r := Request{of: d, n: min(n, speculate.MaxDraft), out: out, rows: d.tokens}
	if !d.mtp {
		r.rows = append(slices.Clip(r.rows), next)
	}
	return r
}

package batcher

import "github.com/shoal-llm/shoal/internal/engine/plan"

// inputs is the module for prompt tokens that attend like generated ones: the input after a fixed context,
// the last tokens of a prompt under a policy that asks for it, and the next message of a session. They are read
// in chunks, like a prompt. A chunk is a decode row of several tokens. The chunk that ends the prompt also
// samples the first token of the answer.
type inputs struct{ s *State }

// undoneRows limits the rows of an input where each token of a step needs memory to be undone, or a place in
// a window's ring.
const undoneRows = 64

// filedRows limits the rows of an input whose cache has rows in a file: each row reads its own choice from there,
// one after another, and a step must end in time on a slow disk.
const filedRows = 8

// most returns the most rows of a request's input in a step.
func (x *inputs) most(r *request) int {
	g, chunk := x.s.cfg.Geometry, x.s.cfg.Chunk
	switch {
	case g.Single(r.Policy):
		return 1
	case r.resides.file.blocks > 0:
		return min(chunk, filedRows)
	case r.Policy.Evicts() || r.Policy.Ring > 0 || g.Windows != nil || g.Recurrent.Layers > 0:
		return min(chunk, undoneRows)
	}
	return chunk
}

// plan adds tokens of a request's input to its row, at most left, as far as memory is free. It returns
// their number.
func (x *inputs) plan(row *plan.Run, r *request, left int) int {
	known := len(r.Prompt) - 1 - r.cached // tokens after which the prompt has the next one
	if known <= 0 {
		return 0
	}
	n := x.s.reserve(r, min(known, left, x.most(r)-1))
	row.Tokens = append(row.Tokens, r.tokens(r.cached+1, r.cached+1+n)...)
	if n == known {
		row.Sample, row.Known = true, known
	}
	return n
}

// done counts the tokens of a row after which nothing was sampled, and returns their number.
func (x *inputs) done(r *request, row *plan.Run) int {
	n := row.Known
	if !row.Sample {
		n = len(row.Tokens)
	}
	x.s.totals.Recomputed += uint64(max(0, min(r.reached, r.cached+n)-r.cached))
	r.cached, r.staged = r.cached+n, n
	r.reached = max(r.reached, r.cached)
	return n
}

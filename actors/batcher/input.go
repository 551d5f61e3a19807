package batcher

import "github.com/shoal-llm/shoal/internal/engine/plan"

// inputs is the module for prompt tokens that are computed as decode rows: the input after a fixed context,
// the last tokens of a prompt under a policy with a tail, and the next message of a session. A step computes
// a chunk of them as one decode row of several tokens. The chunk that ends the prompt also samples the first
// token of the answer.
type inputs struct{ s *State }

// undoneRows is the maximum number of rows of an input in a step if each row needs memory for its rollback,
// or a slot in the ring of a window.
const undoneRows = 64

// filedRows is the maximum number of rows of an input in a step if its cache has rows in a file. Each row
// reads its own selection from the file, one row after another. The limit bounds a step's time on a slow disk.
const filedRows = 8

// most returns the maximum number of rows of a request's input in a step.
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

// plan appends tokens of a request's input to its row: at most left, and no more than free memory allows.
// It returns their number.
func (x *inputs) plan(row *plan.Run, r *request, left int) int {
	known := len(r.Prompt) - 1 - r.cached // tokens of the row whose next token is in the prompt
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

// done adds the tokens of a row after which nothing was sampled to the cache, and returns their number.
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

package batcher

import (
	"slices"

	"github.com/shoal-llm/shoal/internal/engine/kvcache/layered"
	"github.com/shoal-llm/shoal/internal/engine/plan"
	"github.com/shoal-llm/shoal/internal/engine/pooling"
)

// layers is the module for prompts that are read layer by layer: memory holds the full cache of some
// layers, the residual stream, and the rows that the policy has kept of earlier layers
// (docs/decisions/layer-by-layer.md).
type layers struct {
	s          *State
	filesAfter int64 // the residual stream is not stored in files before this time, because one failed
}

// filesRest is the time without files after a failure, in milliseconds. Sockets avoid a failed disk for the
// same time.
const filesRest = 5000

// sweeping is the progress of one request's prompt. The zero value means that it is read in chunks.
type sweeping struct {
	shape layered.Shape
	first int   // position of the first token that no block of the prefix cache has
	from  int   // first of the layers that are being read
	read  int   // tokens that they have read
	files int64 // bytes of the file of each socket
}

// shapes returns the ways to read a prompt, in the order of preference. Requests for
// vectors, for scores or with a fixed context are read in chunks. empty means that no files of others
// count.
func (l *ledger) shapes(r *request, read, shared int, empty bool) []layered.Shape {
	if r.Pool != pooling.None || r.PromptLogprobs >= 0 || r.Context > 0 {
		return []layered.Shape{{}}
	}
	return l.prefill.Shapes(l.g, len(l.sockets), r.Policy, read, shared, func(bytes int64) bool {
		return !slices.ContainsFunc(l.sockets, func(a account) bool {
			return bytes > a.Scratch || !empty && a.files+bytes > a.Scratch
		})
	})
}

// endSweeps ends the reading of a prompt by layers, and frees its files.
func (l *ledger) endSweeps(r *request) {
	for i := range l.sockets {
		l.sockets[i].files -= r.sweeping.files
	}
	r.sweeping = sweeping{}
}

// plan adds the next tokens of a prompt, through the layers that are being read. It returns their share
// of the step's tokens.
func (m *layers) plan(p *plan.Plan, r *request, left int) int {
	x, share := &r.sweeping, min(left, m.s.cfg.Chunk)
	to, end := x.shape.To(x.from), min(r.read, x.read+x.shape.Rows(x.from, min(share, x.shape.Pass)))
	p.Sweeps = append(p.Sweeps, plan.Sweep{Seq: r.seq, From: x.from, To: to, Start: x.read, Tokens: r.tokens(x.read, end),
		Sample: end == r.read && to == x.shape.Layers && r.limit > 0 && end >= len(r.Prompt)})
	m.s.drafts.index(r)
	return share
}

// done counts the tokens of a step's sweeps, and hands complete prompts over. It returns their number as
// if each had passed all layers.
func (m *layers) done(f *flight, results map[uint64]*Result) (read int) {
	for i := range f.plan.Sweeps {
		w := &f.plan.Sweeps[i]
		r := f.rows[w.Seq]
		if r.seq != w.Seq { // its file was lost, so it was preempted
			continue
		}
		x := &r.sweeping
		x.read += len(w.Tokens)
		read += x.shape.Share(len(w.Tokens), w.From)
		if x.read < r.read {
			continue
		}
		if x.from, x.read = w.To, x.first; w.To < x.shape.Layers {
			continue
		}
		m.s.readAgain(r, r.read-r.cached)
		if w.Sample {
			r.clustered.sample = &results[w.Seq].Samples[0]
		}
		m.s.ledger.endSweeps(r)
		m.s.handedOver(r)
	}
	return read
}

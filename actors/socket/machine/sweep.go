package machine

import (
	"fmt"
	"slices"

	"github.com/shoal-llm/shoal/internal/engine/kvcache/layered"
	"github.com/shoal-llm/shoal/internal/engine/plan"
	"github.com/shoal-llm/shoal/internal/engine/pooling"
	"github.com/shoal-llm/shoal/topology"
)

// swept is the progress of a prompt that is read layer by layer. Sequence.Read counts the tokens that
// the current layers have read.
type swept struct {
	pass   int            // tokens that the layers get at a time; 0: chunks read the prompt
	first  int            // position of the first token that no shared block has
	layers topology.Range // that are being read
}

// checkLayered checks a sequence whose prompt sweeps will read.
func (m *Machine) checkLayered(o *plan.Open) error {
	fails := func(why string, args ...any) error {
		return fmt.Errorf("socket: sequence %d cannot be read layer by layer: %s", o.Seq, fmt.Sprintf(why, args...))
	}
	l := &m.limits
	switch {
	case o.PassRows == 0 && o.InFile:
		return fails("it has a file for rows between layers, and passes of no rows")
	case o.PassRows == 0:
		return nil
	case !l.Layered:
		return fails("the layers of this model exchange more than the residual stream")
	case o.PassRows > l.Rows:
		return fails("passes of %d tokens, a step has at most %d rows", o.PassRows, l.Rows)
	case len(o.Resume) > 0 || o.Fork != 0 || o.Tail > 0 || o.Pool != pooling.None:
		return fails("it resumes with a cache, ends with a vector, or decodes a part of its prompt")
	case !layered.Fits(o.Policy):
		return fails("%s needs all layers at once, or keeps all tokens", o.Policy.Spec())
	case len(o.Shared) > 0 && o.Policy.Needs.PromptAttention:
		return fails("%s needs the attention sums of %d shared blocks for all layers", o.Policy.Spec(), len(o.Shared))
	}
	return nil
}

// checkSweep checks that a sweep continues where the prompt was read last.
func (m *Machine) checkSweep(p *plan.Plan, w *plan.Sweep, q *Sequence) error {
	fails := func(why string, args ...any) error {
		return fmt.Errorf("socket: step %d cannot take sequence %d through layers [%d,%d): %s", p.Step,
			w.Seq, w.From, w.To, fmt.Sprintf(why, args...))
	}
	switch {
	case q == nil:
		return fails("it is not open")
	case p.Passes > 1:
		return fails("the step has %d passes", p.Passes)
	case q.lastStep == p.Step:
		return fails("the step names the sequence twice")
	case q.swept.pass == 0:
		return fails("its prompt is read in chunks")
	case q.HandedOver:
		return fails("its prompt is complete")
	}
	end, begins := w.Start+len(w.Tokens), q.Read == q.swept.first
	switch {
	case w.Start != q.Read || len(w.Tokens) == 0 || end > q.Prompt:
		return fails("tokens [%d,%d) after %d of %d", w.Start, end, q.Read, q.Prompt)
	case end < q.Prompt && len(w.Tokens)%q.swept.pass != 0:
		return fails("%d tokens are no whole passes of %d", len(w.Tokens), q.swept.pass)
	case begins && (w.From != q.swept.layers.Hi || w.To <= w.From || w.To > m.limits.Layers):
		return fails("%d of %d layers are read", q.swept.layers.Hi, m.limits.Layers)
	case w.From < m.limits.Later && w.To > m.limits.Later:
		return fails("the keys and values of the layers from %d on need the residual stream of the whole prompt", m.limits.Later)
	case m.limits.Begins != nil && w.To < m.limits.Layers && !slices.Contains(m.limits.Begins, w.To):
		return fails("no layer begins with cache %d", w.To)
	case !begins && (w.From != q.swept.layers.Lo || w.To != q.swept.layers.Hi):
		return fails("layers [%d,%d) have read %d of %d tokens", q.swept.layers.Lo, q.swept.layers.Hi, q.Read, q.Prompt)
	case w.Sample && (end != q.Prompt || w.To != m.limits.Layers):
		return fails("it samples before the last token of the last layer")
	}
	q.lastStep = p.Step
	if err := checkLoaded(w.Seq, q); err != nil {
		return err
	}
	return m.checkTokens(w.Seq, w.Tokens)
}

// sweep adds the runs and effects of a sweep to the work.
func (m *Machine) sweep(w *Work, x *plan.Sweep) {
	q := m.seqs[x.Seq]
	m.fly(q, x.Seq)
	if x.Start == q.swept.first {
		q.swept.layers = topology.Range{Lo: x.From, Hi: x.To}
		w.First = append(w.First, Effect{Do: DoEnter, Seq: x.Seq, Layers: q.swept.layers, Tokens: x.Start})
	}
	end := x.Start + len(x.Tokens)
	w.First = append(w.First, Effect{Do: DoReservePrompt, Seq: x.Seq, Tokens: end})
	if end == q.Prompt && x.From == 0 && q.Owner == m.limits.Rank {
		w.First = append(w.First, Effect{Do: DoOpenCache, Seq: x.Seq, Tokens: q.Prompt})
	}
}

// endSweep counts the tokens of a sweep.
func (m *Machine) endSweep(x *plan.Sweep) {
	q := m.seqs[x.Seq]
	if q.Read += len(x.Tokens); q.Read < q.Prompt {
		return
	}
	if q.HandedOver = x.To == m.limits.Layers; !q.HandedOver {
		q.Read = q.swept.first
	}
}

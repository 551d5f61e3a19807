package machine

import (
	"fmt"

	"github.com/shoal-llm/shoal/internal/engine/plan"
	"github.com/shoal-llm/shoal/internal/engine/speculate"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// maxScores bounds the log-probabilities of a step. Each takes some 13 bytes of the
// reply, which has room for this number.
const maxScores = 1 << 16

// checkRuns checks the rows of a step, and the number of log-probabilities that they request.
func (m *Machine) checkRuns(p *plan.Plan, seqs *sequences) error {
	scores := 0
	for _, list := range [...][]plan.Run{p.Decode, p.Chunks} {
		for i := range list {
			c := &list[i]
			q := seqs.at(c.Seq)
			if err := m.checkRun(p, c, q); err != nil {
				return err
			}
			if p.Passes > 1 {
				if err := m.checkPasses(p, c, q); err != nil {
					return err
				}
			}
			if scores += scoresOf(c, q) * p.PassCount(); scores > maxScores {
				return fmt.Errorf("socket: step %d requests %d log-probabilities, an answer has room for %d", p.Step, scores, maxScores)
			}
		}
	}
	return nil
}

func (m *Machine) checkRun(p *plan.Plan, c *plan.Run, q *Sequence) error {
	l, n := &m.limits, len(c.Tokens)
	switch {
	case q == nil:
		return fmt.Errorf("socket: step %d names sequence %d, which is not open", p.Step, c.Seq)
	case q.lastStep == p.Step:
		return fmt.Errorf("socket: step %d names sequence %d twice", p.Step, c.Seq)
	case n == 0 || c.Start+n > q.Policy.ContextLimit(l.Positions):
		return fmt.Errorf("socket: sequence %d: %d tokens from position %d, context is %d", c.Seq, n, c.Start, q.Policy.ContextLimit(l.Positions))
	case c.Draft > speculate.MaxDraft:
		return fmt.Errorf("socket: sequence %d: a draft of %d tokens, at most %d are possible", c.Seq, c.Draft, speculate.MaxDraft)
	case c.PromptLogprobs > l.Vocab || c.PromptLogprobs >= 0 && (c.Next < plan.None || int(c.Next) >= l.Vocab):
		return fmt.Errorf("socket: sequence %d: %d log-probabilities of prompt tokens, the next is %d; vocabulary is %d",
			c.Seq, c.PromptLogprobs, c.Next, l.Vocab)
	}
	check := m.checkDecode
	if c.Prefill {
		check = m.checkPrefill
	}
	if err := check(c, q); err != nil {
		return err
	}
	q.lastStep = p.Step
	if err := checkLoaded(c.Seq, q); err != nil {
		return err
	}
	if err := m.checkSave(c, q); err != nil {
		return err
	}
	return m.checkTokens(c.Seq, c.Tokens)
}

// checkPrefill checks that a chunk follows the tokens that were read, and that only the last one ends the prompt.
func (m *Machine) checkPrefill(c *plan.Run, q *Sequence) error {
	end := c.Start + len(c.Tokens)
	switch {
	case q.swept.pass > 0:
		return fmt.Errorf("socket: sequence %d: a chunk at %d of a prompt that is read layer by layer", c.Seq, c.Start)
	case c.Start != q.Read || end > q.Prompt:
		return fmt.Errorf("socket: sequence %d: prompt chunk [%d,%d), but %d of %d tokens are read", c.Seq, c.Start, end, q.Read, q.Prompt)
	case c.Last && end != q.Prompt:
		return fmt.Errorf("socket: sequence %d: the last prompt chunk ends at %d of %d tokens", c.Seq, end, q.Prompt)
	case q.Pools && (c.Last || c.Sample || c.PromptLogprobs >= 0):
		return fmt.Errorf("socket: sequence %d ends with a vector: a run of it cannot sample, score or hand over", c.Seq)
	case m.limits.Whole && (len(c.Tokens) != q.Prompt || len(c.Save) > 0):
		return fmt.Errorf("socket: sequence %d: a run of %d of %d tokens; attention is not causal, so one run must read them all, and no "+
			"block is shared", c.Seq, len(c.Tokens), q.Prompt)
	case c.Accepted != 0:
		return fmt.Errorf("socket: sequence %d: a prompt chunk accepts %d sampled tokens", c.Seq, c.Accepted)
	case c.Known != 0:
		return fmt.Errorf("socket: sequence %d: a prompt chunk has %d known tokens, which only decode rows have", c.Seq, c.Known)
	}
	return nil
}

// checkDecode checks that a row follows the tokens that count.
func (m *Machine) checkDecode(c *plan.Run, q *Sequence) error {
	switch {
	case !q.HandedOver:
		return fmt.Errorf("socket: sequence %d decodes at position %d, but %d of %d prompt tokens are read", c.Seq, c.Start, q.Read, q.Prompt)
	case c.Last:
		return fmt.Errorf("socket: sequence %d: a decode row at position %d has last=true, which is for prompts", c.Seq, c.Start)
	case c.Known > 0 && (!c.Sample || c.Known >= len(c.Tokens)):
		return fmt.Errorf("socket: sequence %d: %d of %d tokens at position %d are known, samples %v: the last token must be sampled after",
			c.Seq, c.Known, len(c.Tokens), c.Start, c.Sample)
	case c.Accepted > q.Staged:
		return fmt.Errorf("socket: sequence %d accepts %d tokens of its last step, which had %d", c.Seq, c.Accepted, q.Staged)
	case c.Start != q.Read+c.Accepted:
		return fmt.Errorf("socket: sequence %d decodes at position %d, but %d tokens count and %d more are accepted",
			c.Seq, c.Start, q.Read, c.Accepted)
	case len(c.Tokens) > 1 && q.oneToken:
		return fmt.Errorf("socket: sequence %d: %d tokens in one step under %s, whose scores change between them; layers that share a cache "+
			"would differ: decode one token a step",
			c.Seq, len(c.Tokens), q.Policy.Spec())
	}
	return nil
}

// checkPasses checks a row of a step with several passes: the token that it samples is its
// next token, and the step does nothing else.
func (m *Machine) checkPasses(p *plan.Plan, c *plan.Run, q *Sequence) error {
	fails := func(why string, args ...any) error {
		return fmt.Errorf("socket: step %d has %d passes, but %s", p.Step, p.Passes, fmt.Sprintf(why, args...))
	}
	switch {
	case p.Passes > 1+speculate.MaxDraft:
		return fails("at most %d are possible", 1+speculate.MaxDraft)
	case len(p.Index) > 0:
		return fails("it also computes %d indexes", len(p.Index))
	case len(p.Copy) > 0:
		return fails("it also makes %d replicas", len(p.Copy))
	case c.Prefill:
		return fails("sequence %d has a prompt chunk", c.Seq)
	case !c.Sample:
		return fails("sequence %d samples nothing", c.Seq)
	case len(c.Tokens) != 1:
		return fails("sequence %d has %d tokens in a row", c.Seq, len(c.Tokens))
	case c.Draft > 0:
		return fails("sequence %d requests a draft of %d tokens", c.Seq, c.Draft)
	case q.oneToken:
		return fails("sequence %d decodes one token a step under %s", c.Seq, q.Policy.Spec())
	case c.Start+p.Passes > q.Policy.ContextLimit(m.limits.Positions):
		return fails("sequence %d is at position %d, context is %d", c.Seq, c.Start, q.Policy.ContextLimit(m.limits.Positions))
	}
	return nil
}

// checkSave checks the blocks that a run leaves to the prefix cache: the run completes them.
func (m *Machine) checkSave(c *plan.Run, q *Sequence) error {
	end, n := c.Start+len(c.Tokens), len(c.Save)
	switch {
	case n > 0 && !c.Prefill:
		return fmt.Errorf("socket: sequence %d: a decode row saves %d blocks of a prompt", c.Seq, n)
	case n > 0 && (c.SaveFrom > m.limits.Positions || c.SaveFrom+n > end/tensor.BlockSlots):
		return fmt.Errorf("socket: sequence %d saves blocks [%d,%d) of its prompt, but %d tokens fill %d blocks", c.Seq, c.SaveFrom,
			c.SaveFrom+n, end, end/tensor.BlockSlots)
	}
	for i, id := range c.Save {
		if at, here := m.blocks[id]; here && at != c.SaveFrom+i {
			return fmt.Errorf("socket: sequence %d: block %d is block %d of a text, not %d", c.Seq, id, at, c.SaveFrom+i)
		}
	}
	what := "attention sums"
	if !c.Sums {
		what = "a snapshot"
	}
	switch {
	case !c.Sums && !c.Snapshot:
	case !c.Prefill && c.Snapshot && m.limits.Recurrent:
	case c.Sums && !q.Policy.Needs.PromptAttention:
		return fmt.Errorf("socket: sequence %d saves attention sums, which %s does not use", c.Seq, q.Policy.Spec())
	case c.Snapshot && !m.limits.Recurrent:
		return fmt.Errorf("socket: sequence %d saves a snapshot, but the model has no recurrent states", c.Seq)
	case n == 0:
		return fmt.Errorf("socket: sequence %d saves %s, but it names no block", c.Seq, what)
	case c.Snapshot && m.snapshots[c.Save[n-1]]:
		return fmt.Errorf("socket: sequence %d saves a snapshot, but block %d has one", c.Seq, c.Save[n-1])
	case (c.SaveFrom+n)*tensor.BlockSlots != end:
		return fmt.Errorf("socket: sequence %d saves %s at the end of %d tokens, which is not the end of its block %d",
			c.Seq, what, end, c.SaveFrom+n-1)
	}
	return nil
}

// scoresOf returns the number of log-probabilities that a run requests.
func scoresOf(c *plan.Run, q *Sequence) (n int) {
	if c.PromptLogprobs >= 0 {
		n = len(c.Tokens) * (1 + c.PromptLogprobs)
	}
	switch rows := 1 + max(0, q.Logprobs); {
	case c.Sample && c.Prefill:
		n += rows
	case c.Sample:
		n += (len(c.Tokens) - c.Known) * rows
	}
	return n
}

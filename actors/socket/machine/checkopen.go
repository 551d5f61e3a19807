package machine

import (
	"fmt"

	"github.com/shoal-llm/shoal/internal/engine/plan"
	"github.com/shoal-llm/shoal/internal/engine/pooling"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// checkOpens checks the sequences that a plan opens.
func (m *Machine) checkOpens(p *plan.Plan) (seqs sequences, err error) {
	left := len(m.seqs)
	seqs.now = m.seqs
	seqs.keeps(p.Keep)
	for _, id := range p.Release {
		if seqs.released == nil {
			seqs.released = map[uint64]bool{}
		}
		if !seqs.released[id] && m.seqs[id] != nil {
			left--
		}
		seqs.released[id] = true
	}
	for i := range p.Open {
		o := &p.Open[i]
		switch {
		case seqs.at(o.Seq) != nil:
			return seqs, fmt.Errorf("socket: sequence %d is open already", o.Seq)
		case left+len(seqs.opened) >= m.limits.Rows:
			return seqs, fmt.Errorf("socket: sequence %d: %d are open, as many as a step has rows", o.Seq, left+len(seqs.opened))
		}
		q, err := m.checkOpen(o, &seqs)
		if err == nil && o.Fork != 0 {
			err = checkFork(o, q, seqs.at(o.Fork))
		}
		if err != nil {
			return seqs, err
		}
		if seqs.opened == nil {
			seqs.opened = map[uint64]*Sequence{}
		}
		seqs.opened[o.Seq] = q
		if o.Take { // no run or other sequence can use it
			if seqs.released == nil {
				seqs.released = map[uint64]bool{}
			}
			if from := seqs.opened[o.Fork]; from != nil { // the plan resumes it, and moves its cache on
				if seqs.taken == nil {
					seqs.taken = map[uint64]*Sequence{}
				}
				seqs.taken[o.Fork] = from
				delete(seqs.opened, o.Fork)
			} else {
				left--
			}
			seqs.released[o.Fork] = true
		}
	}
	return seqs, nil
}

func (m *Machine) checkOpen(o *plan.Open, seqs *sequences) (*Sequence, error) {
	l := &m.limits
	switch {
	case o.Owner >= l.Ranks:
		return nil, fmt.Errorf("socket: sequence %d: owner %d of %d ranks", o.Seq, o.Owner, l.Ranks)
	case o.Read == 0 || o.Read > l.Positions:
		return nil, fmt.Errorf("socket: sequence %d: %d prompt tokens, the context holds 1 to %d", o.Seq, o.Read, l.Positions)
	case o.Tail > o.Policy.ContextLimit(l.Positions)-o.Read:
		return nil, fmt.Errorf("socket: sequence %d: a prompt of %d and %d tokens, the context holds %d", o.Seq,
			o.Read, o.Tail, o.Policy.ContextLimit(l.Positions))
	case o.Tail > 0 && o.Sampled > 0:
		return nil, fmt.Errorf("socket: sequence %d: %d prompt tokens follow %d sampled ones", o.Seq, o.Tail, o.Sampled)
	case o.Sampled > o.Read:
		return nil, fmt.Errorf("socket: sequence %d: %d of %d prompt tokens were sampled", o.Seq, o.Sampled, o.Read)
	}
	if err := o.Sampling.Validate(l.Vocab); err != nil {
		return nil, fmt.Errorf("socket: sequence %d: %w", o.Seq, err)
	}
	if err := m.checkShared(o, seqs); err != nil {
		return nil, err
	}
	if err := m.checkPool(o); err != nil {
		return nil, err
	}
	if err := m.checkAdapter(o); err != nil {
		return nil, err
	}
	if err := m.checkLayered(o); err != nil {
		return nil, err
	}
	q := &Sequence{Owner: o.Owner, Pools: o.Pool != pooling.None, Replica: plan.None, Prompt: o.Read, Policy: o.Policy, Adapter: o.Adapter,
		Logprobs: o.Sampling.Logprobs, Read: len(o.Prefix), oneToken: l.Across && o.Policy.Scored(),
		swept: swept{pass: o.PassRows, first: len(o.Prefix)}}
	switch {
	case o.Take && (o.Fork == 0 || len(o.Resume) == 0):
		return nil, fmt.Errorf("socket: sequence %d takes a cache without tokens", o.Seq)
	case len(o.Resume) == 0 && o.Replica != plan.None:
		return nil, fmt.Errorf("socket: sequence %d: a replica on %d of a cache that does not exist yet", o.Seq, o.Replica)
	case len(o.Resume) == 0:
		return q, nil
	}
	q.Replica, q.Read, q.HandedOver, q.Replicated = o.Replica, len(o.Resume), true, o.Replica != plan.None
	if err := m.checkTokens(o.Seq, o.Resume); err != nil {
		return nil, err
	}
	if o.Fork != 0 {
		return q, m.checkForked(o)
	}
	return q, m.checkResume(o, q, seqs.released[o.Seq])
}

// checkPool checks a text that ends with a vector: all of it is a prompt. Where attention is not
// causal, there are no other texts, and no rows of an earlier run can be used.
func (m *Machine) checkPool(o *plan.Open) error {
	switch {
	case o.Pool == pooling.None && (m.limits.Whole || m.limits.Headless):
		return fmt.Errorf("socket: sequence %d samples tokens, but this model only makes vectors: it is not causal, or has no output head", o.Seq)
	case o.Pool == pooling.None:
		return nil
	case o.Tail+o.Sampled+len(o.Resume) > 0 || o.Fork != 0:
		return fmt.Errorf("socket: sequence %d ends with a vector; it cannot have decode rows, an output or another's cache", o.Seq)
	case len(o.Shared) > 0 && (m.limits.Whole || o.Pool != pooling.Last):
		return fmt.Errorf("socket: sequence %d needs the states of all its tokens, but begins with %d shared blocks", o.Seq, len(o.Shared))
	}
	return nil
}

// checkForked checks the sequence that starts with the cache of another one.
func (m *Machine) checkForked(o *plan.Open) error {
	fails := func(why string) error {
		return fmt.Errorf("socket: sequence %d begins with another's cache of %d tokens: %s", o.Seq, len(o.Resume), why)
	}
	switch {
	case !o.Take && !o.Policy.Forks():
		return fails(fmt.Sprintf("policy %s cannot fork", o.Policy.Spec()))
	case len(o.Resume) < o.Read || !o.Take && len(o.Resume) != o.Read:
		return fails(fmt.Sprintf("its prompt has %d", o.Read))
	case len(o.Resume) > o.Policy.ContextLimit(m.limits.Positions):
		return fails(fmt.Sprintf("the context holds %d", o.Policy.ContextLimit(m.limits.Positions)))
	case o.Replica != plan.None:
		return fails("a fork has no replica")
	}
	return nil
}

// checkResume checks a sequence that continues with a cache from an earlier epoch.
func (m *Machine) checkResume(o *plan.Open, q *Sequence, released bool) error {
	n, l := len(o.Resume), &m.limits
	switch {
	case n < q.Prompt || n > q.Policy.ContextLimit(l.Positions):
		return fmt.Errorf("socket: sequence %d resumes with %d tokens after a prompt of %d, the context holds %d", o.Seq,
			n, q.Prompt, q.Policy.ContextLimit(l.Positions))
	case q.Replica == q.Owner || q.Replica >= l.Ranks:
		return fmt.Errorf("socket: sequence %d resumes with a replica on %d of %d ranks, owner %d", o.Seq, q.Replica, l.Ranks, q.Owner)
	case q.Owner != l.Rank && q.Replica != l.Rank:
		return nil
	}
	k := m.kept[o.Seq]
	switch {
	case k == nil || released:
		return fmt.Errorf("socket: sequence %d resumes, but nothing of it was kept here", o.Seq)
	case k.Policy.Spec() != q.Policy.Spec() || k.Prompt != q.Prompt || k.Layout != l.Layout:
		return fmt.Errorf("socket: sequence %d resumes under %s with a prompt of %d in %v; kept under %s with %d in %v",
			o.Seq, q.Policy.Spec(), q.Prompt, l.Layout.Type, k.Policy.Spec(), k.Prompt, k.Layout.Type)
	case k.Adapter != q.Adapter:
		return fmt.Errorf("socket: sequence %d resumes with adapter %v; its cache was kept with %v", o.Seq, q.Adapter, k.Adapter)
	case n < k.Tokens || n > k.Tokens+k.Staged:
		return fmt.Errorf("socket: sequence %d resumes with %d tokens; %d are kept, and %d of the last step", o.Seq, n, k.Tokens, k.Staged)
	}
	return nil
}

// checkFork checks the cache that a fork begins with: it is complete, on the same owner,
// and laid out as the fork's own cache would be.
func checkFork(o *plan.Open, q, from *Sequence) error {
	fails := func(why string, args ...any) error {
		return fmt.Errorf("socket: sequence %d cannot begin with the cache of sequence %d: %s", o.Seq, o.Fork, fmt.Sprintf(why, args...))
	}
	switch {
	case o.Fork == o.Seq:
		return fails("it is the same sequence")
	case from == nil:
		return fails("that sequence is not open")
	case !from.HandedOver:
		return fails("its prompt is not complete")
	case from.Owner != q.Owner:
		return fails("it is on rank %d, not %d", from.Owner, q.Owner)
	case from.Prompt != q.Prompt:
		return fails("its prompt has %d tokens, not %d", from.Prompt, q.Prompt)
	case from.Adapter != q.Adapter:
		return fails("its adapter is %v, not %v", from.Adapter, q.Adapter)
	case from.Policy.Spec() != q.Policy.Spec():
		return fails("its policy is %s, not %s", from.Policy.Spec(), q.Policy.Spec())
	case o.Take && (q.Read < from.Read || q.Read > from.Read+from.Staged):
		return fails("it has %d tokens and %d of its last step, not %d", from.Read, from.Staged, q.Read)
	}
	return nil
}

// checkShared checks the blocks of the prefix cache that a prompt begins with: the first blocks of a
// text, in order, up to the limit of the policy. The same plan may keep them.
func (m *Machine) checkShared(o *plan.Open, seqs *sequences) error {
	n := len(o.Prefix)
	switch {
	case n != len(o.Shared)*tensor.BlockSlots:
		return fmt.Errorf("socket: sequence %d: %d shared blocks for %d tokens; a block has %d", o.Seq, len(o.Shared), n, tensor.BlockSlots)
	case n > o.Policy.ReusableTokens(o.Read):
		return fmt.Errorf("socket: sequence %d: %d shared blocks for %d of %d prompt tokens; %s takes at most %d tokens from the prefix cache",
			o.Seq, len(o.Shared), n, o.Read, o.Policy.Spec(), o.Policy.ReusableTokens(o.Read))
	case n > 0 && len(o.Resume) > 0:
		return fmt.Errorf("socket: sequence %d resumes with a cache, and begins with %d shared blocks", o.Seq, len(o.Shared))
	}
	for i, id := range o.Shared {
		at, here := m.blocks[id]
		if !here {
			at, here = seqs.kept[id]
		}
		if !here || at != i {
			return fmt.Errorf("socket: sequence %d: block %d is not a block %d of a text here", o.Seq, id, i)
		}
		switch last := i == len(o.Shared)-1; {
		case last && o.Policy.Needs.PromptAttention && !m.sums[id]:
			return fmt.Errorf("socket: sequence %d: block %d has no attention sums, which %s needs", o.Seq, id, o.Policy.Spec())
		case last && m.limits.Recurrent && !m.snapshots[id] && !seqs.snapshots[id]:
			return fmt.Errorf("socket: sequence %d: block %d has no snapshot of the recurrent states, which this model needs", o.Seq, id)
		}
	}
	return m.checkTokens(o.Seq, o.Prefix)
}

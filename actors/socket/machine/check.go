package machine

import (
	"fmt"
	"slices"

	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/plan"
	"github.com/shoal-llm/shoal/internal/engine/speculate"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// maxScores bounds the log-probabilities of a step. Each takes some 13 bytes of the
// reply, which has room for this number.
const maxScores = 1 << 16

// check examines a whole plan and changes nothing that counts. A socket can run
// every plan that passes. It returns the sequences that the plan opens; those that
// resume or fork are HandedOver.
func (m *Machine) check(p *plan.Plan) (opened map[uint64]*Sequence, err error) {
	if err := m.checkKeep(p.Keep); err != nil {
		return nil, err
	}
	for _, ids := range [...][]uint64{p.Release, p.DropReplica} {
		for _, id := range ids {
			if q := m.seqs[id]; q != nil && q.inFlight != 0 {
				return nil, fmt.Errorf("socket: sequence %d is in step %d, which is in flight", id, q.inFlight)
			}
		}
	}
	seqs, err := m.checkOpens(p)
	if err != nil {
		return nil, err
	}
	if err := m.checkRuns(p, &seqs); err != nil {
		return nil, err
	}
	for i := range p.Index {
		if err := m.checkIndex(p, &p.Index[i], seqs.at(p.Index[i].Seq)); err != nil {
			return nil, err
		}
	}
	if rows := len(p.Decode) + len(p.Chunks); rows+len(p.Index) == 0 || rows == 0 && p.Passes > 1 {
		return nil, fmt.Errorf("socket: step %d has no rows", p.Step)
	}
	for _, f := range p.Spill {
		switch q := seqs.at(f.Seq); {
		case q == nil || !q.HandedOver:
			return nil, fmt.Errorf("socket: sequence %d has no cache to move to a file", f.Seq)
		case f.Blocks == 0 || f.Blocks > q.Read/tensor.BlockSlots:
			return nil, fmt.Errorf("socket: sequence %d: %d blocks must move to a file, the cache has %d full blocks", f.Seq, f.Blocks, q.Read/tensor.BlockSlots)
		}
	}
	return seqs.opened, m.checkCopies(p, &seqs)
}

// sequences are those of a socket after the releases and opens of a plan.
type sequences struct {
	now      map[uint64]*Sequence
	released map[uint64]bool
	opened   map[uint64]*Sequence
}

// at returns the sequence with an ID, or nil.
func (s *sequences) at(id uint64) *Sequence {
	if q := s.opened[id]; q != nil {
		return q
	}
	if s.released[id] {
		return nil
	}
	return s.now[id]
}

// checkOpens checks the sequences that a plan opens.
func (m *Machine) checkOpens(p *plan.Plan) (seqs sequences, err error) {
	left := len(m.seqs)
	seqs.now = m.seqs
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
		q, err := m.checkOpen(o, seqs.released[o.Seq])
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
	}
	return seqs, nil
}

func (m *Machine) checkOpen(o *plan.Open, released bool) (*Sequence, error) {
	l := &m.limits
	switch {
	case o.Owner >= l.Ranks:
		return nil, fmt.Errorf("socket: sequence %d: owner %d of %d ranks", o.Seq, o.Owner, l.Ranks)
	case o.Read == 0 || o.Read > l.Positions:
		return nil, fmt.Errorf("socket: sequence %d: %d prompt tokens, the context holds 1 to %d", o.Seq, o.Read, l.Positions)
	case o.Tail > l.Positions-o.Read:
		return nil, fmt.Errorf("socket: sequence %d: a prompt of %d and %d tokens, the context holds %d", o.Seq, o.Read, o.Tail, l.Positions)
	case o.Tail > 0 && o.Sampled > 0:
		return nil, fmt.Errorf("socket: sequence %d: %d prompt tokens follow %d sampled ones", o.Seq, o.Tail, o.Sampled)
	case o.Sampled > o.Read:
		return nil, fmt.Errorf("socket: sequence %d: %d of %d prompt tokens were sampled", o.Seq, o.Sampled, o.Read)
	}
	if err := o.Sampling.Validate(l.Vocab); err != nil {
		return nil, fmt.Errorf("socket: sequence %d: %w", o.Seq, err)
	}
	if err := m.checkShared(o); err != nil {
		return nil, err
	}
	q := &Sequence{Owner: o.Owner, Replica: plan.None, Prompt: o.Read, Policy: o.Policy, Logprobs: o.Sampling.Logprobs, Read: len(o.Prefix), oneToken: l.Across && o.Policy.Scored()}
	switch {
	case len(o.Resume) == 0 && o.Replica != plan.None:
		return nil, fmt.Errorf("socket: sequence %d: a replica on %d of a cache that is not there yet", o.Seq, o.Replica)
	case len(o.Resume) == 0:
		return q, nil
	}
	q.Replica, q.Read, q.HandedOver, q.Replicated = o.Replica, len(o.Resume), true, o.Replica != plan.None
	if err := m.checkTokens(o.Seq, o.Resume); err != nil {
		return nil, err
	}
	if o.Fork != 0 {
		return q, checkForked(o)
	}
	return q, m.checkResume(o, q, released)
}

// checkForked checks the sequence that starts with the cache of another one.
func checkForked(o *plan.Open) error {
	fails := func(why string) error {
		return fmt.Errorf("socket: sequence %d begins with another's cache of %d tokens: %s", o.Seq, len(o.Resume), why)
	}
	switch {
	case !o.Policy.Forks():
		return fails(fmt.Sprintf("policy %s cannot fork", o.Policy.Spec()))
	case len(o.Resume) != o.Read:
		return fails(fmt.Sprintf("its prompt has %d", o.Read))
	case o.Replica != plan.None:
		return fails("a fork has no replica")
	}
	return nil
}

// checkResume checks a sequence that goes on with a cache from an earlier epoch.
func (m *Machine) checkResume(o *plan.Open, q *Sequence, released bool) error {
	n, l := len(o.Resume), &m.limits
	switch {
	case n < q.Prompt || n > l.Positions:
		return fmt.Errorf("socket: sequence %d resumes with %d tokens after a prompt of %d, the context holds %d", o.Seq, n, q.Prompt, l.Positions)
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
	case from.Policy.Spec() != q.Policy.Spec():
		return fails("its policy is %s, not %s", from.Policy.Spec(), q.Policy.Spec())
	}
	return nil
}

// checkShared checks the blocks of the prefix cache that a prompt begins with: the first
// blocks of a text, in order, as far as the policy allows.
func (m *Machine) checkShared(o *plan.Open) error {
	n := len(o.Prefix)
	switch {
	case n != len(o.Shared)*tensor.BlockSlots:
		return fmt.Errorf("socket: sequence %d: %d shared blocks for %d tokens; a block has %d", o.Seq, len(o.Shared), n, tensor.BlockSlots)
	case n > o.Policy.Warm(o.Read):
		return fmt.Errorf("socket: sequence %d: %d shared blocks for %d of %d prompt tokens; %s takes at most %d tokens from the prefix cache",
			o.Seq, len(o.Shared), n, o.Read, o.Policy.Spec(), o.Policy.Warm(o.Read))
	case n > 0 && len(o.Resume) > 0:
		return fmt.Errorf("socket: sequence %d resumes with a cache, and begins with %d shared blocks", o.Seq, len(o.Shared))
	}
	for i, id := range o.Shared {
		if at, here := m.blocks[id]; !here || at != i {
			return fmt.Errorf("socket: sequence %d: block %d is not a block %d of a text here", o.Seq, id, i)
		}
		if last := i == len(o.Shared)-1; last && o.Policy.Needs.PromptAttention && !m.sums[id] {
			return fmt.Errorf("socket: sequence %d: block %d has no attention sums, which %s needs", o.Seq, id, o.Policy.Spec())
		}
	}
	return m.checkTokens(o.Seq, o.Prefix)
}

// checkKeep checks blocks that go to the prefix cache when their sequence ends: this
// socket has the whole sequence, and the blocks are full.
func (m *Machine) checkKeep(keep []plan.Keep) error {
	for _, k := range keep {
		q := m.seqs[k.Seq]
		if q == nil {
			continue // it was released before
		}
		fails := func(why string, args ...any) error {
			return fmt.Errorf("socket: sequence %d cannot leave blocks [%d,%d) to the prefix cache: %s", k.Seq, k.From, k.From+len(k.Blocks), fmt.Sprintf(why, args...))
		}
		switch {
		case m.limits.Ranks != 1:
			return fails("its rows are on one of %d sockets", m.limits.Ranks)
		case !q.HandedOver:
			return fails("its prompt is not complete")
		case q.inFlight != 0:
			return fails("step %d, which is in flight, has rows of it", q.inFlight)
		case !q.Policy.RebuildsByPrefill():
			return fails("under %s its rows are not those of prefill", q.Policy.Spec())
		case k.From > q.Read || k.From+len(k.Blocks) > q.Read/tensor.BlockSlots:
			return fails("%d tokens fill %d blocks", q.Read, q.Read/tensor.BlockSlots)
		}
		for i, id := range k.Blocks {
			if _, here := m.blocks[id]; here {
				return fails("block %d exists already, and is not its block %d", id, k.From+i)
			}
		}
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
		return fmt.Errorf("socket: sequence %d saves blocks [%d,%d) of its prompt, but %d tokens fill %d blocks", c.Seq, c.SaveFrom, c.SaveFrom+n, end, end/tensor.BlockSlots)
	}
	for i, id := range c.Save {
		if at, here := m.blocks[id]; here && at != c.SaveFrom+i {
			return fmt.Errorf("socket: sequence %d: block %d is block %d of a text, not %d", c.Seq, id, at, c.SaveFrom+i)
		}
	}
	switch {
	case !c.Sums:
	case !q.Policy.Needs.PromptAttention:
		return fmt.Errorf("socket: sequence %d saves attention sums, which %s does not use", c.Seq, q.Policy.Spec())
	case n == 0:
		return fmt.Errorf("socket: sequence %d saves attention sums, but no block to keep them with", c.Seq)
	case (c.SaveFrom+n)*tensor.BlockSlots != end:
		return fmt.Errorf("socket: sequence %d saves attention sums at the end of %d tokens, which is not the end of its block %d", c.Seq, end, c.SaveFrom+n-1)
	}
	return nil
}

// checkRuns checks the rows of a step, and the number of log-probabilities that they ask for.
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
				return fmt.Errorf("socket: step %d asks for %d log-probabilities, an answer has room for %d", p.Step, scores, maxScores)
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
	case q.inFlight != 0:
		return fmt.Errorf("socket: sequence %d is in step %d, which is in flight", c.Seq, q.inFlight)
	case n == 0 || c.Start+n > l.Positions:
		return fmt.Errorf("socket: sequence %d: %d tokens from position %d, context is %d", c.Seq, n, c.Start, l.Positions)
	case c.Draft > speculate.Most:
		return fmt.Errorf("socket: sequence %d: a draft of %d tokens, at most %d are possible", c.Seq, c.Draft, speculate.Most)
	case c.PromptLogprobs > l.Vocab || c.PromptLogprobs >= 0 && (c.Next < plan.None || int(c.Next) >= l.Vocab):
		return fmt.Errorf("socket: sequence %d: %d log-probabilities of prompt tokens, the next is %d; vocabulary is %d", c.Seq, c.PromptLogprobs, c.Next, l.Vocab)
	}
	check := m.checkDecode
	if c.Prefill {
		check = m.checkPrefill
	}
	if err := check(c, q); err != nil {
		return err
	}
	q.lastStep = p.Step
	if err := m.checkSave(c, q); err != nil {
		return err
	}
	return m.checkTokens(c.Seq, c.Tokens)
}

// checkPrefill checks that a chunk follows what was read, and that only the last one ends the prompt.
func (m *Machine) checkPrefill(c *plan.Run, q *Sequence) error {
	end := c.Start + len(c.Tokens)
	switch {
	case c.Start != q.Read || end > q.Prompt:
		return fmt.Errorf("socket: sequence %d: prompt chunk [%d,%d), but %d of %d tokens are read", c.Seq, c.Start, end, q.Read, q.Prompt)
	case c.Last && end != q.Prompt:
		return fmt.Errorf("socket: sequence %d: the last prompt chunk ends at %d of %d tokens", c.Seq, end, q.Prompt)
	case c.Accepted != 0:
		return fmt.Errorf("socket: sequence %d: a prompt chunk accepts %d sampled tokens", c.Seq, c.Accepted)
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
	case c.Accepted > q.Staged:
		return fmt.Errorf("socket: sequence %d accepts %d tokens of its last step, which had %d", c.Seq, c.Accepted, q.Staged)
	case c.Start != q.Read+c.Accepted:
		return fmt.Errorf("socket: sequence %d decodes at position %d, but %d tokens count and %d more are accepted", c.Seq, c.Start, q.Read, c.Accepted)
	case len(c.Tokens) > 1 && q.oneToken:
		return fmt.Errorf("socket: sequence %d: %d tokens in one step under %s, whose scores change between them; layers that share a cache would differ: decode one token a step",
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
	case p.Passes > 1+speculate.Most:
		return fails("at most %d are possible", 1+speculate.Most)
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
		return fails("sequence %d wants a draft of %d tokens", c.Seq, c.Draft)
	case q.oneToken:
		return fails("sequence %d decodes one token a step under %s", c.Seq, q.Policy.Spec())
	case c.Start+p.Passes > m.limits.Positions:
		return fails("sequence %d is at position %d, context is %d", c.Seq, c.Start, m.limits.Positions)
	}
	return nil
}

// checkIndex checks pieces of a prompt's clustering: they follow the pieces that are done,
// and the tokens that they need are read.
func (m *Machine) checkIndex(p *plan.Plan, x *plan.Index, q *Sequence) error {
	switch {
	case q == nil:
		return fmt.Errorf("socket: step %d indexes sequence %d, which is not open", p.Step, x.Seq)
	case q.lastStep == p.Step:
		return fmt.Errorf("socket: step %d indexes sequence %d, and names it twice", p.Step, x.Seq)
	case q.inFlight != 0:
		return fmt.Errorf("socket: sequence %d is in step %d, which is in flight", x.Seq, q.inFlight)
	case q.HandedOver:
		return fmt.Errorf("socket: step %d indexes sequence %d, whose prompt is complete", p.Step, x.Seq)
	}
	c := kvcache.ClusteringOf(kvcache.Geometry{Layers: m.limits.Layers, Layout: m.limits.Layout}, q.Prompt, q.Policy)
	most, read := c.Before, c.After
	if q.Indexed >= c.Before {
		most, read = c.Pieces, q.Prompt
	}
	switch {
	case x.From != q.Indexed:
		return fmt.Errorf("socket: sequence %d: its index goes on from piece %d, but %d are done", x.Seq, x.From, q.Indexed)
	case x.Pieces == 0 || x.Pieces > most-q.Indexed:
		return fmt.Errorf("socket: sequence %d: %d pieces of its index after the first %d, this part ends with piece %d", x.Seq, x.Pieces, x.From, most)
	case q.Read < read:
		return fmt.Errorf("socket: sequence %d: its index needs %d tokens, %d are read", x.Seq, read, q.Read)
	}
	q.lastStep, q.piecesBefore, q.pieces = p.Step, c.Before, c.Pieces
	return nil
}

// checkCopies checks new replicas. The step must decode the sequence too: otherwise the
// replica would not have the tokens of its owner.
func (m *Machine) checkCopies(p *plan.Plan, seqs *sequences) error {
	for i, c := range p.Copy {
		q := seqs.at(c.Seq)
		switch {
		case q == nil:
			return fmt.Errorf("socket: sequence %d cannot be copied: it is not open", c.Seq)
		case !q.HandedOver:
			return fmt.Errorf("socket: sequence %d cannot be copied: its prompt is not complete", c.Seq)
		case q.Replica != plan.None && !dropsReplica(p, c.Seq):
			return fmt.Errorf("socket: sequence %d cannot be copied: it has a replica on %d", c.Seq, q.Replica)
		case slices.ContainsFunc(p.Copy[:i], func(o plan.Copy) bool { return o.Seq == c.Seq }):
			return fmt.Errorf("socket: step %d copies sequence %d twice", p.Step, c.Seq)
		case c.Replica >= m.limits.Ranks || c.Replica == q.Owner:
			return fmt.Errorf("socket: sequence %d: a replica on %d of %d, owner %d", c.Seq, c.Replica, m.limits.Ranks, q.Owner)
		case q.lastStep != p.Step:
			return fmt.Errorf("socket: step %d copies sequence %d and does not decode it", p.Step, c.Seq)
		}
	}
	return nil
}

// dropsReplica reports whether a plan drops the replica of a sequence that it does not open.
func dropsReplica(p *plan.Plan, seq uint64) bool {
	return slices.Contains(p.DropReplica, seq) && !slices.ContainsFunc(p.Open, func(o plan.Open) bool { return o.Seq == seq })
}

// scoresOf returns the number of log-probabilities that a run asks for.
func scoresOf(c *plan.Run, q *Sequence) (n int) {
	if c.PromptLogprobs >= 0 {
		n = len(c.Tokens) * (1 + c.PromptLogprobs)
	}
	switch rows := 1 + max(0, q.Logprobs); {
	case c.Sample && c.Prefill:
		n += rows
	case c.Sample:
		n += len(c.Tokens) * rows
	}
	return n
}

func (m *Machine) checkTokens(seq uint64, tokens []int32) error {
	for _, t := range tokens {
		if t < 0 || int(t) >= m.limits.Vocab {
			return fmt.Errorf("socket: sequence %d: token %d, vocabulary is %d", seq, uint32(t), m.limits.Vocab)
		}
	}
	return nil
}

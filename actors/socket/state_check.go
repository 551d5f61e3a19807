package socket

import (
	"crypto/sha256"
	"fmt"
	"slices"

	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/speculate"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/proto"
)

// maxScores bounds the log-probabilities of a step: at some 13 bytes each, what an
// answer has room for.
const maxScores = 1 << 16

// check looks at a whole plan, and changes nothing that counts. What passes can be
// carried out. It returns the sequences that the plan opens; those that go on are Whole.
func (m *Machine) check(r *proto.StepRequest) (opened map[uint64]*Sequence, err error) {
	if err := m.checkKept(r.Keep); err != nil {
		return nil, err
	}
	left := len(m.seqs)
	var released map[uint64]bool
	for _, ids := range [...][]uint64{r.Release, r.DropReplica} {
		for _, id := range ids {
			if q := m.seqs[id]; q != nil && q.flight != 0 {
				return nil, fmt.Errorf("socket: sequence %d is in step %d, which is in flight", id, q.flight)
			}
		}
	}
	for _, id := range r.Release {
		if released == nil {
			released = map[uint64]bool{}
		}
		if !released[id] && m.seqs[id] != nil {
			left--
		}
		released[id] = true
	}
	for _, o := range r.Open {
		switch {
		case opened[o.Seq] != nil || m.seqs[o.Seq] != nil && !released[o.Seq]:
			return nil, fmt.Errorf("socket: sequence %d is open already", o.Seq)
		case left+len(opened) >= m.limits.Rows:
			return nil, fmt.Errorf("socket: sequence %d: %d are open, as many as a step has rows", o.Seq, left+len(opened))
		}
		q, err := m.checkOpen(o, released[o.Seq])
		if err == nil && o.Fork != 0 {
			from := opened[o.Fork]
			if from == nil && !released[o.Fork] {
				from = m.seqs[o.Fork]
			}
			err = checkFork(o, q, from)
		}
		if err != nil {
			return nil, err
		}
		if opened == nil {
			opened = map[uint64]*Sequence{}
		}
		opened[o.Seq] = q
	}
	at := func(id uint64) *Sequence {
		if q := opened[id]; q != nil {
			return q
		}
		if released[id] {
			return nil
		}
		return m.seqs[id]
	}
	scores := 0
	for _, c := range r.Chunks {
		q := at(c.Seq)
		if err := m.checkChunk(r, c, q); err != nil {
			return nil, err
		}
		if err := m.checkPasses(r, c, q); err != nil {
			return nil, err
		}
		if scores += scoresOf(c, q) * max(1, int(r.Passes)); scores > maxScores {
			return nil, fmt.Errorf("socket: step %d asks for %d log-probabilities, an answer has room for %d", r.Step, scores, maxScores)
		}
	}
	for _, x := range r.Index {
		if err := m.checkIndex(r, x, at(x.Seq)); err != nil {
			return nil, err
		}
	}
	if len(r.Chunks)+len(r.Index) == 0 || len(r.Chunks) == 0 && r.Passes > 1 {
		return nil, fmt.Errorf("socket: step %d has no rows", r.Step)
	}
	for _, f := range r.Spill {
		if q := at(f.Seq); q == nil || !q.Whole || f.Blocks == 0 || int64(f.Blocks) > int64(q.Read/tensor.BlockSlots) {
			return nil, fmt.Errorf("socket: %d blocks of sequence %d are to lie in a file, of which there are not as many here", f.Blocks, f.Seq)
		}
	}
	return opened, m.checkCopies(r, at)
}

func (m *Machine) checkOpen(o *proto.Open, released bool) (*Sequence, error) {
	l := &m.limits
	switch {
	case int(o.Owner) >= l.Ranks || int(o.PromptTokens) > l.Positions || o.PromptTokens == 0:
		return nil, fmt.Errorf("socket: sequence %d: owner %d of %d, %d prompt tokens, context %d", o.Seq, o.Owner, l.Ranks, o.PromptTokens, l.Positions)
	case int(o.TailTokens) > l.Positions-int(o.PromptTokens) || o.TailTokens > 0 && o.SampledBefore > 0:
		return nil, fmt.Errorf("socket: sequence %d: a prompt of %d and %d tokens, %d of them sampled, context %d", o.Seq, o.PromptTokens, o.TailTokens, o.SampledBefore, l.Positions)
	case o.SampledBefore > o.PromptTokens:
		return nil, fmt.Errorf("socket: sequence %d: %d of %d prompt tokens were sampled", o.Seq, o.SampledBefore, o.PromptTokens)
	}
	params := samplingOf(o.Sampling)
	if err := params.Validate(l.Vocab); err != nil {
		return nil, fmt.Errorf("socket: sequence %d: %w", o.Seq, err)
	}
	policy, err := l.Parse(o.Policy)
	if err != nil {
		return nil, fmt.Errorf("socket: sequence %d: %w", o.Seq, err)
	}
	q := &Sequence{Owner: int(o.Owner), Replica: none, Prompt: int(o.PromptTokens), Policy: policy.Spec(), Logprobs: params.Logprobs, Read: len(o.Prefix), single: l.Across && policy.Scored()}
	n := len(o.Resume)
	if err := m.checkShared(o, policy); err != nil {
		return nil, err
	}
	if n == 0 {
		if o.Replica != 0 {
			return nil, fmt.Errorf("socket: sequence %d: a replica on %d of a cache that is not there yet", o.Seq, int(o.Replica)-1)
		}
		return q, nil
	}
	q.Replica, q.Read, q.Whole, q.Replicated = int(o.Replica)-1, n, true, o.Replica != 0
	if o.Fork != 0 {
		if !policy.Forks() || n != q.Prompt || o.Replica != 0 || len(o.Shared) > 0 {
			return nil, fmt.Errorf("socket: sequence %d begins with another's cache: %d of %d tokens under %s, replica on %d", o.Seq, n, q.Prompt, q.Policy, q.Replica)
		}
		return q, m.checkTokens(o.Seq, o.Resume)
	}
	if n < q.Prompt || n > l.Positions || q.Replica == q.Owner || q.Replica >= l.Ranks {
		return nil, fmt.Errorf("socket: sequence %d resumes with %d tokens after a prompt of %d, owner %d, replica on %d", o.Seq, n, q.Prompt, q.Owner, q.Replica)
	}
	if err := m.checkTokens(o.Seq, o.Resume); err != nil {
		return nil, err
	}
	if q.Owner != l.Rank && q.Replica != l.Rank {
		return q, nil
	}
	k := m.kept[o.Seq]
	switch {
	case k == nil || released:
		return nil, fmt.Errorf("socket: sequence %d resumes, but nothing of it was kept here", o.Seq)
	case k.Policy != q.Policy || k.Prompt != q.Prompt || k.Layout != l.Layout:
		return nil, fmt.Errorf("socket: sequence %d resumes under %s with a prompt of %d in %v; kept under %s with %d in %v",
			o.Seq, q.Policy, q.Prompt, l.Layout.Type, k.Policy, k.Prompt, k.Layout.Type)
	case n < k.Tokens || n > k.Tokens+k.Staged:
		return nil, fmt.Errorf("socket: sequence %d resumes with %d tokens; %d are kept, and %d of the last step", o.Seq, n, k.Tokens, k.Staged)
	}
	return q, nil
}

// checkFork: the cache that a sequence begins with is whole, on the same owner, and laid out as its own would be.
func checkFork(o *proto.Open, q, from *Sequence) error {
	if from == nil || !from.Whole || from.Owner != q.Owner || from.Policy != q.Policy || from.Prompt != q.Prompt || o.Fork == o.Seq {
		return fmt.Errorf("socket: sequence %d cannot begin with the cache of sequence %d: %+v", o.Seq, o.Fork, from)
	}
	return nil
}

// checkShared: a prompt begins with the first blocks of a text, in order, as far as its
// policy allows.
func (m *Machine) checkShared(o *proto.Open, p *kvcache.Policy) error {
	n := len(o.Prefix)
	if n != len(o.Shared)*tensor.BlockSlots || n > p.Warm(int(o.PromptTokens)) || n > 0 && len(o.Resume) > 0 {
		return fmt.Errorf("socket: sequence %d: %d shared blocks for %d of %d prompt tokens under %s", o.Seq, len(o.Shared), n, o.PromptTokens, o.Policy)
	}
	for i, id := range o.Shared {
		if at, here := m.blocks[id]; !here || at != i {
			return fmt.Errorf("socket: sequence %d: block %d is not a block %d of a text here", o.Seq, id, i)
		}
		if last := i == len(o.Shared)-1; last && p.Needs.PromptAttention && !m.sums[id] {
			return fmt.Errorf("socket: sequence %d: block %d has no sums of attention, which %s goes on from", o.Seq, id, o.Policy)
		}
	}
	return m.checkTokens(o.Seq, o.Prefix)
}

// checkKept: all of a sequence lies on this socket, and the blocks are full.
func (m *Machine) checkKept(keep []*proto.Keep) error {
	for _, k := range keep {
		q := m.seqs[k.Seq]
		if q == nil {
			continue // it was released before
		}
		p, err := m.limits.Parse(q.Policy)
		if n := int(k.SaveFrom) + len(k.Save); err != nil || m.limits.Ranks != 1 || !q.Whole || q.flight != 0 || !p.RebuildsByPrefill() || int(k.SaveFrom) > q.Read || n > q.Read/tensor.BlockSlots || badKeys(k.Keys, len(k.Save)) {
			return fmt.Errorf("socket: sequence %d: blocks [%d,%d) of %d tokens under %s on %d sockets are to be kept", k.Seq, k.SaveFrom, n, q.Read, q.Policy, m.limits.Ranks)
		}
		for i, id := range k.Save {
			if _, here := m.blocks[id]; here {
				return fmt.Errorf("socket: sequence %d: block %d is there already, and not number %d of it", k.Seq, id, int(k.SaveFrom)+i)
			}
		}
	}
	return nil
}

// badKeys: there are none, or one more than blocks.
func badKeys(keys []byte, blocks int) bool {
	return len(keys) > 0 && len(keys) != sha256.Size*(blocks+1)
}

// checkSaved: what a chunk leaves to the prefix cache is complete with it.
func (m *Machine) checkSaved(c *proto.Chunk, q *Sequence) error {
	if n := int(c.SaveFrom) + len(c.Save); len(c.Save) > 0 && (!c.Prefill || int(c.SaveFrom) > m.limits.Positions || n > (int(c.Start)+len(c.Tokens))/tensor.BlockSlots || badKeys(c.Keys, len(c.Save))) {
		return fmt.Errorf("socket: sequence %d: blocks [%d,%d) of a prompt of which %d tokens are read are to be kept", c.Seq, c.SaveFrom, n, int(c.Start)+len(c.Tokens))
	}
	for i, id := range c.Save {
		if at, here := m.blocks[id]; here && at != int(c.SaveFrom)+i {
			return fmt.Errorf("socket: sequence %d: block %d is block %d of a text, not %d", c.Seq, id, at, int(c.SaveFrom)+i)
		}
	}
	if !c.Sums {
		return nil
	}
	p, err := m.limits.Parse(q.Policy)
	if n := len(c.Save); err != nil || !p.Needs.PromptAttention || n == 0 || (int(c.SaveFrom)+n)*tensor.BlockSlots != int(c.Start)+len(c.Tokens) {
		return fmt.Errorf("socket: sequence %d: sums under %s at the end of %d tokens are to be kept beside block %d", c.Seq, q.Policy, int(c.Start)+len(c.Tokens), int(c.SaveFrom)+n-1)
	}
	return nil
}

func (m *Machine) checkChunk(r *proto.StepRequest, c *proto.Chunk, q *Sequence) error {
	l, n, start := &m.limits, len(c.Tokens), int(c.Start)
	if q == nil {
		return fmt.Errorf("socket: step %d names sequence %d, which is not open", r.Step, c.Seq)
	}
	tokens := q.Read + int(c.Accepted)
	switch {
	case q.named == r.Step:
		return fmt.Errorf("socket: step %d names sequence %d twice", r.Step, c.Seq)
	case q.flight != 0:
		return fmt.Errorf("socket: sequence %d is in step %d, which is in flight", c.Seq, q.flight)
	case n == 0 || start+n > l.Positions:
		return fmt.Errorf("socket: sequence %d: %d tokens from position %d, context is %d", c.Seq, n, start, l.Positions)
	case c.Prefill && (start != q.Read || start+n > q.Prompt || c.Last && start+n != q.Prompt || c.Accepted != 0):
		return fmt.Errorf("socket: sequence %d: prompt chunk [%d,%d) last=%v, but %d of %d are read", c.Seq, start, start+n, c.Last, q.Read, q.Prompt)
	case !c.Prefill && (!q.Whole || c.Last || start != tokens || int(c.Accepted) > q.Staged):
		return fmt.Errorf("socket: sequence %d: decode of %d at position %d last=%v, but %d of %d of the last rows follow %d tokens, prompt of %d", c.Seq, n, start, c.Last, c.Accepted, q.Staged, q.Read, q.Prompt)
	case !c.Prefill && n > 1 && q.single:
		return fmt.Errorf("socket: sequence %d: %d tokens in a row under %s, whose scores change between them; layers that share a cache would differ: decode one a step", c.Seq, n, q.Policy)
	case c.Draft > speculate.Most:
		return fmt.Errorf("socket: sequence %d: %d tokens are to be guessed, %d is the most", c.Seq, c.Draft, speculate.Most)
	case c.WantPromptLogprobs && (c.PromptLogprobs < 0 || int(c.PromptLogprobs) > l.Vocab || int(c.Next) > l.Vocab):
		return fmt.Errorf("socket: sequence %d: %d log-probabilities of prompt tokens, the next is %d; vocabulary is %d", c.Seq, c.PromptLogprobs, int(c.Next)-1, l.Vocab)
	}
	q.named = r.Step
	if err := m.checkSaved(c, q); err != nil {
		return err
	}
	return m.checkTokens(c.Seq, c.Tokens)
}

// checkPasses: what a row draws is its next token, and there is nothing else to do.
func (m *Machine) checkPasses(r *proto.StepRequest, c *proto.Chunk, q *Sequence) error {
	if n := int(r.Passes); n > 1 && (n > 1+speculate.Most || len(r.Index)+len(r.Copy) > 0 || c.Prefill || !c.Sample || len(c.Tokens) != 1 || c.Draft > 0 || q.single || int(c.Start)+n > m.limits.Positions) {
		return fmt.Errorf("socket: step %d has %d passes, %d pieces of indexes and %d copies; sequence %d has a run of %d from position %d, prefill=%v sample=%v draft=%d; context is %d",
			r.Step, n, len(r.Index), len(r.Copy), c.Seq, len(c.Tokens), c.Start, c.Prefill, c.Sample, c.Draft, m.limits.Positions)
	}
	return nil
}

// checkIndex: the pieces follow those that were done, and what they look at has been read.
func (m *Machine) checkIndex(r *proto.StepRequest, x *proto.Index, q *Sequence) error {
	if q == nil || q.named == r.Step || q.flight != 0 || q.Whole {
		return fmt.Errorf("socket: step %d indexes sequence %d, which is not a prompt without rows in it", r.Step, x.Seq)
	}
	p, err := m.limits.Parse(q.Policy)
	if err != nil {
		return fmt.Errorf("socket: sequence %d: %w", x.Seq, err)
	}
	c := kvcache.ClusteringOf(kvcache.Geometry{Layers: m.limits.Layers, Layout: m.limits.Layout}, q.Prompt, p)
	most, read := c.Before, c.After
	if q.Indexed >= c.Before {
		most, read = c.Pieces, q.Prompt
	}
	if x.Pieces == 0 || int(x.From) != q.Indexed || int(x.Pieces) > most-q.Indexed || q.Read < read {
		return fmt.Errorf("socket: sequence %d: pieces [%d,%d+%d) of its index after %d of %d, with %d tokens read of the %d that they need", x.Seq, x.From, x.From, x.Pieces, q.Indexed, most, q.Read, read)
	}
	q.named, q.before, q.pieces = r.Step, c.Before, c.Pieces
	return nil
}

// checkCopies: the step must decode the sequence too, or the replica's tokens would not
// be those of its owner.
func (m *Machine) checkCopies(r *proto.StepRequest, at func(uint64) *Sequence) error {
	for i, c := range r.Copy {
		q := at(c.Seq)
		switch {
		case q == nil || q.Replica != none && !dropped(r, c.Seq) || !q.Whole || slices.ContainsFunc(r.Copy[:i], func(o *proto.Copy) bool { return o.Seq == c.Seq }):
			return fmt.Errorf("socket: sequence %d cannot be copied", c.Seq)
		case int(c.Replica) >= m.limits.Ranks || int(c.Replica) == q.Owner:
			return fmt.Errorf("socket: sequence %d: a replica on %d of %d, owner %d", c.Seq, c.Replica, m.limits.Ranks, q.Owner)
		case q.named != r.Step:
			return fmt.Errorf("socket: step %d copies sequence %d and does not decode it", r.Step, c.Seq)
		}
	}
	return nil
}

// dropped says that a plan drops the replica of a sequence before it opens any.
func dropped(r *proto.StepRequest, seq uint64) bool {
	return slices.Contains(r.DropReplica, seq) && !slices.ContainsFunc(r.Open, func(o *proto.Open) bool { return o.Seq == seq })
}

// scoresOf is how many log-probabilities a chunk asks for.
func scoresOf(c *proto.Chunk, q *Sequence) (n int) {
	if c.WantPromptLogprobs {
		n = len(c.Tokens) * (1 + int(c.PromptLogprobs))
	}
	if c.Sample && c.Prefill {
		n += 1 + max(0, q.Logprobs)
	} else if c.Sample {
		n += len(c.Tokens) * (1 + max(0, q.Logprobs))
	}
	return n
}

func (m *Machine) checkTokens(seq uint64, tokens []uint32) error {
	for _, t := range tokens {
		if int(t) >= m.limits.Vocab {
			return fmt.Errorf("socket: sequence %d: token %d, vocabulary is %d", seq, t, m.limits.Vocab)
		}
	}
	return nil
}

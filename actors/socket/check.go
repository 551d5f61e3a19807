package socket

import (
	"fmt"

	"shoal/kvcache"
	"shoal/model"
	"shoal/proto"
	"shoal/tensor"
	"shoal/topology"
)

// What the coordinator says is checked here, a function a message, before any number of it
// counts, indexes or sizes something. What passes is a plan that can be carried out: all
// that can still fail is memory, and that is taken before the step runs. The numbers of a
// join are checked where they are used, by collective.Config and its transport.

const (
	maxSockets    = 256
	maxStepTokens = 1 << 16
	// maxScores bounds the log-probabilities of a step: at some 13 bytes each, what an
	// answer has room for.
	maxScores = 1 << 16
)

// placementOf checks a load request before anything is built from its numbers.
func placementOf(r *proto.LoadRequest, c *model.Config) (topology.Placement, int, error) {
	var none topology.Placement
	m := r.GetPlacement()
	mapping, err := topology.ParseMapping(m.GetMapping())
	if err != nil {
		return none, 0, err
	}
	if len(m.Slices) == 0 || len(m.Slices) > maxSockets || int(r.Rank) >= len(m.Slices) {
		return none, 0, fmt.Errorf("socket: rank %d of %d sockets: want 1 to %d", r.Rank, len(m.Slices), maxSockets)
	}
	if r.MaxStepTokens == 0 || r.MaxStepTokens > maxStepTokens {
		return none, 0, fmt.Errorf("socket: %d tokens a step: want 1 to %d", r.MaxStepTokens, maxStepTokens)
	}
	p := topology.Placement{Epoch: m.Epoch, Mapping: mapping}
	for i, s := range m.Slices {
		p.Slices = append(p.Slices, topology.Slice{ID: s.Id, Rank: i,
			KVHeads: rangeOf(s.KvHeads), Q: rangeOf(s.Q), K: rangeOf(s.K), V: rangeOf(s.V), Out: rangeOf(s.Out), Down: rangeOf(s.Down),
			FFNUnits: rangeOf(s.FfnUnits), FFN: rangeOf(s.Ffn), Vocab: rangeOf(s.Vocab)})
	}
	return p, int(r.Rank), p.Check(ShapeOf(c))
}

// typesOf are the types of weights and cache that a load asks for.
func typesOf(r *proto.LoadRequest, c *model.Config) (weights, kv tensor.DType, err error) {
	if weights, err = tensor.ParseDType(r.WeightType); err != nil {
		return 0, 0, err
	}
	if kv, err = tensor.ParseDType(r.KvType); err != nil {
		return 0, 0, err
	}
	if err := c.CacheLayout(kv).Validate(); err != nil {
		return 0, 0, fmt.Errorf("socket: the cache of this model: %w", err)
	}
	return weights, kv, nil
}

func (e *epoch) checkOpen(o *proto.Open) error {
	sockets := len(e.place.Slices)
	switch {
	case e.seqs[o.Seq] != nil:
		return fmt.Errorf("socket: sequence %d is open already", o.Seq)
	case len(e.seqs) >= e.batch.MaxRows():
		return fmt.Errorf("socket: sequence %d: %d are open, as many as a step has rows", o.Seq, len(e.seqs))
	case int(o.Owner) >= sockets || int(o.PromptTokens) > e.config.MaxPositions || o.PromptTokens == 0:
		return fmt.Errorf("socket: sequence %d: owner %d of %d, %d prompt tokens, context %d", o.Seq, o.Owner, sockets, o.PromptTokens, e.config.MaxPositions)
	case o.SampledBefore > o.PromptTokens:
		return fmt.Errorf("socket: sequence %d: %d of %d prompt tokens were sampled", o.Seq, o.SampledBefore, o.PromptTokens)
	}
	if n := len(o.Resume); n > 0 {
		if buddy := int(o.Buddy) - 1; n < int(o.PromptTokens) || n > e.config.MaxPositions || buddy == int(o.Owner) || buddy >= sockets {
			return fmt.Errorf("socket: sequence %d resumes with %d tokens after a prompt of %d, owner %d, buddy %d", o.Seq, n, o.PromptTokens, o.Owner, buddy)
		}
	} else if o.Buddy != 0 {
		return fmt.Errorf("socket: sequence %d: buddy %d of a cache that is not there yet", o.Seq, int(o.Buddy)-1)
	}
	if err := e.checkTokens(o.Seq, o.Resume); err != nil {
		return err
	}
	params := samplingOf(o.Sampling)
	if err := params.Validate(e.config.Vocab); err != nil {
		return fmt.Errorf("socket: sequence %d: %w", o.Seq, err)
	}
	return nil
}

// checkKept compares a cache that outlived its epoch with how its sequence is resumed.
func (e *epoch) checkKept(q *sequence, s *kvcache.Store) error {
	switch {
	case s.Policy().Spec() != q.policy.Spec() || s.Prompt() != q.prompt || s.Layout() != e.geometry.Layout:
		return fmt.Errorf("socket: sequence %d resumes under %s with a prompt of %d in %v; kept under %s with %d in %v",
			q.id, q.policy.Spec(), q.prompt, e.geometry.Layout.Type, s.Policy().Spec(), s.Prompt(), s.Layout().Type)
	case q.read != s.Tokens() && q.read != s.Tokens()+s.Staged():
		return fmt.Errorf("socket: sequence %d resumes with %d tokens; %d are kept, and %d of the last step", q.id, q.read, s.Tokens(), s.Staged())
	}
	return nil
}

// checkCopy: the step must decode the sequence too, or the replica's tokens would not
// be those of its owner.
func (e *epoch) checkCopy(r *proto.StepRequest, c *proto.Copy) error {
	q := e.seqs[c.Seq]
	switch {
	case q == nil || q.buddy >= 0 || q.read < q.prompt:
		return fmt.Errorf("socket: sequence %d cannot be copied", c.Seq)
	case int(c.Buddy) >= len(e.place.Slices) || int(c.Buddy) == q.owner:
		return fmt.Errorf("socket: sequence %d: buddy %d of %d, owner %d", c.Seq, c.Buddy, len(e.place.Slices), q.owner)
	}
	for _, k := range r.Chunks {
		if k.Seq == c.Seq {
			return nil
		}
	}
	return fmt.Errorf("socket: step %d copies sequence %d and does not decode it", r.Step, c.Seq)
}

func (e *epoch) checkChunk(r *proto.StepRequest, c *proto.Chunk) error {
	q, n, start := e.seqs[c.Seq], len(c.Tokens), int(c.Start)
	switch {
	case q == nil:
		return fmt.Errorf("socket: step %d names sequence %d, which is not open", r.Step, c.Seq)
	case q.step == r.Step:
		return fmt.Errorf("socket: step %d names sequence %d twice", r.Step, c.Seq)
	case n == 0 || start+n > e.config.MaxPositions:
		return fmt.Errorf("socket: sequence %d: %d tokens from position %d, context is %d", c.Seq, n, start, e.config.MaxPositions)
	case c.Prefill && (start != q.read || start+n > q.prompt || c.Last && start+n != q.prompt):
		return fmt.Errorf("socket: sequence %d: prompt chunk [%d,%d) last=%v, but %d of %d are read", c.Seq, start, start+n, c.Last, q.read, q.prompt)
	case !c.Prefill && (start != q.read || start < q.prompt || n != 1 || c.Last || !q.handed):
		return fmt.Errorf("socket: sequence %d: decode of %d at position %d last=%v, but %d are read and the prompt has %d", c.Seq, n, start, c.Last, q.read, q.prompt)
	case c.WantPromptLogprobs && (c.PromptLogprobs < 0 || int(c.PromptLogprobs) > e.config.Vocab || int(c.Next) > e.config.Vocab):
		return fmt.Errorf("socket: sequence %d: %d log-probabilities of prompt tokens, the next is %d; vocabulary is %d", c.Seq, c.PromptLogprobs, int(c.Next)-1, e.config.Vocab)
	}
	return e.checkTokens(c.Seq, c.Tokens)
}

// checkScores bounds what the owners answer.
func checkScores(s *step) error {
	n := 0
	for _, w := range s.wanted {
		if w.sample {
			w.top = w.seq.params.Logprobs
		}
		n += 1 + max(0, w.top)
	}
	if n > maxScores {
		return fmt.Errorf("socket: step %d asks for %d log-probabilities, an answer has room for %d", s.request.Step, n, maxScores)
	}
	return nil
}

func (e *epoch) checkTokens(seq uint64, tokens []uint32) error {
	for _, t := range tokens {
		if int(t) >= e.config.Vocab {
			return fmt.Errorf("socket: sequence %d: token %d, vocabulary is %d", seq, t, e.config.Vocab)
		}
	}
	return nil
}

package caches

import (
	"fmt"

	"github.com/shoal-llm/shoal/actors/layer/lowrank"
	"github.com/shoal-llm/shoal/actors/socket/constraint"
	"github.com/shoal-llm/shoal/actors/socket/draft"
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/layered"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/results"
	"github.com/shoal-llm/shoal/internal/engine/plan"
	"github.com/shoal-llm/shoal/internal/engine/pooling"
	"github.com/shoal-llm/shoal/internal/engine/sampler"
)

// Sequence is a socket's data of one sequence: its heads of the prompt during prefill and, on the
// owner, the decode cache and the sampling state.
type Sequence struct {
	ID            uint64
	Owner         int
	Replica       int // rank of the replica, or none
	Prompt        int // number of tokens that prefill reads
	requestTokens int // tokens of the request, in prefill or as decode rows; later tokens were sampled
	Policy        *kvcache.Policy
	Adapter       *lowrank.Adapter // nil: none

	PromptShard  *kvcache.Store       // this rank's KV heads of the prompt; nil without any, or after the hand-over
	Stats        *kvcache.Observation // attention statistics for the policy; nil: the policy needs none
	Streams      *layered.Streams     // this rank's rows of the residual stream; nil: chunks read the prompt
	PassRows     int                  // with Streams: tokens that the layers get at a time
	Cache        *kvcache.Store       // the owner's cache, from the last chunk on, or the first hand-over of layers
	ReplicaCache *kvcache.Store       // the replica on this socket

	results *results.Prompt // stored results of the prompt's index; nil: none

	Pool *pooling.Accumulator // makes a vector of the prompt; nil: tokens are sampled

	Params  sampler.Params
	History *sampler.History
	staged  []stagedToken          // tokens of the last decode rows, which may be rolled back
	Grammar *constraint.Constraint // grammar of the output; nil: none, or another socket has it
	Draft   *draft.State           // state of the draft model, on the owner; or nil
	Next    int32                  // the token sampled after the newest row, or none
}

// stagedToken is a token in the history that may be rolled back.
type stagedToken struct {
	token      int32
	distinct   int  // number of distinct tokens in the history before it
	fromPrompt bool // it belongs to the prompt
}

// AddToken appends a token to the sampling history.
func (s *Sequence) AddToken(token int32, position int) {
	if position < s.requestTokens {
		s.History.Add([]int32{token})
		s.Draft.Feed(token)
		return
	}
	s.History.AddOutput(token)
	s.Grammar.Feed(token)
	s.Draft.Feed(token)
}

// Replayed returns the trace's token at a position, or the sampled token if there is none.
func (s *Sequence) Replayed(drawn int32, position int) int32 {
	if i := position - s.requestTokens; i >= 0 && i < len(s.Params.Trace) {
		return s.Params.Trace[i]
	}
	return drawn
}

// Feed appends the token of a decode row.
func (s *Sequence) Feed(token int32, position int) {
	s.staged = append(s.staged, stagedToken{token, s.History.Distinct(), position < s.requestTokens})
	s.AddToken(token, position)
}

// commit sets the number of valid tokens in the cache. It commits the first of the last step's staged
// rows and rolls the others back. The recurrent states of the owner are copied after the first copyAt
// tokens, unless that is 0.
func (s *Sequence) commit(tokens, copyAt int, run func(n int, f func(i int))) error {
	for _, store := range [...]*kvcache.Store{s.Cache, s.ReplicaCache} {
		if store == nil {
			continue
		}
		n := tokens - store.Tokens()
		if n < 0 || n > store.Staged() {
			return fmt.Errorf("socket: sequence %d: the plan commits %d tokens, but the cache has %d committed and %d staged",
				s.ID, tokens, store.Tokens(), store.Staged())
		}
		if store == s.Cache && len(s.staged) > 0 && n > len(s.staged) {
			return fmt.Errorf("socket: sequence %d: the plan commits %d tokens of the last step, but token %d of it is not the sampled one",
				s.ID, n, len(s.staged)+1)
		}
		if copyAt > 0 && store == s.Cache {
			store.States().Copy(copyAt, n, run)
		}
		store.States().Settle(n, run)
		store.Commit(n)
		if store != s.Cache {
			continue
		}
		for len(s.staged) > n {
			last := s.staged[len(s.staged)-1]
			s.staged = s.staged[:len(s.staged)-1]
			s.Draft.Undo()
			if last.fromPrompt {
				s.History.UndoPrompt(last.token, last.distinct)
				continue
			}
			s.History.Undo(last.token, last.distinct)
			s.Grammar.Undo()
		}
		s.staged = s.staged[:0]
	}
	return nil
}

// ReleasePrompt frees the memory that is used only in prefill.
func (s *Sequence) ReleasePrompt() {
	if s.PromptShard != nil {
		s.PromptShard.Release()
		s.PromptShard = nil
	}
	s.Stats.Release()
	s.Stats = nil
	s.Streams.Release()
	s.Streams = nil
}

func (s *Sequence) release() {
	s.ReleasePrompt()
	s.Draft.Release()
	if s.Cache != nil {
		s.Cache.Release()
		s.Cache = nil
	}
	s.dropReplica()
}

func (s *Sequence) dropReplica() {
	if s.ReplicaCache != nil {
		s.ReplicaCache.Release()
		s.ReplicaCache = nil
	}
	s.Replica = plan.None
}

// reserve gets memory for the next decode rows. A replica that is being copied gets it when it is
// complete.
func (q *Sequence) reserve(tokens int) error {
	for _, s := range [...]*kvcache.Store{q.Cache, q.ReplicaCache} {
		if s != nil && s.Sealed() {
			if err := s.Reserve(tokens); err != nil {
				return err
			}
		}
	}
	return nil
}

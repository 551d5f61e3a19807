package socket

import (
	"fmt"

	"github.com/shoal-llm/shoal/actors/socket/constraint"
	"github.com/shoal-llm/shoal/actors/socket/draft"
	"github.com/shoal-llm/shoal/actors/socket/machine"
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/plan"
	"github.com/shoal-llm/shoal/internal/engine/sampler"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// caches are the stores of a socket, of its current epoch and of earlier ones. Machine decides what
// happens to them; only the executor accesses them.
type caches struct {
	arena       *kvcache.Arena
	seqs        map[uint64]*sequence
	blocks      map[uint64]*kvcache.Segment // of the prefix cache; empty on a socket that reads no heads
	files       *files                      // nil: blocks are in memory only
	spiller     *spiller                    // moves caches to files; nil: caches stay in memory
	incoming    map[uint64]*incoming        // blocks that are being read or fetched
	named       map[uint64]offer            // identity of each block in files
	drafter     *draft.Drafter              // loaded once; nil: none
	grammarWork constraint.Runner           // grammar computations of sequences
}

// sequence is a socket's data of one sequence: its heads of the prompt during prefill and, on the
// owner, the decode cache and the sampling state.
type sequence struct {
	id            uint64
	owner         int
	replica       int // rank of the replica, or none
	prompt        int // number of tokens that prefill reads
	requestTokens int // number of the request's tokens. Prefill reads at most these; any others become decode rows. Later tokens were sampled
	policy        *kvcache.Policy

	promptShard  *kvcache.Store       // this rank's KV heads of the prompt; nil without any, or after the hand-over
	stats        *kvcache.Observation // attention statistics for the policy; nil: the policy needs none
	cache        *kvcache.Store       // the owner's cache, from the last chunk on
	replicaCache *kvcache.Store       // the replica on this socket

	params  sampler.Params
	history *sampler.History
	staged  []stagedToken          // tokens of the last decode rows, which may be rolled back
	grammar *constraint.Constraint // grammar of the output; nil: none, or another socket has it
	draft   *draft.State           // state of the draft model, on the owner; or nil
	next    int32                  // the token sampled after the newest row, or none
}

// stagedToken is a token in the history that may be rolled back.
type stagedToken struct {
	token      int32
	distinct   int  // number of distinct tokens in the history before it
	fromPrompt bool // it belongs to the prompt
}

// note appends a token to the sampling history.
func (s *sequence) note(token int32, position int) {
	if position < s.requestTokens {
		s.history.Add([]int32{token})
		s.draft.Feed(token)
		return
	}
	s.history.AddOutput(token)
	s.grammar.Feed(token)
	s.draft.Feed(token)
}

// replayed returns the trace's token at a position, or the sampled token if there is none.
func (s *sequence) replayed(drawn int32, position int) int32 {
	if i := position - s.requestTokens; i >= 0 && i < len(s.params.Trace) {
		return s.params.Trace[i]
	}
	return drawn
}

// feed appends the token of a decode row.
func (s *sequence) feed(token int32, position int) {
	s.staged = append(s.staged, stagedToken{token, s.history.Distinct(), position < s.requestTokens})
	s.note(token, position)
}

// commit sets the number of valid tokens in the cache. It commits the first of the last step's staged
// rows and rolls the others back.
func (s *sequence) commit(tokens int, run func(n int, f func(i int))) error {
	for _, store := range [...]*kvcache.Store{s.cache, s.replicaCache} {
		if store == nil {
			continue
		}
		n := tokens - store.Tokens()
		if n < 0 || n > store.Staged() {
			return fmt.Errorf("socket: sequence %d: the plan commits %d tokens, but the cache has %d committed and %d staged", s.id, tokens, store.Tokens(), store.Staged())
		}
		if store == s.cache && len(s.staged) > 0 && n > len(s.staged) {
			return fmt.Errorf("socket: sequence %d: the plan commits %d tokens of the last step, but token %d of it is not the sampled one", s.id, n, len(s.staged)+1)
		}
		store.Settle(n, run)
		store.Commit(n)
		if store != s.cache {
			continue
		}
		for len(s.staged) > n {
			last := s.staged[len(s.staged)-1]
			s.staged = s.staged[:len(s.staged)-1]
			s.draft.Undo()
			if last.fromPrompt {
				s.history.UndoPrompt(last.token, last.distinct)
				continue
			}
			s.history.Undo(last.token, last.distinct)
			s.grammar.Undo()
		}
		s.staged = s.staged[:0]
	}
	return nil
}

func (s *sequence) release() {
	if s.promptShard != nil {
		s.promptShard.Release()
		s.promptShard = nil
	}
	s.stats.Release()
	s.stats = nil
	s.draft.Release()
	if s.cache != nil {
		s.cache.Release()
		s.cache = nil
	}
	s.dropReplica()
}

func (s *sequence) dropReplica() {
	if s.replicaCache != nil {
		s.replicaCache.Release()
		s.replicaCache = nil
	}
	s.replica = plan.None
}

// release performs the effects that free memory. An epoch that is over needs no others.
func (c *caches) release(effects []machine.Effect) {
	for _, f := range effects {
		switch q, b := c.seqs[f.Seq], c.blocks[f.Block]; {
		case f.Do == machine.DoRelease && q != nil:
			q.release()
			delete(c.seqs, f.Seq)
		case f.Do == machine.DoKeep && q != nil:
			// If sharing fails, the block is missing, and the plan that begins with it fails.
			if segment, err := q.cache.Share(f.Tokens); err == nil {
				c.blocks[f.Block] = segment
				c.files.keep(f.Tokens, []uint64{f.Block}, f.Keys)
			}
		case f.Do == machine.DoEvict:
			if b != nil {
				b.Release()
			}
			delete(c.blocks, f.Block)
			delete(c.incoming, f.Block)
			delete(c.named, f.Block)
		case f.Do == machine.DoDropSums && b != nil:
			b.DropSums()
		}
	}
}

// do performs effects.
func (e *epoch) do(effects []machine.Effect) error {
	for i, f := range effects {
		var err error
		q := e.seqs[f.Seq]
		switch f.Do {
		case machine.DoCommit:
			err = q.commit(f.Tokens, e.pool.Run)
		case machine.DoKeep, machine.DoRelease, machine.DoEvict, machine.DoDropSums:
			e.caches.release(effects[i : i+1])
		case machine.DoDropReplica:
			q.dropReplica()
		case machine.DoResume:
			err = e.resume(f.Open)
		case machine.DoOpen:
			err = e.open(f.Open)
		case machine.DoFork:
			err = e.fork(f.Open)
		case machine.DoReplicate:
			err = e.replicate(q, f.Rank, f.Tokens)
		case machine.DoReservePrompt:
			if q.promptShard != nil {
				err = q.promptShard.Reserve(f.Tokens)
			}
		case machine.DoOpenCache:
			err = e.openCache(q)
		case machine.DoReserveCache:
			err = q.reserve(f.Tokens)
		case machine.DoSpill:
			e.spiller.order(f.Seq, f.Tokens)
		}
		if err != nil {
			return fmt.Errorf("socket: %v: %w", f, err)
		}
	}
	return nil
}

// open creates a sequence.
func (e *epoch) open(o *plan.Open) error {
	s := e.newSequence(o)
	e.seqs[o.Seq] = s
	if heads := e.promptHeads(s.owner); heads.Len() > 0 && len(o.Resume) == 0 {
		s.promptShard = kvcache.NewPrefill(e.arena, e.geometry, heads)
		if err := e.attach(s, o.Shared); err != nil {
			return err
		}
		var err error
		if s.stats, err = kvcache.NewObservation(e.arena, e.geometry, e.place.Slices[e.rank].KVHeads, s.policy.Needs, s.prompt); err != nil {
			return err
		}
		if n := len(o.Shared); n > 0 && s.policy.Needs.PromptAttention {
			if err := s.stats.Continue(e.blocks[o.Shared[n-1]]); err != nil {
				return err
			}
		}
	}
	if s.owner == e.rank {
		for i, t := range o.Prefix {
			s.note(t, i)
		}
	}
	return nil
}

// attach begins a prompt with blocks of the prefix cache.
func (e *epoch) attach(s *sequence, shared []uint64) error {
	if len(shared) == 0 {
		return nil
	}
	chain := make([]*kvcache.Segment, len(shared))
	for i, id := range shared {
		if chain[i] = e.blocks[id]; chain[i] == nil {
			return fmt.Errorf("socket: sequence %d: this socket has no rows of block %d", s.id, id)
		}
	}
	e.files.offerAgain(shared)
	return s.promptShard.Attach(chain)
}

// save adds the blocks that a run has completed to the prefix cache. If the cache already has a block
// from another prompt, the sequence uses that block's rows instead of its own.
func (e *epoch) save(s *sequence, c *plan.Run) error {
	if e.place.Slices[e.rank].KVHeads.Len() == 0 {
		return nil // latent attention: this owner reads no heads
	}
	for i, id := range c.Save {
		if have := e.blocks[id]; have != nil {
			if err := s.promptShard.Adopts(have, c.SaveFrom+i); err != nil {
				return err
			}
			continue
		}
		segment, err := s.promptShard.Share(c.SaveFrom + i)
		if err != nil {
			return err
		}
		e.blocks[id] = segment
	}
	e.files.keep(c.SaveFrom, c.Save, c.Keys)
	if c.Sums {
		return e.blocks[c.Save[len(c.Save)-1]].KeepSums(s.stats)
	}
	return nil
}

// newSequence returns the data that every socket has of a sequence.
func (e *epoch) newSequence(o *plan.Open) *sequence {
	s := &sequence{id: o.Seq, owner: o.Owner, replica: o.Replica, prompt: o.Read, policy: o.Policy}
	s.requestTokens = s.prompt + o.Tail - o.Sampled
	s.params = *o.Sampling // on all ranks, because the wire size of a row depends on it
	if s.owner == e.rank {
		s.history = new(sampler.History)
		s.grammar = constraint.New(&e.grammarWork, e.grammars, s.params.Grammar)
		if e.drafter != nil {
			s.draft = e.drafter.NewState()
		}
	}
	return s
}

// resume continues with the owner's cache or the replica that was kept on this socket.
func (e *epoch) resume(o *plan.Open) error {
	s := e.newSequence(o)
	kept := e.seqs[o.Seq]
	kept.draft.Release()
	store := kept.cache
	if store == nil {
		store = kept.replicaCache
	}
	if s.owner == e.rank {
		s.cache = store
		for i, t := range o.Resume {
			s.note(t, i)
		}
	} else {
		s.replicaCache = store
	}
	e.seqs[o.Seq] = s
	return s.commit(len(o.Resume), e.pool.Run)
}

// fork creates a sequence with the cache of another.
func (e *epoch) fork(o *plan.Open) error {
	s := e.newSequence(o)
	e.seqs[o.Seq] = s
	if s.owner != e.rank {
		return nil
	}
	for i, t := range o.Resume {
		s.note(t, i)
	}
	var err error
	s.cache, err = e.seqs[o.Fork].cache.Fork()
	return err
}

// openCache creates the owner's cache for a prompt's hand-over.
func (e *epoch) openCache(q *sequence) error {
	q.cache = kvcache.NewStore(e.arena, e.geometry, q.policy)
	heads := noHeads
	if q.promptShard != nil && q.policy.KeepsAll() {
		heads = e.promptHeads(q.owner)
	}
	return q.cache.Open(q.prompt, q.prompt, heads)
}

// reserve gets memory for the next decode rows. A replica that is being copied gets it when it is
// complete.
func (q *sequence) reserve(tokens int) error {
	for _, s := range [...]*kvcache.Store{q.cache, q.replicaCache} {
		if s != nil && s.Sealed() {
			if err := s.Reserve(tokens); err != nil {
				return err
			}
		}
	}
	return nil
}

// ropesUntil returns the rotations of keys for positions below `tokens`.
func (e *epoch) ropesUntil(tokens int) kvcache.Ropes {
	for _, r := range e.rotations {
		r.Until(tokens - 1)
	}
	return e.ropes
}

var noHeads tensor.Span

// promptHeads returns the KV heads of a prompt whose rows a socket stores.
func (e *epoch) promptHeads(owner int) tensor.Span {
	mine := e.place.Slices[e.rank].KVHeads
	if e.geometry.Units == 0 {
		return mine
	}
	return tensor.Span{Lo: 0, Hi: e.geometry.PromptHeads(mine.Len(), owner == e.rank)}
}

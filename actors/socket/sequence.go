package socket

import (
	"fmt"

	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/plan"
	"github.com/shoal-llm/shoal/internal/engine/sampler"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// caches are the stores that a socket holds, of its epoch and of earlier ones. Machine
// says what becomes of them; only the executor touches them.
type caches struct {
	arena   *kvcache.Arena
	seqs    map[uint64]*sequence
	blocks  map[uint64]*kvcache.Segment // of the prefix cache; on a socket that reads no heads there are none
	files   *files                      // nil: they are kept in memory alone
	spiller *spiller                    // of caches; nil: they stay in memory
	coming  map[uint64]*coming          // blocks that are read from files
	named   map[uint64]offer            // how files name blocks
	drafter *drafter                    // loaded once; nil: none
	beside  beside                      // grammars of sequences
}

// sequence is what a socket holds of one: its heads' part of the prompt while that is
// read; on the owner the cache that decode reads, and the sampling state.
type sequence struct {
	id      uint64
	owner   int
	replica int // rank, or none
	prompt  int // tokens that prefill reads
	fresh   int // how many tokens the request came with: at most these, or more, which come as decode rows; later ones were sampled
	policy  *kvcache.Policy

	part  *kvcache.Store       // own KV heads of the prompt; nil when this rank has none, or after the hand-over
	seen  *kvcache.Observation // what the policy will look at; nil: nothing
	own   *kvcache.Store       // the owner's, from the last chunk on
	moves *handover            // that goes on over several steps
	copy  *kvcache.Store       // the replica of it on this socket

	params  sampler.Params
	history *sampler.History
	ahead   []ahead     // of the last decode rows, which may be rolled back
	must    *constraint // what the output must fit; nil: nothing, or another socket's
	draft   *drafted    // what a drafter has of it, on its owner; or nil
	next    int32       // the token that was drawn after the newest of them, or none
}

// ahead is a token in the history that may be taken back.
type ahead struct {
	token    int32
	distinct int  // tokens in the history before it
	given    bool // it is the prompt's
}

// note records a token in the sampling history.
func (s *sequence) note(token int32, position int) {
	if position < s.fresh {
		s.history.Add([]int32{token})
		s.draft.feed(token)
		return
	}
	s.history.AddOutput(token)
	s.must.feed(token)
	s.draft.feed(token)
}

// replayed is the token of the trace at a position, or what was drawn.
func (s *sequence) replayed(drawn int32, position int) int32 {
	if i := position - s.fresh; i >= 0 && i < len(s.params.Trace) {
		return s.params.Trace[i]
	}
	return drawn
}

// feed records the token of a decode row.
func (s *sequence) feed(token int32, position int) {
	s.ahead = append(s.ahead, ahead{token, s.history.Distinct(), position < s.fresh})
	s.note(token, position)
}

// commit makes the first tokens of the cache count, whose last ones are those of the
// last rows, and rolls the others back.
func (s *sequence) commit(tokens int) error {
	for _, store := range [...]*kvcache.Store{s.own, s.copy} {
		if store == nil {
			continue
		}
		n := tokens - store.Tokens()
		if n < 0 || n > store.Staged() {
			return fmt.Errorf("socket: sequence %d: %d tokens are to count; there are %d, and %d of the last step", s.id, tokens, store.Tokens(), store.Staged())
		}
		if store == s.own && len(s.ahead) > 0 && n > len(s.ahead) {
			return fmt.Errorf("socket: sequence %d: %d tokens of the last step are to count, of which the %d-th is not what was drawn", s.id, n, len(s.ahead)+1)
		}
		store.Commit(n)
		if store != s.own {
			continue
		}
		for len(s.ahead) > n {
			last := s.ahead[len(s.ahead)-1]
			s.ahead = s.ahead[:len(s.ahead)-1]
			s.draft.undo()
			if last.given {
				s.history.UndoPrompt(last.token, last.distinct)
				continue
			}
			s.history.Undo(last.token, last.distinct)
			s.must.undo()
		}
		s.ahead = s.ahead[:0]
	}
	return nil
}

func (s *sequence) release() {
	if s.part != nil {
		s.part.Release()
		s.part = nil
	}
	s.seen.Release()
	s.seen = nil
	s.draft.release()
	if s.own != nil {
		s.own.Release()
		s.own = nil
	}
	s.dropReplica()
}

func (s *sequence) dropReplica() {
	if s.copy != nil {
		s.copy.Release()
		s.copy = nil
	}
	s.replica = none
}

// release carries out what frees memory among effects: all that is left of an epoch that is over.
func (c *caches) release(effects []Effect) {
	for _, f := range effects {
		switch q, b := c.seqs[f.Seq], c.blocks[f.Block]; {
		case f.Do == DoRelease && q != nil:
			q.release()
			delete(c.seqs, f.Seq)
		case f.Do == DoKeep && q != nil:
			// What cannot be shared is missed by the plan that begins with it, which fails.
			if segment, err := q.own.Share(f.Tokens); err == nil {
				c.blocks[f.Block] = segment
				c.files.keep(f.Tokens, []uint64{f.Block}, f.Keys)
			}
		case f.Do == DoEvict:
			if b != nil {
				b.Release()
			}
			delete(c.blocks, f.Block)
			delete(c.coming, f.Block)
			delete(c.named, f.Block)
		case f.Do == DoDropSums && b != nil:
			b.DropSums()
		}
	}
}

// do carries effects out.
func (e *epoch) do(effects []Effect) error {
	for i, f := range effects {
		var err error
		q := e.seqs[f.Seq]
		switch f.Do {
		case DoCommit:
			err = q.commit(f.Tokens)
		case DoKeep, DoRelease, DoEvict, DoDropSums:
			e.caches.release(effects[i : i+1])
		case DoDropReplica:
			q.dropReplica()
		case DoResume:
			err = e.resume(f.Open)
		case DoOpen:
			err = e.open(f.Open)
		case DoFork:
			err = e.fork(f.Open)
		case DoReplicate:
			err = e.replicate(q, f.Rank, f.Tokens)
		case DoReservePrompt:
			if q.part != nil {
				err = q.part.Reserve(f.Tokens)
			}
		case DoOpenCache:
			err = e.openCache(q)
		case DoReserveCache:
			err = q.reserve(f.Tokens)
		case DoSpill:
			e.spiller.order(f.Seq, f.Tokens)
		}
		if err != nil {
			return fmt.Errorf("socket: %v: %w", f, err)
		}
	}
	return nil
}

// open begins a sequence.
func (e *epoch) open(o *plan.Open) error {
	s := e.newSequence(o)
	e.seqs[o.Seq] = s
	if heads := e.promptHeads(s.owner); heads.Len() > 0 && len(o.Resume) == 0 {
		s.part = kvcache.NewPrefill(e.arena, e.geometry, heads)
		if err := e.attach(s, o.Shared); err != nil {
			return err
		}
		var err error
		if s.seen, err = kvcache.NewObservation(e.arena, e.geometry, e.place.Slices[e.rank].KVHeads, s.policy.Needs, s.prompt); err != nil {
			return err
		}
		if n := len(o.Shared); n > 0 && s.policy.Needs.PromptAttention {
			if err := s.seen.Continue(e.blocks[o.Shared[n-1]]); err != nil {
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
			return fmt.Errorf("socket: sequence %d: no rows of block %d here", s.id, id)
		}
	}
	e.files.again(shared)
	return s.part.Attach(chain)
}

// save keeps the blocks of a prompt that a run has completed for the prefix cache. What
// that has of another prompt already takes the place of the sequence's own rows.
func (e *epoch) save(s *sequence, c *Run) error {
	if e.place.Slices[e.rank].KVHeads.Len() == 0 {
		return nil // of latent attention: an owner that reads no heads
	}
	for i, id := range c.Save {
		if have := e.blocks[id]; have != nil {
			if err := s.part.Adopts(have, c.SaveFrom+i); err != nil {
				return err
			}
			continue
		}
		segment, err := s.part.Share(c.SaveFrom + i)
		if err != nil {
			return err
		}
		e.blocks[id] = segment
	}
	e.files.keep(c.SaveFrom, c.Save, c.Keys)
	if c.Sums {
		return e.blocks[c.Save[len(c.Save)-1]].KeepSums(s.seen)
	}
	return nil
}

// newSequence is what every socket notes of a sequence.
func (e *epoch) newSequence(o *plan.Open) *sequence {
	s := &sequence{id: o.Seq, owner: o.Owner, replica: o.Replica, prompt: o.Read, policy: o.Policy}
	s.fresh = s.prompt + o.Tail - o.Sampled
	s.params = *o.Sampling // on all ranks, since what a row sends to its owner depends on it
	if s.owner == e.rank {
		s.history = new(sampler.History)
		s.must = newConstraint(&e.beside, e.grammars, s.params.Grammar)
		if e.drafter != nil {
			s.draft = e.drafter.sequence()
		}
	}
	return s
}

// resume goes on with the cache that was kept here, as the owner's or as a replica.
func (e *epoch) resume(o *plan.Open) error {
	s := e.newSequence(o)
	kept := e.seqs[o.Seq]
	kept.draft.release()
	store := kept.own
	if store == nil {
		store = kept.copy
	}
	if s.owner == e.rank {
		s.own = store
		for i, t := range o.Resume {
			s.note(t, i)
		}
	} else {
		s.copy = store
	}
	e.seqs[o.Seq] = s
	return s.commit(len(o.Resume))
}

// fork begins a sequence with the cache of another.
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
	s.own, err = e.seqs[o.Fork].own.Fork()
	return err
}

// openCache begins the owner's cache of a prompt that is about to be handed over.
func (e *epoch) openCache(q *sequence) error {
	q.own = kvcache.NewStore(e.arena, e.geometry, q.policy)
	heads := noHeads
	if q.part != nil && q.policy.KeepsAll() {
		heads = e.promptHeads(q.owner)
	}
	return q.own.Open(q.prompt, q.prompt, heads)
}

// reserve gets room for the next decode rows; a replica that is being made gets it when
// it is whole.
func (q *sequence) reserve(tokens int) error {
	for _, s := range [...]*kvcache.Store{q.own, q.copy} {
		if s != nil && s.Sealed() {
			if err := s.Reserve(tokens); err != nil {
				return err
			}
		}
	}
	return nil
}

// rope gives the rotations of keys of so many tokens.
func (e *epoch) rope(tokens int) kvcache.Rope {
	e.ropes[0].Until(tokens - 1)
	return e.ropes[0].At
}

var noHeads tensor.Span

// promptHeads are the KV heads of a prompt whose rows a socket keeps.
func (e *epoch) promptHeads(owner int) tensor.Span {
	mine := e.place.Slices[e.rank].KVHeads
	if e.geometry.Units == 0 {
		return mine
	}
	return tensor.Span{Lo: 0, Hi: e.geometry.PromptHeads(mine.Len(), owner == e.rank)}
}

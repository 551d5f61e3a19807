package caches

import (
	"fmt"

	"github.com/shoal-llm/shoal/actors/layer/lowrank"
	"github.com/shoal-llm/shoal/actors/socket/constraint"
	"github.com/shoal-llm/shoal/actors/socket/machine"
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/tier"
	"github.com/shoal-llm/shoal/internal/engine/lora"
	"github.com/shoal-llm/shoal/internal/engine/plan"
	"github.com/shoal-llm/shoal/internal/engine/pooling"
	"github.com/shoal-llm/shoal/internal/engine/sampler"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/text/grammar"
	"github.com/shoal-llm/shoal/topology"
)

// Epoch is a socket's caches under one placement.
type Epoch struct {
	*Caches  // shared with later epochs
	Place    topology.Placement
	Rank     int
	Geometry kvcache.Geometry
	Hidden   int          // width of the residual stream
	Score    tensor.Score // scale, cap and sinks of attention
	Form     tier.Form    // of the prefix cache's blocks in files
	States   tier.Form    // of their snapshots; zero: the model has no recurrent states
	Grammars func() (*grammar.Engine, error)
	Adapters map[lora.ID]*lowrank.Adapter // in memory
	Parallel func(n int, f func(i int))   // runs tasks on the socket's threads, like tensor.Pool.Run
}

// Do performs effects in order.
func (e *Epoch) Do(effects []machine.Effect) error {
	for i, f := range effects {
		var err error
		q := e.Seqs[f.Seq]
		switch f.Do {
		case machine.DoCommit:
			err = q.commit(f.Tokens, f.Copy, e.Parallel)
		case machine.DoKeep, machine.DoRelease, machine.DoEvict, machine.DoDropExtras, machine.DoDropStates, machine.DoKeepStates:
			e.Caches.Release(effects[i : i+1])
		case machine.DoDropReplica:
			q.dropReplica()
		case machine.DoResume:
			err = e.resume(f.Open)
		case machine.DoOpen:
			err = e.open(f.Open)
		case machine.DoFork:
			err = e.fork(f.Open)
		case machine.DoTake:
			err = e.take(f.Open)
		case machine.DoReplicate:
			err = e.replicate(q, f.Rank, f.Tokens)
		case machine.DoReservePrompt:
			if q.PromptShard != nil {
				err = q.PromptShard.Reserve(f.Tokens)
			}
		case machine.DoEnter:
			err = e.enter(q, f.Layers, f.Tokens)
		case machine.DoOpenCache:
			err = e.openCache(q)
		case machine.DoReserveCache:
			err = q.reserve(f.Tokens)
		case machine.DoReserveStates:
			if q.Cache != nil {
				err = q.Cache.States().ReserveCopy()
			}
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
func (e *Epoch) open(o *plan.Open) error {
	s := e.newSequence(o)
	e.Seqs[o.Seq] = s
	if o.PassRows > 0 {
		if err := e.openLayered(s, o); err != nil {
			return err
		}
	}
	if heads := e.PromptHeads(s.Owner); heads.Len() > 0 && len(o.Resume) == 0 {
		s.PromptShard = kvcache.NewPrefill(e.Arena, e.Geometry, heads)
		if err := e.attach(s, o.Shared); err != nil {
			return err
		}
		if err := e.observe(s, o); err != nil {
			return err
		}
	}
	if s.Owner == e.Rank {
		for i, t := range o.Prefix {
			s.AddToken(t, i)
		}
	}
	return nil
}

// observe begins the statistics of a prompt for its policy. For a prompt that is read layer by layer,
// enter begins them.
func (e *Epoch) observe(s *Sequence, o *plan.Open) (err error) {
	if o.PassRows > 0 {
		return nil
	}
	if s.Stats, err = kvcache.NewObservation(e.Arena, e.Geometry, e.Place.Slices[e.Rank].KVHeads, s.Policy.Needs, s.Prompt); err != nil {
		return err
	}
	if s.Stats != nil {
		s.Stats.Results = s.results
	}
	if n := len(o.Shared); n > 0 && s.Policy.Needs.PromptAttention {
		return s.Stats.Continue(e.blocks[o.Shared[n-1]])
	}
	return nil
}

// attach begins a prompt with blocks of the prefix cache.
func (e *Epoch) attach(s *Sequence, shared []uint64) error {
	if len(shared) == 0 {
		return nil
	}
	chain := make([]*kvcache.Segment, len(shared))
	for i, id := range shared {
		if chain[i] = e.blocks[id]; chain[i] == nil {
			return fmt.Errorf("socket: sequence %d: this socket has no rows of block %d", s.ID, id)
		}
	}
	e.files.offerAgain(shared)
	return s.PromptShard.Attach(chain)
}

// Save adds the blocks that a run has completed to the prefix cache. If the cache already has a block
// from another prompt, the sequence uses that block's rows instead of its own.
func (e *Epoch) Save(s *Sequence, c *plan.Run) error {
	if e.Place.Slices[e.Rank].KVHeads.Len() == 0 {
		return nil // latent attention: this owner reads no heads
	}
	for i, id := range c.Save {
		if have := e.blocks[id]; have != nil {
			if err := s.PromptShard.Deduplicate(have, c.SaveFrom+i); err != nil {
				return err
			}
			continue
		}
		segment, err := s.PromptShard.Share(c.SaveFrom + i)
		if err != nil {
			return err
		}
		e.blocks[id] = segment
	}
	e.files.keep(c.SaveFrom, c.Save, c.Keys)
	if c.Snapshot {
		if err := e.blocks[c.Save[len(c.Save)-1]].KeepStates(s.PromptShard); err != nil {
			return err
		}
		last := len(c.Save) - 1
		e.files.keepSnapshot(c.SaveFrom+last, c.Save[last], c.Keys)
	}
	if c.Sums {
		return e.blocks[c.Save[len(c.Save)-1]].KeepSums(s.Stats)
	}
	return nil
}

// newSequence returns the data that every socket has of a sequence.
func (e *Epoch) newSequence(o *plan.Open) *Sequence {
	s := &Sequence{ID: o.Seq, Owner: o.Owner, Replica: o.Replica, Prompt: o.Read, Policy: o.Policy,
		Adapter: e.Adapters[o.Adapter], results: e.files.resultsOf(o)}
	if o.Pool != pooling.None {
		s.Pool = pooling.New(o.Pool, s.Prompt)
	}
	s.requestTokens = s.Prompt + o.Tail - o.Sampled
	s.Params = *o.Sampling // on all ranks, because the wire size of a row depends on it
	if s.Owner == e.Rank {
		s.History = new(sampler.History)
		s.Grammar = constraint.New(&e.constraints, e.Grammars, s.Params.Grammar)
		if e.Drafter != nil {
			s.Draft = e.Drafter.NewState()
		}
	}
	return s
}

// resume continues with the owner's cache or the replica that was kept on this socket.
func (e *Epoch) resume(o *plan.Open) error {
	s := e.newSequence(o)
	kept := e.Seqs[o.Seq]
	kept.Draft.Release()
	store := kept.Cache
	if store == nil {
		store = kept.ReplicaCache
	}
	if s.Owner == e.Rank {
		s.Cache = store
		for i, t := range o.Resume {
			s.AddToken(t, i)
		}
	} else {
		s.ReplicaCache = store
	}
	e.Seqs[o.Seq] = s
	store.States().DropCopy() // the ledger of this epoch does not count it
	return s.commit(len(o.Resume), 0, e.Parallel)
}

// fork creates a sequence with the cache of another.
func (e *Epoch) fork(o *plan.Open) error {
	s := e.newSequence(o)
	e.Seqs[o.Seq] = s
	if s.Owner != e.Rank {
		return nil
	}
	for i, t := range o.Resume {
		s.AddToken(t, i)
	}
	var err error
	s.Cache, err = e.Seqs[o.Fork].Cache.Fork()
	return err
}

// take creates a sequence with the cache of another, which ends.
func (e *Epoch) take(o *plan.Open) error {
	s, from := e.newSequence(o), e.Seqs[o.Fork]
	e.Seqs[o.Seq] = s
	if from == nil {
		return nil
	}
	s.Cache, from.Cache = from.Cache, nil
	from.release()
	delete(e.Seqs, o.Fork)
	if s.Cache == nil {
		return nil
	}
	for i, t := range o.Resume {
		s.AddToken(t, i)
	}
	s.Cache.States().DropCopy()
	return s.commit(len(o.Resume), 0, e.Parallel)
}

// openCache creates the owner's cache for a prompt's hand-over.
func (e *Epoch) openCache(q *Sequence) error {
	q.Cache = kvcache.NewStore(e.Arena, e.Geometry, q.Policy)
	q.Cache.Score, q.Cache.Results = e.Score, q.results
	var heads tensor.Span
	if q.PromptShard != nil && q.Policy.KeepsPrompt() {
		heads = e.PromptHeads(q.Owner)
	}
	return q.Cache.Open(q.Prompt, q.Prompt, heads)
}

// PromptHeads returns the KV heads of a prompt whose rows a socket stores.
func (e *Epoch) PromptHeads(owner int) tensor.Span {
	mine := e.Place.Slices[e.Rank].KVHeads
	if e.Geometry.Units == 0 {
		return mine
	}
	return tensor.Span{Lo: 0, Hi: e.Geometry.PromptHeads(mine.Len(), owner == e.Rank)}
}

// replicate records the rank of a sequence's replica, and creates the replica on that rank.
func (e *Epoch) replicate(q *Sequence, rank, tokens int) error {
	q.Replica = rank
	if rank != e.Rank {
		return nil
	}
	q.ReplicaCache = kvcache.NewStore(e.Arena, e.Geometry, q.Policy)
	return q.ReplicaCache.OpenMoved(q.Prompt, tokens)
}

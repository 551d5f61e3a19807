package batcher

import (
	"slices"

	"github.com/shoal-llm/shoal/actors/batcher/prefillgroup"
	"github.com/shoal-llm/shoal/actors/batcher/saved"
	"github.com/shoal-llm/shoal/internal/engine/plan"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// admit adds the first waiting request in order to the plan, if it fits everywhere at its peak. A
// smaller request does not overtake it. Only requests whose text is in the prefix cache may go
// first (prefixCache.next). Requests that this placement can never take are skipped. left is the
// number of tokens that the step has room for.
func (s *State) admit(p *plan.Plan, left int) *request {
	if s.full() {
		return nil
	}
	s.prefix.limit()
	r := s.prefix.next(s.head())
	if r != nil && r.remote.Phase == prefillgroup.Ready {
		if !s.remote.take(r) {
			return nil
		}
		return s.admit(p, left)
	}
	if r == nil || s.cfg.Whole && len(r.Prompt) > left {
		return nil
	}
	read, tokens := r.demand()
	if v := s.sessions.source(r); v != nil {
		if !s.sessions.admit(p, r, v) {
			return nil
		}
		return r
	}
	if r.saved.Phase == saved.Located {
		if !s.saves.load(r) {
			return nil
		}
		return s.admit(p, left)
	}
	if v := s.contexts.source(r, read); v != nil && s.contexts.admit(p, r, v) {
		return r
	}
	chain, owner, need := s.prefix.fit(r)
	if owner == none {
		return nil
	}
	s.prefix.passOver(r)
	s.ledger.admit(r, owner, need)
	open := s.start(r, prefill, read, len(chain)*tensor.BlockSlots)
	open.Reserve = max(read, tokens)
	s.prefix.admit(r, &open, chain)
	p.Open = append(p.Open, open)
	return r
}

// start makes a waiting request a running sequence. read is the number of tokens that prefill reads, cached
// the number of those in a cache. The owner must be set. start returns the Open of the sequence.
func (s *State) start(r *request, ph phase, read, cached int) plan.Open {
	s.waiting.remove(r)
	s.sequences++
	r.phase, r.seq, r.read, r.cached, r.staged = ph, s.sequences, read, cached, 0
	r.waits = 0
	r.begun(s, cached)
	s.running.insert(r)
	return r.opens()
}

// begun counts an admission of a request. found is the number of its tokens in a cache.
func (r *request) begun(s *State, found int) {
	found = min(found, len(r.Prompt))
	switch {
	case r.remote.Phase == prefillgroup.Ready && r.started >= 0: // the prefill group has counted what it found
		return
	case r.started >= 0: // the cache of the earlier admission was lost, or preempted
		r.warm = min(r.warm, found)
		return
	}
	r.started, r.warm = s.now, found
	s.prefix.begun(r)
}

// full reports whether no more sequences can run: by the number with rows, or by the number on a
// socket.
func (s *State) full() bool {
	return s.busy() >= s.cfg.MaxRunning || len(s.running) >= s.cfg.TokenBudget-1
}

// busy counts the sequences with rows. A held context has none.
func (s *State) busy() (n int) {
	for _, r := range s.running {
		if !r.holdsContext() && !r.idle {
			n++
		}
	}
	return n
}

// head returns the first request in order that waits for a place. It skips requests whose client
// does not read, and requests whose text another sequence is reading at the moment.
func (s *State) head() *request {
	for _, r := range s.waiting {
		if !s.eligible(r) {
			continue
		}
		if seq := s.awaits(r); seq != 0 && r.remote.Phase != prefillgroup.Ready && r.saved.Phase != saved.Located {
			r.awaited = seq
			continue
		}
		return r
	}
	return nil
}

// eligible reports whether a request waits only for a place, or for a sequence that reads its text.
func (s *State) eligible(r *request) bool {
	return r.unfit == "" && !r.unread && !r.remote.Away() && !r.saved.Away() && s.adapted.admits(r) && !s.prefix.awaitsBlocks(r)
}

// awaits returns the sequence in prefill that a waiting request should wait for: it is about to
// read the next block that the request lacks, or the request can start as a fork of it. A request
// waits for at most one such sequence.
func (s *State) awaits(r *request) (seq uint64) {
	read := r.toRead()
	for _, v := range s.running {
		if r.awaited != 0 && r.awaited != v.seq {
			continue
		}
		if v.phase == prefill && s.contexts.matches(r, v, read) || s.prefix.follows(r, v) {
			return v.seq
		}
	}
	return 0
}

// makeRoom preempts sequences while the first waiting request in order lacks a place or memory.
// Preempted requests wait with their tokens; an idle cache is dropped.
func (s *State) makeRoom() {
	r := s.head()
	if r == nil {
		return
	}
	for {
		n := newcomer{s: s, r: r, source: s.contexts.source(r, r.toRead()), turn: s.sessions.source(r)}
		hasMemory := s.ledger.choose(r, 0).Why == "" || s.cuts.fitsBlocks(r)
		if (hasMemory || n.turn != nil || n.canFork()) && !s.full() {
			return
		}
		if !hasMemory && s.prefix.fetches.Cancel(true) {
			continue
		}
		v := n.victim()
		if v == nil || s.saves.awaits(v, r) { // until the cache is in a file
			return
		}
		s.preempt(v)
	}
}

// newcomer is the waiting request for which makeRoom preempts others.
type newcomer struct {
	s      *State
	r      *request
	source *request // the sequence from which it can be forked, or nil
	turn   *request // the idle request that has the cache of its session, or nil
}

// canFork reports whether the request fits as a fork.
func (n *newcomer) canFork() bool {
	if n.source == nil {
		return false
	}
	a := &n.s.ledger.sockets[n.source.owner]
	return n.s.contexts.bytes(n.r) <= a.room()+a.replicas
}

// victim returns the sequence to preempt next, or nil if none can be preempted. It chooses idle caches in
// memory first, then other sequences from the end of the order, and the source last.
func (n *newcomer) victim() *request {
	var other *request
	for _, v := range slices.Backward(n.s.running) {
		switch {
		case v == n.source || !n.yields(v):
		case v.idle && v != n.turn && !v.resides.file.done:
			return v
		case other == nil:
			other = v
		}
	}
	if other == nil && n.source != nil && n.yields(n.source) {
		return n.source
	}
	return other
}

// yields reports whether a sequence can be preempted for the request: its client does not read, it is an
// idle cache, it holds a context, or it is a job that is later in the order.
func (n *newcomer) yields(v *request) bool {
	switch {
	case v.lends():
		return false
	case v.unread || v.idle && v != n.turn:
		return true
	case v.holdsContext() && n.s.busy() < n.s.cfg.MaxRunning && n.r.rank < lastRank:
		return true
	}
	return v.Accepted && !n.r.Accepted && inOrder(n.r, v) < 0
}

// fit finds the owner of a request that begins with shared blocks, and frees memory for it. shared is
// their number. It returns none if the request does not fit.
func (s *State) fit(r *request, shared int) (owner int, need []int64) {
	c := s.ledger.choose(r, shared)
	fits, free := c.Why == "", s.residency.makeFree
	if r.arrives() {
		free = s.prefix.makeFreeNow
	}
	for i := range c.Need {
		fits = fits && free(i, c.Need[i])
	}
	if !fits {
		return none, nil
	}
	first := shared * tensor.BlockSlots
	r.cut.now = r.cut.must
	r.sweeping = sweeping{shape: c.Shape, first: first, read: first, files: c.Shape.FileBytes(r.toRead() - first)}
	return c.Owner, c.Need
}

// opens returns the Open of a request that is being admitted.
func (r *request) opens() plan.Open {
	read := r.read
	if r.cut.now { // a cut sequence stays in prefill until it ends
		read = r.final()
	}
	return plan.Open{
		Seq: r.seq, ID: r.ID, Owner: r.owner, Replica: none,
		Policy: r.Policy, Sampling: r.Sampling, Pool: r.Pool, Adapter: r.Adapter.ID,
		Read: read, Sampled: max(0, read-len(r.Prompt)), Tail: max(0, len(r.Prompt)-read), Reserve: r.read + 1,
		PassRows: r.sweeping.shape.Pass, InFile: r.sweeping.shape.InFile,
	}
}

package batcher

import (
	"github.com/shoal-llm/shoal/actors/batcher/prefillgroup"
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
	if v := s.contexts.source(r, read); v != nil && s.contexts.admit(p, r, v) {
		return r
	}
	chain, owner, need := s.prefix.fit(r)
	if owner == none {
		return nil
	}
	s.prefix.passOver(r)
	s.waiting.remove(r)
	s.ledger.admit(r, owner, need)
	s.sequences++
	r.phase, r.seq, r.read, r.cached, r.staged, r.resides.replica = prefill, s.sequences, read, len(chain)*tensor.BlockSlots, 0, none
	open := r.opens()
	open.Reserve = max(read, tokens)
	s.prefix.admit(r, &open, chain)
	s.begun(r, r.cached)
	s.running.insert(r)
	p.Open = append(p.Open, open)
	return r
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
		if seq := s.awaits(r); seq != 0 && r.remote.Phase != prefillgroup.Ready {
			r.awaited = seq
			continue
		}
		return r
	}
	return nil
}

// eligible reports whether a request waits only for a place, or for a sequence that reads its text.
func (s *State) eligible(r *request) bool {
	return r.unfit == "" && !r.unread && !r.remote.Away() && s.adapted.admits(r) && !s.prefix.awaitsBlocks(r)
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

// makeRoom preempts sequences for the first waiting request in order, when it lacks a place or
// memory. It preempts requests whose clients do not read, held contexts, and jobs that are later in
// the order. They wait with their tokens.
func (s *State) makeRoom() {
	r := s.head()
	if r == nil {
		return
	}
	for {
		source, why := s.contexts.source(r, r.toRead()), s.ledger.choose(r, 0).Why
		turn := s.sessions.source(r)
		if (why == "" || turn != nil || source != nil && s.contexts.bytes(r) <= s.ledger.sockets[source.owner].room()) && !s.full() {
			return
		}
		if why != "" && s.prefix.fetches.Cancel(true) {
			continue
		}
		yields := func(v *request) bool {
			switch {
			case v.lends():
				return false
			case v.unread || v.idle && v != turn:
				return true
			case v.holdsContext() && s.busy() < s.cfg.MaxRunning && r.rank < lastRank:
				return true
			}
			return v.Accepted && !r.Accepted && inOrder(r, v) < 0
		}
		last := len(s.running) - 1
		for last >= 0 && (!s.running[last].idle || s.running[last] == turn || s.running[last].resides.file.done) {
			last--
		}
		if last < 0 { // no idle cache that is in memory
			last = len(s.running) - 1
		}
		for last >= 0 && (s.running[last] == source || !yields(s.running[last])) {
			last--
		}
		switch {
		case last >= 0:
			s.preempt(s.running[last])
		case source != nil && yields(source):
			s.preempt(source)
		default:
			return
		}
	}
}

// fit finds the owner of a request that begins with this number of shared blocks, and frees memory
// for it. It returns none if the request does not fit.
func (s *State) fit(r *request, shared int) (owner int, need []int64) {
	c := s.ledger.choose(r, shared)
	fits := c.Why == ""
	for i := range c.Need {
		fits = fits && s.makeFree(i, c.Need[i])
	}
	if !fits {
		return none, nil
	}
	first := shared * tensor.BlockSlots
	r.sweeping = sweeping{shape: c.Shape, first: first, read: first, files: c.Shape.FileBytes(r.toRead() - first)}
	return c.Owner, c.Need
}

// begun counts a first admission, with the tokens of the prompt that a cache had.
func (s *State) begun(r *request, found int) {
	if r.started >= 0 {
		return
	}
	r.started, r.warm = s.now, min(found, len(r.Prompt))
	s.prefix.begun(r)
}

// opens returns the Open of a request that is being admitted.
func (r *request) opens() plan.Open {
	return plan.Open{
		Seq: r.seq, ID: r.ID, Owner: r.owner, Replica: none,
		Policy: r.Policy, Sampling: r.Sampling, Pool: r.Pool, Adapter: r.Adapter.ID,
		Read: r.read, Sampled: max(0, r.read-len(r.Prompt)), Tail: max(0, len(r.Prompt)-r.read), Reserve: r.read + 1,
		PassRows: r.sweeping.shape.Pass, InFile: r.sweeping.shape.InFile,
	}
}

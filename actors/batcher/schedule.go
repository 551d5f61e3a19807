package batcher

import (
	"github.com/shoal-llm/shoal/actors/batcher/prefillgroup"
	"github.com/shoal-llm/shoal/internal/engine/plan"
	"github.com/shoal-llm/shoal/internal/engine/pooling"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// schedule makes the next step. It reserves memory for the decode rows first. Then it adds the
// decode rows, chunks of prompts in prefill and new admissions to the plan, until the token budget
// is used up. Finally the modules add their parts.
func (s *State) schedule() {
	s.growAll()
	s.ledger.prefill.NoFiles = s.now < s.layers.filesAfter
	s.makeRoom()
	p := &plan.Plan{Epoch: s.epoch, Step: s.steps + 1, Decode: make([]plan.Run, 0, len(s.running))}
	s.adapted.reopen(p)
	rows := map[uint64]*request{}
	for _, r := range s.running {
		if r.phase == decoding && !r.rowless() {
			p.Decode = append(p.Decode, r.row())
			rows[r.seq] = r
		}
	}
	left := s.cfg.TokenBudget - len(p.Decode)
	for _, r := range s.running {
		if r.phase == prefill && left > 0 && r.remote.Phase != prefillgroup.Coming {
			left -= s.chunk(p, r, left)
			rows[r.seq] = r
		}
	}
	for left > 0 {
		r := s.admit(p, left)
		if r == nil {
			break
		}
		rows[r.seq] = r
		if r.phase == decoding {
			p.Decode, left = append(p.Decode, r.row()), left-1
			continue
		}
		left -= s.chunk(p, r, left)
	}
	s.clusters.plan(p, rows)
	if len(rows) == 0 {
		s.out.Release = s.release.Unsent()
		s.out.Evict, s.out.Keep = s.prefix.tree.Evicted.Unsent(), s.prefix.kept.Unsent()
		return
	}
	s.drafts.plan(p, rows, left)
	s.residency.plan(p)
	if s.cfg.DecodeSteps > 1 && !s.onePass {
		s.multiStep.plan(p, rows)
	}
	s.threads.Plan(p)
	s.overlap.Plan(p, !s.threads.Trying())
	s.steps++
	s.adapted.reopened()
	p.Release = s.release.Take()
	s.prefix.plan(p, rows)
	s.flight = &flight{plan: p, started: s.now, rows: rows}
	s.out.Start = p
}

// run returns a run of the tokens at [lo, hi) of a request.
func (r *request) run(lo, hi int) plan.Run {
	return plan.Run{Seq: r.seq, Owner: r.owner, Start: lo, Tokens: r.tokens(lo, hi), PromptLogprobs: plan.None, Next: plan.None}
}

// row returns the next decode row of a request.
func (r *request) row() plan.Run {
	row := r.run(r.cached, r.cached+1)
	row.Accepted, row.Sample = r.staged, r.cached+1 >= len(r.Prompt)
	return row
}

// growAll books the bytes of the next decode rows, in order. If memory is short on a socket, it
// first drops replicas there. Then it preempts the last sequence in order that has memory there,
// which can be the same one.
func (s *State) growAll() {
	for _, r := range append(queue(nil), s.running...) {
		if r.phase != decoding || r.rowless() {
			continue // in prefill, or preempted by this loop
		}
		bytes := s.ledger.growth(r, 1)
		for r.phase == decoding && !s.makeFree(r.owner, bytes) {
			if !s.prefix.fetches.CancelAny() && !s.residency.evict(r.owner) {
				s.preempt(s.victim(r.owner))
			}
		}
		if r.phase != decoding {
			continue
		}
		if r.resides.replica != none && !s.makeFree(r.resides.replica, bytes) {
			s.residency.drop(r)
		}
		s.ledger.grow(r, bytes)
	}
}

// reserve books memory for n more tokens in the next row of a request, or for half of them and so
// on, as far as memory is free. It returns their number.
func (s *State) reserve(r *request, n int) int {
	for ; n > 0; n /= 2 {
		bytes := s.ledger.growth(r, 1+n)
		if bytes <= s.ledger.sockets[r.owner].room() && s.makeFree(r.owner, bytes) &&
			(r.resides.replica == none || bytes <= s.ledger.sockets[r.resides.replica].room() && s.makeFree(r.resides.replica, bytes)) {
			s.ledger.grow(r, bytes)
			return n
		}
	}
	return 0
}

// victim returns the last request in order that has bytes on a socket.
func (s *State) victim(rank int) *request {
	for i := len(s.running) - 1; i >= 0; i-- {
		if r := s.running[i]; r.booked[rank] > 0 || r.blocksOn(rank) > 0 {
			return r
		}
	}
	panic("batcher: a socket is full and nobody holds bytes on it")
}

func (s *State) preempt(r *request) {
	if !r.idle {
		r.preempted++
		s.totals.Preempted++
	}
	s.remote.requeue(r)
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

// opens returns the Open of a request that is being admitted.
func (r *request) opens() plan.Open {
	return plan.Open{
		Seq: r.seq, ID: r.ID, Owner: r.owner, Replica: none,
		Policy: r.Policy, Sampling: r.Sampling, Pool: r.Pool, Adapter: r.Adapter.ID,
		Read: r.read, Sampled: max(0, r.read-len(r.Prompt)), Tail: max(0, len(r.Prompt)-r.read), Reserve: r.read + 1,
		PassRows: r.sweeping.shape.Pass, InFile: r.sweeping.shape.InFile,
	}
}

// begun counts a first admission, with the tokens of the prompt that a cache had.
func (s *State) begun(r *request, found int) {
	if r.started >= 0 {
		return
	}
	r.started, r.warm = s.now, min(found, len(r.Prompt))
	s.prefix.begun(r)
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

// makeFree evicts blocks of the prefix cache, and drops copies of states, until this number of bytes is
// free on a socket.
func (s *State) makeFree(rank int, bytes int64) bool {
	for !s.prefix.tree.MakeFree(rank, bytes) {
		if !s.prefix.dropCopy(rank) {
			return false
		}
	}
	return true
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

// chunk adds the next tokens of a prompt to the plan and returns their number. It adds none while
// pieces of the prompt's clustering are due.
func (s *State) chunk(p *plan.Plan, r *request, left int) int {
	if r.sweeping.shape.Group > 0 {
		return s.layers.plan(p, r, left)
	}
	if s.clusters.piecesDue(r) {
		return 0
	}
	end := min(r.read, r.cached+min(left, s.cfg.Chunk))
	x := s.clusters.clusteringOf(r)
	if r.cached < x.After {
		end = min(end, x.After)
	}
	end = s.prefix.cut(r, end)
	c := r.run(r.cached, end)
	c.Prefill = true
	c.Last = end == r.read && x.Pieces == 0 && r.Pool == pooling.None
	c.Sample = end == r.read && r.limit > 0 && end >= len(r.Prompt)
	if r.PromptLogprobs >= 0 && min(end, len(r.Prompt)-1) > r.scored {
		c.PromptLogprobs = r.PromptLogprobs
		if end < len(r.Prompt) {
			c.Next = r.Prompt[end]
		}
	}
	s.prefix.save(&c, r)
	p.Chunks = append(p.Chunks, c)
	if r.Pool == pooling.None {
		s.drafts.index(r)
	}
	return len(c.Tokens)
}

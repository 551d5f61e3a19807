package batcher

import (
	"github.com/shoal-llm/shoal/actors/batcher/prefillgroup"
	"github.com/shoal-llm/shoal/actors/batcher/saved"
	"github.com/shoal-llm/shoal/internal/engine/plan"
	"github.com/shoal-llm/shoal/internal/engine/pooling"
)

// schedule makes the next step. It reserves memory for the decode rows first. Then it adds the
// decode rows, chunks of prompts and inputs, and new admissions to the plan, until the token budget
// is used up. Finally the modules add their parts.
func (s *State) schedule() {
	s.growAll()
	s.ledger.prefill.NoFiles = s.now < s.layers.filesAfter
	s.makeRoom()
	p := &plan.Plan{Epoch: s.epoch, Step: s.steps + 1, Decode: make([]plan.Run, 0, len(s.running))}
	rows := map[uint64]*request{}
	for _, r := range s.running {
		if r.phase == decoding && !r.rowless() {
			p.Decode = append(p.Decode, r.row())
			rows[r.seq] = r
		}
	}
	left, next := s.cfg.TokenBudget-len(p.Decode)-s.cuts.plan(p, rows), 0
	for _, r := range s.running {
		switch {
		case r.phase == prefill && left > 0 && !r.decodesCut() && !r.holdsContext() && r.remote.Phase != prefillgroup.Receiving &&
			r.saved.Phase != saved.Loading:
			left -= s.chunk(p, r, left)
			rows[r.seq] = r
		case next < len(p.Decode) && p.Decode[next].Seq == r.seq:
			left -= s.inputs.plan(&p.Decode[next], r, left)
			next++
		}
	}
	for left > 0 {
		r := s.admit(p, left)
		if r == nil {
			break
		}
		rows[r.seq] = r
		if r.phase == decoding {
			p.Decode = append(p.Decode, r.row())
			left -= 1 + s.inputs.plan(&p.Decode[len(p.Decode)-1], r, left-1)
			continue
		}
		left -= s.chunk(p, r, left)
	}
	s.adapted.reopen(p) // those that the admissions have not preempted
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
// which can be the same one. If that sequence is an idle cache which is being written to a file, the
// request has no row in this step.
func (s *State) growAll() {
	for _, r := range append(queue(nil), s.running...) {
		r.stalled = false
		if r.open.moves {
			s.preempt(r)
			continue
		}
		if r.decodesCut() {
			s.cuts.grow(r)
			continue
		}
		if r.phase != decoding || r.rowless() {
			continue // in prefill, or preempted by this loop
		}
		bytes := s.ledger.growth(r, 1)
		if !s.residency.vacate(r, r.owner, bytes) {
			continue
		}
		r.waits = 0
		if r.resides.replica != none && !s.makeFree(r.resides.replica, bytes) {
			s.residency.drop(r)
		}
		s.ledger.grow(r, bytes)
	}
}

// vacate frees memory on a socket for the next row of a request. It returns false if the request gets no row
// in this step, because it was preempted or waits for a cache to be saved.
func (v *residency) vacate(r *request, rank int, bytes int64) bool {
	s := v.s
	for !s.makeFree(rank, bytes) {
		if s.prefix.fetches.CancelAny() || v.evict(rank) {
			continue
		}
		last := s.victim(rank)
		if r.stalled = s.saves.awaits(last, r); r.stalled {
			return false
		}
		if s.preempt(last); last == r {
			return false
		}
	}
	return true
}

// reserve books memory for n more tokens in the next row of a request. If memory is short, it tries
// n/2, n/4 and so on. It returns the number of tokens.
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
	panic("batcher: a socket is full, but no request holds bytes on it")
}

func (s *State) preempt(r *request) {
	if !r.idle {
		r.preempted++
		s.totals.Preempted++
	}
	s.remote.requeue(r)
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
	c.Last = end == r.read && x.Pieces == 0 && r.Pool == pooling.None && !r.cut.now
	c.Sample = end == r.read && r.limit > 0 && end >= len(r.Prompt)
	if r.PromptLogprobs >= 0 && min(end, len(r.Prompt)-1) > r.scored {
		c.PromptLogprobs = r.PromptLogprobs
		if end < len(r.Prompt) {
			c.Next = r.Prompt[end]
		}
	}
	s.prefix.save(&c, r)
	p.Chunks = append(p.Chunks, c)
	if r.Pool == pooling.None && !r.cut.now {
		s.drafts.index(r)
	}
	return len(c.Tokens)
}

package sim

import (
	"encoding/binary"
	"fmt"
	"time"

	"shoal/actors/batcher"
	"shoal/collective"
	"shoal/sampler"
)

// step is one plan on one socket: legs between synchronisations.
type step struct {
	plan  *batcher.Plan
	reply func(any, error)
	legs  []func(s *step, done func(error))
	at    int

	epoch    *epoch
	rows     []row
	wanted   []wanted
	handover []*sequence
	results  []batcher.Result
	recv     [][]byte        // of the exchange in hand
	late     []time.Duration // what this rank had waited for each other when the step began
}

type row struct {
	seq     *sequence
	token   int32
	pos     int
	prefill bool
	x       uint64
}

// wanted is a row of which somebody wants a token or a score.
type wanted struct {
	row    int
	sample bool
	score  int32
	out    [heads]uint64
}

// stepReply is what a socket answers.
type stepReply struct {
	epoch   uint32
	step    uint64
	results []batcher.Result
	used    int64
	late    []time.Duration // what this rank waited for each other alone
}

func (n *node) newStep(p *batcher.Plan, reply func(any, error)) *step {
	s := &step{plan: p, reply: reply, epoch: n.epoch, late: n.epoch.group.lateness()}
	n.jobs.before = n.jobs.ended
	s.legs = []func(*step, func(error)){chain(n.prepare, n.exchangeRows), chain(n.attend, n.exchangeHeads), chain(n.sample, n.commit, n.handOver), n.seal}
	return s
}

// chain makes one leg of several.
func chain(parts ...func(*step, func(error))) func(*step, func(error)) {
	if len(parts) == 1 {
		return parts[0]
	}
	rest := chain(parts[1:]...)
	return func(s *step, done func(error)) {
		parts[0](s, func(err error) {
			if err != nil {
				done(err)
				return
			}
			rest(s, done)
		})
	}
}

// run starts the leg that the step stands at.
func (n *node) run(s *step) {
	leg := s.legs[s.at]
	cost := n.w.between(30*time.Microsecond, 300*time.Microsecond)
	if s.at > 0 {
		cost /= 32 // the work comes before the exchange to which every rank has something to give
	}
	n.exec(cost, func() {
		leg(s, func(err error) { n.take(func() { n.advance(s, err) }) })
	})
}

// advance moves a step to its next leg, or ends it.
func (n *node) advance(s *step, err error) {
	if n.step != s {
		return // of an epoch that is gone
	}
	if err == nil {
		if s.at++; s.at < len(s.legs) {
			n.run(s)
			return
		}
	}
	n.step = nil
	if stale := n.state.End(s.plan.Epoch, err == nil); stale != nil || err != nil {
		if err == nil {
			err = stale
		}
		n.w.logf("%s: step %d.%d failed: %v", n.name, s.plan.Epoch, s.plan.Step, err)
		s.reply(nil, err)
		return
	}
	n.w.hook(OnReply, n)
	late := s.epoch.group.lateness()
	for rank := range late {
		late[rank] -= s.late[rank]
	}
	s.reply(&stepReply{s.plan.Epoch, s.plan.Step, s.results, n.memory.used, late}, nil)
}

// prepare releases, opens and reserves: after it nothing can fail for lack of memory.
func (n *node) prepare(s *step, done func(error)) {
	e, p := s.epoch, s.plan
	if e.closed {
		done(errRetired)
		return
	}
	for _, q := range e.seqs {
		q.settle()
	}
	e.release(&n.memory, p.Release)
	n.carry.release(&n.memory, p.Release)
	for _, o := range p.Open {
		if e.seqs[o.Seq] != nil {
			done(fmt.Errorf("socket: sequence %d is open already", o.Seq))
			return
		}
		q := &sequence{open: o, fresh: o.Read - o.Sampled}
		if o.Resume != nil {
			if err := n.resume(e, q); err != nil {
				done(err)
				return
			}
		}
		e.seqs[o.Seq] = q
	}
	for _, d := range p.Decode {
		if err := n.prepareChunk(s, batcher.Chunk{Seq: d.Seq, Start: d.Position, Tokens: []int32{d.Token}, Sample: true, PromptLogprobs: -1}, false); err != nil {
			done(err)
			return
		}
	}
	for _, c := range p.Chunks {
		if err := n.prepareChunk(s, c, true); err != nil {
			done(err)
			return
		}
	}
	n.w.hook(phaseOf(p), n)
	done(nil)
}

func phaseOf(p *batcher.Plan) Hook {
	if len(p.Chunks) > 0 {
		return OnPrefill
	}
	return OnDecode
}

func (n *node) prepareChunk(s *step, c batcher.Chunk, prefill bool) error {
	e := s.epoch
	q, count := e.seqs[c.Seq], len(c.Tokens)
	switch {
	case q == nil:
		return fmt.Errorf("socket: step %d names sequence %d, which is not open", s.plan.Step, c.Seq)
	case prefill && (c.Start != q.read || c.Start+count > q.open.Read || c.Last != (c.Start+count == q.open.Read)):
		return fmt.Errorf("socket: sequence %d: prompt chunk [%d,%d) last=%v, but %d of %d are read", c.Seq, c.Start, c.Start+count, c.Last, q.read, q.open.Read)
	case !prefill && (c.Start != q.read || c.Start < q.open.Read || count != 1):
		return fmt.Errorf("socket: sequence %d: decode at position %d, but %d are read and the prompt has %d", c.Seq, c.Start, q.read, q.open.Read)
	}
	owner := q.open.Owner == e.rank
	var err error
	switch {
	case prefill:
		err = q.reservePart(&n.memory, e.heads(), c.Start+count)
		if err == nil && c.Last {
			if owner {
				err = q.openOwn(&n.memory, e.heads())
			}
			s.handover = append(s.handover, q)
		}
	case owner:
		q.stage()
		err = q.reserveOwn(&n.memory, c.Start+1)
	}
	if err != nil {
		return fmt.Errorf("socket: sequence %d: %w", c.Seq, err)
	}
	for i, token := range c.Tokens {
		pos := c.Start + i
		if owner {
			q.seen.add(token, pos >= q.fresh)
		}
		if c.PromptLogprobs >= 0 && (i < count-1 || c.Next >= 0) {
			target := c.Next
			if i < count-1 {
				target = c.Tokens[i+1]
			}
			s.wanted = append(s.wanted, wanted{row: len(s.rows), score: target})
		}
		if c.Sample && i == count-1 {
			s.wanted = append(s.wanted, wanted{row: len(s.rows), sample: true})
		}
		s.rows = append(s.rows, row{seq: q, token: token, pos: pos, prefill: prefill})
	}
	return nil
}

// exchangeRows computes this rank's part of every row and gathers all parts.
func (n *node) exchangeRows(s *step, done func(error)) {
	e := s.epoch
	mine := e.place.Slices[e.rank].FFNUnits
	out := make([]byte, 0, 8*len(s.rows))
	for i := range s.rows {
		r := &s.rows[i]
		r.x = part(r.token, r.pos, mine.Lo, mine.Hi)
		out = binary.LittleEndian.AppendUint64(out, r.x)
	}
	n.gather(s, out, func(int) int { return len(out) }, done)
}

// attend sums the rows, writes the cache and reads it.
func (n *node) attend(s *step, done func(error)) {
	e := s.epoch
	if e.closed {
		done(errRetired)
		return
	}
	for i := range s.rows {
		r := &s.rows[i]
		for rank, b := range s.recv {
			if rank != e.rank {
				r.x += sumAt(b, i)
			}
		}
	}
	w := 0
	own := e.heads()
	for i := range s.rows {
		r := &s.rows[i]
		q := r.seq
		switch {
		case r.prefill:
			for h := own.Lo; h < own.Hi; h++ {
				q.part[h] = append(q.part[h], cell{int32(r.pos), key(r.x, h)})
			}
		case q.open.Owner == e.rank:
			for h := range heads {
				q.own[h] = put(q.policy(), q.own[h], q.open.Read, cell{int32(r.pos), key(r.x, h)})
			}
		}
		for ; w < len(s.wanted) && s.wanted[w].row == i; w++ {
			for h := range heads {
				switch {
				case r.prefill && h >= own.Lo && h < own.Hi:
					s.wanted[w].out[h] = attend(q.part[h])
				case !r.prefill && q.open.Owner == e.rank:
					s.wanted[w].out[h] = attend(q.own[h])
				}
			}
		}
	}
	done(nil)
}

// from says which rank computes the attention of a head for a wanted row.
func (s *step) from(w *wanted, head int) int {
	r := &s.rows[w.row]
	if !r.prefill {
		return r.seq.open.Owner
	}
	for rank, slice := range s.epoch.place.Slices {
		if head >= slice.KVHeads.Lo && head < slice.KVHeads.Hi {
			return rank
		}
	}
	return -1
}

// exchangeHeads gathers the attention of every head of the wanted rows.
func (n *node) exchangeHeads(s *step, done func(error)) {
	e := s.epoch
	sizes := make([]int, len(e.peers))
	var out []byte
	for i := range s.wanted {
		for h := range heads {
			rank := s.from(&s.wanted[i], h)
			sizes[rank] += 8
			if rank == e.rank {
				out = binary.LittleEndian.AppendUint64(out, s.wanted[i].out[h])
			}
		}
	}
	n.gather(s, out, func(rank int) int { return sizes[rank] }, done)
}

// sample turns the wanted rows of own sequences into tokens and scores.
func (n *node) sample(s *step, done func(error)) {
	e := s.epoch
	at := make([]int, len(e.peers))
	for i := range s.wanted {
		w := &s.wanted[i]
		for h := range heads {
			if rank := s.from(w, h); rank != e.rank {
				w.out[h] = sumAt(s.recv[rank], at[rank])
				at[rank]++
			}
		}
		r := &s.rows[w.row]
		if r.seq.open.Owner != e.rank {
			continue
		}
		result := s.result(r.seq.open.Seq)
		if w.sample {
			result.Sample = sampler.Result{Token: draw(w.out[:], r.seq.open.Sampling.Seed, r.pos+1, r.seq.seen)}
		} else {
			result.Prompt = append(result.Prompt, batcher.PromptLogprob{Position: r.pos + 1, Logprob: score(w.out[:], w.score)})
		}
	}
	done(nil)
}

func (s *step) result(seq uint64) *batcher.Result {
	for i := range s.results {
		if s.results[i].Seq == seq {
			return &s.results[i]
		}
	}
	s.results = append(s.results, batcher.Result{Seq: seq})
	return &s.results[len(s.results)-1]
}

func (n *node) commit(s *step, done func(error)) {
	for i := range s.rows {
		s.rows[i].seq.read++
	}
	done(nil)
}

// gather is an all-gather of bytes; alone, there is nothing to gather.
func (n *node) gather(s *step, mine []byte, size func(rank int) int, done func(error)) {
	e := s.epoch
	s.recv = make([][]byte, len(e.peers))
	if len(e.peers) == 1 {
		done(nil)
		return
	}
	for rank := range s.recv {
		if rank != e.rank {
			s.recv[rank] = make([]byte, size(rank))
		}
	}
	n.w.hook(OnCollective, n)
	e.group.start(func(op collective.OpID) { e.group.AllGatherBytes(op, mine, s.recv, done) })
}

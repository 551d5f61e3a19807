package sim

import (
	"encoding/binary"
	"math"
	"time"

	"github.com/shoal-llm/shoal/actors/socket/machine"
	"github.com/shoal-llm/shoal/collective"
	"github.com/shoal-llm/shoal/internal/engine/plan"
	"github.com/shoal-llm/shoal/internal/proto"
)

// step is one plan on one socket: stages between synchronisations.
type step struct {
	*machine.Work
	reply  func(any, error)
	stages []func(s *step, done func(error))
	at     int
	pass   int

	epoch  *epoch
	rows   []row
	wanted []wanted
	out    map[uint64]*proto.Sampled
	order  []*proto.Sampled
	recv   [][]byte        // of the current exchange
	own    []byte          // of it, from this rank to itself
	late   []time.Duration // how long this rank had waited for each other rank when the step started
}

type row struct {
	run   *plan.Run
	seq   *sequence
	token int32
	pos   int
	x     uint64
}

// wanted is a row of which a token or a score is requested.
type wanted struct {
	machine.Wanted
	row int
	out [heads]uint64
}

func (n *node) newStep(w *machine.Work, reply func(any, error)) *step {
	s := &step{Work: w, reply: reply, epoch: n.epoch, late: n.epoch.group.lateness(), out: map[uint64]*proto.Sampled{}}
	n.jobs.before = n.jobs.ended
	s.stages = []func(*step, func(error)){chain(n.prepare, n.copyCaches), chain(n.copied, n.exchangeRows),
		chain(n.attend, n.exchangeHeads), chain(n.sample, n.replicate), chain(n.replicated, n.handOver), n.seal}
	return s
}

// stages is the number of stages of a pass.
const stages = 6

// rowsStage ends with the exchange in which every rank sends something.
const rowsStage = 1

// chain combines several functions into one stage.
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

// run starts the step's current stage.
func (n *node) run(s *step) {
	stage := s.stages[s.at]
	cost := n.w.between(30*time.Microsecond, 300*time.Microsecond)
	if s.at != rowsStage+len(s.stages)-stages {
		cost /= 32 // the work precedes that exchange
	}
	n.exec(cost, func() {
		if s.epoch.closed {
			return
		}
		stage(s, func(err error) { n.take(func() { n.advance(s, err) }) })
	})
}

// advance moves a step to its next stage, or ends it.
func (n *node) advance(s *step, err error) {
	if n.step != s {
		return // of an epoch that has ended
	}
	if err == nil {
		if s.at++; s.at < len(s.stages) {
			n.run(s)
			return
		}
		if s.pass+1 < s.Passes {
			n.w.cover[MorePasses]++
			s.pass++
			s.at, s.stages = 0, append([]func(*step, func(error)){chain(n.gatherTokens, n.nextPass)}, s.stages[len(s.stages)-stages:]...)
			n.run(s)
			return
		}
	}
	n.step = nil
	if n.unfenced() {
		s.Epoch = n.machine.Epoch
	}
	if stale := n.machine.End(s.Work, err == nil); stale != nil || err != nil {
		if err == nil {
			err = stale
		}
		n.w.logf("%s: step %d.%d failed: %v", n.name, s.Epoch, s.Step, err)
		s.reply(nil, err)
		return
	}
	n.w.hook(OnReply, n)
	r := &proto.StepReply{Epoch: s.Epoch, Step: s.Step, Sampled: s.order, KvUsedBytes: n.memory.used}
	for rank, d := range s.epoch.group.lateness() {
		r.LateMicros = append(r.LateMicros, uint32((d - s.late[rank]).Microseconds()))
	}
	s.reply(r, nil)
}

// prepare applies the plan's changes of caches and reserves memory. After it a step cannot fail for
// lack of memory.
func (n *node) prepare(s *step, done func(error)) {
	if s.pass == 0 {
		if err := n.do(s.epoch, s.First); err != nil {
			done(err)
			return
		}
	}
	first := make([]int, len(s.Runs))
	hook := OnDecode
	for i := range s.Runs {
		c := &s.Runs[i]
		q := n.seqs[c.Seq]
		first[i] = len(s.rows)
		for j, t := range c.Tokens {
			s.rows = append(s.rows, row{run: c, seq: q, token: t, pos: c.Start + j})
		}
		if c.Prefill {
			hook = OnPrefill
			if c.Owner == s.epoch.rank {
				q.record(c.Tokens, c.Start)
			}
		}
	}
	for w := range s.Work.Wanted() {
		s.wanted = append(s.wanted, wanted{Wanted: w, row: first[w.Run] + w.Row})
	}
	n.w.hook(hook, n)
	done(nil)
}

// gatherTokens gathers the tokens that the rows of a pass have drawn.
func (n *node) gatherTokens(s *step, done func(error)) {
	sizes, mine := make([]int, len(s.epoch.peers)), []byte(nil)
	for i := range s.Runs {
		c := &s.Runs[i]
		if sizes[c.Owner] += 8; c.Owner == s.epoch.rank {
			drawn := s.out[c.Seq].Drawn
			mine = binary.LittleEndian.AppendUint64(mine, uint64(drawn[len(drawn)-1].Token))
		}
	}
	n.gather(s, mine, func(rank int) int { return sizes[rank] }, done)
}

// nextPass starts the next pass with these tokens.
func (n *node) nextPass(s *step, done func(error)) {
	at := make([]int, len(s.epoch.peers))
	s.NextPass(func(c *plan.Run) int32 {
		if c.Owner == s.epoch.rank {
			drawn := s.out[c.Seq].Drawn
			return int32(drawn[len(drawn)-1].Token)
		}
		at[c.Owner]++
		return int32(sumAt(s.recv[c.Owner], at[c.Owner]-1))
	})
	s.rows, s.wanted = nil, nil
	done(nil)
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
	for i := range s.rows {
		for rank, b := range s.recv {
			if rank != e.rank {
				s.rows[i].x += sumAt(b, i)
			}
		}
	}
	own := e.heads()
	for i := range s.rows {
		r := &s.rows[i]
		q := r.seq
		switch {
		case r.run.Prefill:
			for h := own.Lo; h < own.Hi; h++ {
				q.part[h] = append(q.part[h], cell{int32(r.pos), key(r.x, h)})
			}
		case r.run.Owner == e.rank:
			var cells [heads]cell
			for h := range heads {
				cells[h] = cell{int32(r.pos), key(r.x, h)}
			}
			q.own.write(q, cells)
		}
		for j := range s.wanted {
			w := &s.wanted[j]
			if w.row != i {
				continue
			}
			for h := range heads {
				switch {
				case r.run.Prefill && h >= own.Lo && h < own.Hi:
					w.out[h] = attend(q.part[h])
				case !r.run.Prefill && r.run.Owner == e.rank:
					w.out[h] = attend(q.own.slots[h])
				}
			}
		}
	}
	done(nil)
}

// from is the rank that computes the attention of a head for a wanted row.
func (s *step) from(w *wanted, head int) int {
	r := &s.rows[w.row]
	if !r.run.Prefill {
		return r.run.Owner
	}
	for rank, slice := range s.epoch.place.Slices {
		if head >= slice.KVHeads.Lo && head < slice.KVHeads.Hi {
			return rank
		}
	}
	return -1
}

// exchangeHeads gathers the attention of every head for the wanted rows.
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
		if r.run.Owner != e.rank {
			continue
		}
		result := s.out[r.run.Seq]
		if result == nil {
			result = &proto.Sampled{Seq: r.run.Seq}
			s.out[r.run.Seq], s.order = result, append(s.order, result)
		}
		if !w.Sample {
			result.Prompt = append(result.Prompt, &proto.PromptLogprob{Position: uint32(w.Position), Logprob: score(w.out[:], w.Score)})
			continue
		}
		if !r.run.Prefill {
			r.seq.feed(r.token)
		}
		result.Drawn = append(result.Drawn,
			&proto.Drawn{HasToken: true, Token: uint32(draw(w.out[:], r.seq.open.Sampling.Seed, w.Position, r.seq.seen))})
	}
	done(nil)
}

// gather is an all-gather of 64-bit sums, as pairs of float32 with their bits; with one rank there is
// nothing to gather. size is in bytes.
func (n *node) gather(s *step, mine []byte, size func(rank int) int, done func(error)) {
	e := s.epoch
	s.recv = make([][]byte, len(e.peers))
	if len(e.peers) == 1 {
		done(nil)
		return
	}
	recv := make([][]float32, len(e.peers))
	for rank := range recv {
		if rank != e.rank {
			recv[rank] = make([]float32, size(rank)/4)
		}
	}
	send := make([]float32, len(mine)/4)
	for i := range send {
		send[i] = math.Float32frombits(binary.LittleEndian.Uint32(mine[4*i:]))
	}
	n.w.hook(OnCollective, n)
	e.group.start(func(op collective.OpID) {
		e.group.AllGather(op, send, recv, func(err error) {
			for rank, values := range recv {
				for _, v := range values {
					s.recv[rank] = binary.LittleEndian.AppendUint32(s.recv[rank], math.Float32bits(v))
				}
			}
			done(err)
		})
	})
}

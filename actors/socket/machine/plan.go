package machine

import (
	"fmt"

	"github.com/shoal-llm/shoal/internal/engine/plan"
	"github.com/shoal-llm/shoal/internal/proto"
)

// Plan begins a step and returns its work for this socket. The whole plan is checked before any part
// of it takes effect. After that, the only possible error is missing memory. Every error except
// ErrStaleEpoch and ErrWrongPhase fails the epoch.
func (m *Machine) Plan(r *proto.StepRequest) (*Work, error) {
	if m.busy {
		return nil, fmt.Errorf("%w: a job between steps is in hand", ErrWrongPhase)
	}
	if err := m.Begin(r.Epoch, r.Step); err != nil {
		return nil, err
	}
	w := new(Work)
	p := &w.Plan
	var err error
	var opened map[uint64]*Sequence
	if w.Plan, w.Runs, err = plan.Decode(r, m.limits.Parse); err == nil {
		opened, err = m.check(p)
	}
	if err != nil {
		m.Phase = Failed
		return nil, err
	}
	w.First = make([]Effect, 0, 2*len(w.Runs))
	m.commit(w)
	w.First = m.release(m.keep(w.First, p.Keep), p.Release)
	for _, id := range p.DropReplica {
		if q := m.seqs[id]; q != nil && q.Replica != plan.None {
			q.Replica, q.Replicated = plan.None, false
			w.First = append(w.First, Effect{Do: DoDropReplica, Seq: id})
		}
	}
	for _, id := range p.DropStates {
		if q := m.seqs[id]; q != nil && q.copies {
			q.copies, q.copied = false, 0
			w.First = append(w.First, Effect{Do: DoDropStates, Seq: id})
		}
	}
	w.First = m.dropExtras(m.evict(w.First, p.Evict), p.DropExtras)
	m.open(w, opened)
	for _, c := range p.Copy {
		q := m.seqs[c.Seq]
		q.Replica = c.Replica
		w.First = append(w.First, Effect{Do: DoReplicate, Seq: c.Seq, Rank: q.Replica, Tokens: q.Read})
		w.Copies = append(w.Copies, Copy{Seq: c.Seq, Tokens: q.Read})
	}
	for i := range w.Runs {
		m.run(w, &w.Runs[i])
	}
	for i := range p.Sweeps {
		m.sweep(w, &p.Sweeps[i])
	}
	for _, x := range p.Index {
		q := m.seqs[x.Seq]
		m.fly(q, x.Seq)
		if x.From == q.piecesBefore && q.Owner == m.limits.Rank {
			w.First = append(w.First, Effect{Do: DoOpenCache, Seq: x.Seq, Tokens: q.Prompt})
		}
	}
	for _, f := range p.Spill {
		if m.seqs[f.Seq].Owner == m.limits.Rank {
			w.First = append(w.First, Effect{Do: DoSpill, Seq: f.Seq, Tokens: f.Blocks})
		}
	}
	return w, nil
}

// commit counts the tokens of each sequence's last rows that the plan accepts.
func (m *Machine) commit(w *Work) {
	for i := range w.Decode {
		c := &w.Decode[i]
		if q := m.seqs[c.Seq]; q != nil && q.Staged > 0 {
			w.First = m.count(w.First, c.Seq, q, c.Accepted)
		}
	}
}

// open begins the sequences of a plan: first those that resume, which needs no memory.
func (m *Machine) open(w *Work, opened map[uint64]*Sequence) {
	for _, resume := range [...]bool{true, false} {
		for i := range w.Open {
			o := &w.Open[i]
			q := opened[o.Seq]
			if resume != (q.HandedOver && o.Fork == 0) {
				continue
			}
			do := Effect{Do: DoOpen, Seq: o.Seq, Open: o}
			if o.Fork != 0 {
				do.Do = DoFork
			}
			if o.Take {
				do.Do, do.Tokens = DoTake, q.Read
				delete(m.seqs, o.Fork)
			}
			if holds := resume && (q.Owner == m.limits.Rank || q.Replica == m.limits.Rank); holds {
				do = Effect{Do: DoResume, Seq: o.Seq, Open: o, Tokens: q.Read}
			} else if m.kept[o.Seq] != nil {
				w.First = append(w.First, Effect{Do: DoRelease, Seq: o.Seq})
			}
			delete(m.kept, o.Seq)
			m.seqs[o.Seq] = q
			w.First = append(w.First, do)
		}
	}
}

// run completes one run of tokens, and adds the memory that it needs to the work.
func (m *Machine) run(w *Work, c *plan.Run) {
	q, n, start := m.seqs[c.Seq], len(c.Tokens), c.Start
	m.fly(q, c.Seq)
	c.Owner = q.Owner
	for i, id := range c.Save {
		m.blocks[id] = c.SaveFrom + i
		last := i == len(c.Save)-1
		m.sums[id] = m.sums[id] || c.Sums && last
		m.snapshots[id] = m.snapshots[id] || c.Snapshot && last
	}
	if c.Prefill {
		w.First = append(w.First, Effect{Do: DoReservePrompt, Seq: c.Seq, Tokens: start + n})
		if c.Last && q.Owner == m.limits.Rank {
			w.First = append(w.First, Effect{Do: DoOpenCache, Seq: c.Seq, Tokens: q.Prompt})
		}
		return
	}
	q.Staged = n + w.PassCount() - 1
	if q.Owner == m.limits.Rank || q.Replica == m.limits.Rank {
		w.First = append(w.First, Effect{Do: DoReserveCache, Seq: c.Seq, Tokens: start + q.Staged})
	}
	if c.Snapshot && !q.copies {
		q.copies = true
		w.First = append(w.First, Effect{Do: DoReserveStates, Seq: c.Seq})
	}
	for i := range w.Copies {
		if k := &w.Copies[i]; k.Seq == c.Seq {
			k.Rows = n
		}
	}
}

// fly adds a sequence to the step in flight.
func (m *Machine) fly(q *Sequence, id uint64) {
	q.inFlight = true
	m.flight = append(m.flight, id)
}

// End closes a step: the chunks of its prompts are read, and its hand-overs and replicas are
// complete. After a step that failed the epoch is over for this socket.
func (m *Machine) End(w *Work, ok bool) error {
	if err := m.State.End(w.Epoch, ok); err != nil || !ok {
		return err
	}
	for _, id := range m.flight {
		m.seqs[id].inFlight = false
	}
	m.flight = m.flight[:0]
	for _, r := range w.Runs {
		if q := m.seqs[r.Seq]; r.Prefill {
			q.Read, q.HandedOver = q.Read+len(r.Tokens), r.Last
		}
	}
	for i := range w.Sweeps {
		m.endSweep(&w.Sweeps[i])
	}
	for _, x := range w.Index {
		q := m.seqs[x.Seq]
		q.Indexed += x.Pieces
		q.HandedOver = q.Indexed == q.pieces
	}
	for _, k := range w.Copies {
		m.seqs[k.Seq].Replicated = true
	}
	return nil
}

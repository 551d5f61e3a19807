package socket

import (
	"fmt"

	"shoal/collective"
	"shoal/kvcache"
	"shoal/proto"
	"shoal/tensor"
)

// settle commits what the step before wrote. That a next step has come says that
// no socket failed in it; until then it can be undone, and so a cache fits what
// the coordinator knows whichever way the step ended.
func (e *epoch) settle() {
	for _, q := range e.seqs {
		for _, s := range [...]*kvcache.Store{q.own, q.copy} {
			if s != nil && s.Staged() > 0 {
				s.Commit(s.Staged())
			}
		}
	}
}

// uncopy drops replicas.
func (e *epoch) uncopy(ids []uint64) {
	for _, id := range ids {
		if q := e.seqs[id]; q != nil {
			if q.copy != nil {
				q.copy.Release()
				q.copy = nil
			}
			q.buddy = -1
		}
	}
}

// replicas moves rows from owners to buddies: whole caches before a step, a layer
// an exchange; the rows of one token after it, in one exchange.
type replicas struct {
	epoch      *epoch
	seqs       []*sequence
	send, recv [][]byte
	size       func(*sequence) int // of the exchange in hand
}

// openCopies notes the buddies of a step, and takes the memory of own replicas.
func (e *epoch) openCopies(s *proto.StepRequest) (*replicas, error) {
	r := &replicas{epoch: e}
	for _, c := range s.Copy {
		if err := e.checkCopy(s, c); err != nil {
			return nil, err
		}
		q := e.seqs[c.Seq]
		q.buddy = int(c.Buddy)
		if q.buddy == e.rank {
			q.copy = kvcache.NewStore(e.arena, e.geometry, q.policy)
			if err := q.copy.Open(q.prompt, q.read, tensor.Span{}); err != nil {
				return nil, fmt.Errorf("socket: replica of sequence %d: %w", c.Seq, err)
			}
		}
		r.seqs = append(r.seqs, q)
	}
	return r, nil
}

// legs copies whole caches.
func (r *replicas) legs() []leg {
	var legs []leg
	if len(r.seqs) == 0 {
		return nil
	}
	for l := range r.epoch.geometry.Layers {
		legs = append(legs, leg{job: func(done func(error)) {
			r.exchange(func(q *sequence) int {
				rule := r.epoch.geometry.Rule(l, q.policy)
				return r.epoch.geometry.KVHeads * rule.Slots(q.prompt, q.read) * kvcache.RowBytes(r.epoch.geometry, rule)
			}, func(dst []byte, q *sequence) []byte {
				for head := range r.epoch.geometry.KVHeads {
					dst = q.own.ExportSlots(dst, l, head, 0, r.epoch.geometry.Rule(l, q.policy).Slots(q.prompt, q.read))
				}
				return dst
			}, done)
		}}, leg{job: func(done func(error)) {
			done(r.each(func(q *sequence, rows []byte) error {
				for head := range r.epoch.geometry.KVHeads {
					size := len(rows) / (r.epoch.geometry.KVHeads - head)
					if err := q.copy.Import(l, head, 0, rows[:size]); err != nil {
						return err
					}
					rows = rows[size:]
				}
				return nil
			}))
		}})
	}
	return append(legs, leg{job: func(done func(error)) {
		done(r.each(func(q *sequence, _ []byte) error {
			if err := q.copy.Seal(); err != nil {
				return err
			}
			return q.copy.Reserve(q.read + 1)
		}))
	}})
}

// tokenLegs sends the rows that a step wrote, for sequences with a buddy.
func (e *epoch) tokenLegs(s *step) []leg {
	r := &e.rows
	r.epoch, r.seqs = e, r.seqs[:0]
	for _, c := range s.request.Chunks {
		if q := e.seqs[c.Seq]; !c.Prefill && q.buddy >= 0 {
			r.seqs = append(r.seqs, q)
		}
	}
	if len(r.seqs) == 0 {
		return nil
	}
	return []leg{{job: func(done func(error)) {
		r.exchange(func(*sequence) int { return kvcache.TokenBytes(e.geometry) },
			func(dst []byte, q *sequence) []byte { return q.own.ExportToken(dst, q.read) }, done)
	}}, {job: func(done func(error)) {
		done(r.each(func(q *sequence, rows []byte) error { return q.copy.ImportToken(q.read, rows) }))
	}}}
}

// exchange sends what pack gives for each of the sequences, size bytes each, from
// owners to buddies.
func (r *replicas) exchange(size func(*sequence) int, pack func([]byte, *sequence) []byte, done func(error)) {
	r.size = size
	e, n := r.epoch, len(r.epoch.place.Slices)
	if r.send == nil {
		r.send, r.recv = make([][]byte, n), make([][]byte, n)
	}
	want := make([]int, n)
	for i := range r.send {
		r.send[i] = r.send[i][:0]
	}
	for _, q := range r.seqs {
		if q.owner == e.rank {
			before := len(r.send[q.buddy])
			r.send[q.buddy] = pack(r.send[q.buddy], q)
			e.copied += uint64(len(r.send[q.buddy]) - before)
		}
		if q.buddy == e.rank {
			want[q.owner] += size(q)
		}
	}
	for i := range r.recv {
		if cap(r.recv[i]) < want[i] {
			r.recv[i] = make([]byte, want[i])
		}
		r.recv[i] = r.recv[i][:want[i]]
	}
	e.group.AllToAll(collective.OpID(e.batch.NextOp()), r.send, r.recv, done)
}

// each hands the rows that came to the replicas on this socket.
func (r *replicas) each(put func(q *sequence, rows []byte) error) error {
	at := make([]int, len(r.recv))
	for _, q := range r.seqs {
		if q.buddy != r.epoch.rank {
			continue
		}
		rows := r.recv[q.owner][at[q.owner]:][:r.size(q)]
		at[q.owner] += len(rows)
		if err := put(q, rows); err != nil {
			return fmt.Errorf("socket: replica of sequence %d: %w", q.id, err)
		}
	}
	return nil
}

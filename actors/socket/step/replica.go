package step

import (
	"fmt"

	"github.com/shoal-llm/shoal/actors/layer"
	"github.com/shoal-llm/shoal/actors/socket/caches"
	"github.com/shoal-llm/shoal/collective"
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/plan"
)

// moved is a sequence whose rows move from its owner to its replica: the first `tokens` tokens of the
// cache before a step, or the step's own rows from position `tokens` on.
type moved struct {
	*caches.Sequence
	tokens, rows int
}

// replicas moves rows from owners to replicas: whole caches before the layers, one layer per exchange;
// the rows of a step after the layers, in one exchange.
type replicas struct {
	epoch *Epoch
	batch *layer.Batch
	seqs  []moved
	rankBuffers
	size func(moved) int // of the current exchange
	sent uint64          // bytes sent in the step
}

// copies returns the stages that copy whole caches.
func (e *Epoch) copies(s *Step) []stage {
	if len(s.Work.Copies) == 0 {
		return nil
	}
	r := &replicas{epoch: e, batch: s.micro.batch}
	for _, k := range s.Work.Copies {
		r.seqs = append(r.seqs, moved{e.Seqs[k.Seq], k.Tokens, k.Rows})
	}
	var stages []stage
	for l := range e.Geometry.Layers {
		stages = append(stages, stage{job: func(done func(error)) {
			r.exchange(func(q moved) int {
				return kvcache.LayerBytes(e.Geometry, l, q.Prompt, q.tokens, q.Policy)
			}, func(dst []byte, q moved) []byte { return q.Cache.ExportLayer(dst, l, q.tokens) }, done)
		}}, stage{job: func(done func(error)) {
			done(r.each(func(q moved, rows []byte) error { return q.ReplicaCache.ImportLayer(l, rows) }))
		}})
	}
	return append(append(stages, r.copyStates()...), stage{job: func(done func(error)) {
		s.copied += r.sent
		done(r.each(func(q moved, _ []byte) error {
			if err := q.ReplicaCache.SealOn(e.pool.Run, nil); err != nil {
				return err
			}
			return q.ReplicaCache.Reserve(q.tokens + q.rows)
		}))
	}})
}

// replication returns the stages that send the step's decoded rows to their replicas.
func (e *Epoch) replication(s *Step) []stage {
	r := &s.micro.rows
	r.epoch, r.batch, r.seqs, r.sent = e, s.micro.batch, r.seqs[:0], 0
	for _, c := range s.Work.Runs {
		if q := e.Seqs[c.Seq]; !c.Prefill && q.Replica != plan.None {
			r.seqs = append(r.seqs, moved{q, c.Start, len(c.Tokens)})
		}
	}
	if len(r.seqs) == 0 {
		return nil
	}
	size := kvcache.TokenBytes(e.Geometry)
	return []stage{{job: func(done func(error)) {
		r.exchange(func(q moved) int { return q.rows * size }, func(dst []byte, q moved) []byte {
			for i := range q.rows {
				dst = q.Cache.ExportToken(dst, q.tokens+i)
			}
			return dst
		}, done)
	}}, {job: func(done func(error)) {
		s.copied += r.sent
		done(r.each(func(q moved, rows []byte) error {
			for i := range q.rows {
				if err := q.ReplicaCache.ImportToken(q.tokens+i, rows[i*size:(i+1)*size]); err != nil {
					return err
				}
			}
			return nil
		}))
	}}}
}

// exchange sends the output of pack for each sequence, of size bytes, from owners to replicas.
func (r *replicas) exchange(size func(moved) int, pack func([]byte, moved) []byte, done func(error)) {
	r.size = size
	e := r.epoch
	r.reset(len(e.Place.Slices), func(rank int) (bytes int) {
		for _, q := range r.seqs {
			if q.Replica == e.Rank && q.Owner == rank {
				bytes += size(q)
			}
		}
		return bytes
	})
	for _, q := range r.seqs {
		if q.Owner == e.Rank {
			before := len(r.send[q.Replica])
			r.send[q.Replica] = pack(r.send[q.Replica], q)
			r.sent += uint64(len(r.send[q.Replica]) - before)
		}
	}
	e.Group.AllToAll(collective.OpID(r.batch.NextOp()), r.send, r.recv, done)
}

// each passes the received rows to the replicas on this socket.
func (r *replicas) each(put func(q moved, rows []byte) error) error {
	at := make([]int, len(r.recv))
	for _, q := range r.seqs {
		if q.Replica != r.epoch.Rank {
			continue
		}
		rows := r.recv[q.Owner][at[q.Owner]:][:r.size(q)]
		at[q.Owner] += len(rows)
		if err := put(q, rows); err != nil {
			return fmt.Errorf("socket: replica of sequence %d: %w", q.ID, err)
		}
	}
	return nil
}

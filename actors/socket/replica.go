package socket

import (
	"fmt"

	"github.com/shoal-llm/shoal/actors/layer"
	"github.com/shoal-llm/shoal/collective"
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/plan"
)

// replicate records the rank of a sequence's replica, and creates the replica on that rank.
func (e *epoch) replicate(q *sequence, rank, tokens int) error {
	q.replica = rank
	if rank != e.rank {
		return nil
	}
	q.replicaCache = kvcache.NewStore(e.arena, e.geometry, q.policy)
	return q.replicaCache.OpenMoved(q.prompt, tokens)
}

// moved is a sequence whose rows move from its owner to its replica: the first `tokens` tokens of the
// cache before a step, or the step's own rows from position `tokens` on.
type moved struct {
	*sequence
	tokens, rows int
}

// replicas moves rows from owners to replicas: whole caches before the layers, one layer per exchange;
// the rows of a step after the layers, in one exchange.
type replicas struct {
	epoch *epoch
	batch *layer.Batch
	seqs  []moved
	rankBuffers
	size func(moved) int // of the current exchange
	sent uint64          // bytes sent in the step
}

// copies returns the stages that copy whole caches.
func (e *epoch) copies(s *step) []stage {
	if len(s.work.Copies) == 0 {
		return nil
	}
	r := &replicas{epoch: e, batch: s.micro.batch}
	for _, k := range s.work.Copies {
		r.seqs = append(r.seqs, moved{e.seqs[k.Seq], k.Tokens, k.Rows})
	}
	var stages []stage
	for l := range e.geometry.Layers {
		stages = append(stages, stage{job: func(done func(error)) {
			r.exchange(func(q moved) int {
				return kvcache.LayerBytes(e.geometry, l, q.prompt, q.tokens, q.policy)
			}, func(dst []byte, q moved) []byte { return q.cache.ExportLayer(dst, l, q.tokens) }, done)
		}}, stage{job: func(done func(error)) {
			done(r.each(func(q moved, rows []byte) error { return q.replicaCache.ImportLayer(l, rows) }))
		}})
	}
	return append(append(stages, r.copyStates()...), stage{job: func(done func(error)) {
		s.copied += r.sent
		done(r.each(func(q moved, _ []byte) error {
			if err := q.replicaCache.SealOn(e.pool.Run, nil); err != nil {
				return err
			}
			return q.replicaCache.Reserve(q.tokens + q.rows)
		}))
	}})
}

// replication returns the stages that send the step's decoded rows to their replicas.
func (e *epoch) replication(s *step) []stage {
	r := &s.micro.rows
	r.epoch, r.batch, r.seqs, r.sent = e, s.micro.batch, r.seqs[:0], 0
	for _, c := range s.work.Runs {
		if q := e.seqs[c.Seq]; !c.Prefill && q.replica != plan.None {
			r.seqs = append(r.seqs, moved{q, c.Start, len(c.Tokens)})
		}
	}
	if len(r.seqs) == 0 {
		return nil
	}
	size := kvcache.TokenBytes(e.geometry)
	return []stage{{job: func(done func(error)) {
		r.exchange(func(q moved) int { return q.rows * size }, func(dst []byte, q moved) []byte {
			for i := range q.rows {
				dst = q.cache.ExportToken(dst, q.tokens+i)
			}
			return dst
		}, done)
	}}, {job: func(done func(error)) {
		s.copied += r.sent
		done(r.each(func(q moved, rows []byte) error {
			for i := range q.rows {
				if err := q.replicaCache.ImportToken(q.tokens+i, rows[i*size:(i+1)*size]); err != nil {
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
	r.reset(len(e.place.Slices), func(rank int) (bytes int) {
		for _, q := range r.seqs {
			if q.replica == e.rank && q.owner == rank {
				bytes += size(q)
			}
		}
		return bytes
	})
	for _, q := range r.seqs {
		if q.owner == e.rank {
			before := len(r.send[q.replica])
			r.send[q.replica] = pack(r.send[q.replica], q)
			r.sent += uint64(len(r.send[q.replica]) - before)
		}
	}
	e.group.AllToAll(collective.OpID(r.batch.NextOp()), r.send, r.recv, done)
}

// each passes the received rows to the replicas on this socket.
func (r *replicas) each(put func(q moved, rows []byte) error) error {
	at := make([]int, len(r.recv))
	for _, q := range r.seqs {
		if q.replica != r.epoch.rank {
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

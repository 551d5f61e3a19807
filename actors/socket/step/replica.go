package step

import (
	"errors"
	"fmt"
	"slices"

	"github.com/shoal-llm/shoal/actors/layer"
	"github.com/shoal-llm/shoal/actors/socket/caches"
	"github.com/shoal-llm/shoal/collective"
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/rowblock"
	"github.com/shoal-llm/shoal/internal/engine/plan"
)

// moved is a sequence whose rows move from its owner to its replica. A copy before a step moves the
// first `tokens` tokens of the cache. After the layers, the step's rows from position `tokens` on move.
type moved struct {
	*caches.Sequence
	tokens, rows int
}

// replicas moves rows from owners to replicas. Whole caches move before the layers; an exchange has one layer, or
// several of short caches. The rows of a step move after the layers, in one exchange.
type replicas struct {
	epoch *Epoch
	batch *layer.Batch
	seqs  []moved
	rankBuffers
	blocks []blockOf // of the current exchange
	sent   uint64    // bytes sent in the step
}

// blockOf names rows of a sequence, with the same values on its owner and its replica.
type blockOf func(moved, *kvcache.Store) rowblock.Block

// copies returns the stages that copy whole caches.
func (e *Epoch) copies(s *Step) []stage {
	if len(s.Work.Copies) == 0 {
		return nil
	}
	r := &replicas{epoch: e, batch: s.buf.batch}
	for _, k := range s.Work.Copies {
		r.seqs = append(r.seqs, moved{e.Seqs[k.Seq], k.Tokens, k.Rows})
	}
	g, tokens := e.Geometry, 0
	for _, q := range r.seqs {
		tokens += q.tokens
	}
	var stages []stage
	each := JoinedLayers(tokens * g.KVHeads * g.Layout.RowBytes())
	for l, end := 0, 0; l < g.Layers+g.Recurrent.Layers; l = end {
		end = l + 1 // states have a size of their own
		if l < g.Layers {
			end = min(l+each, g.Layers)
		}
		var blocks []blockOf
		for at := l; at < end; at++ {
			blocks = append(blocks, func(q moved, own *kvcache.Store) rowblock.Block { return own.LayerBlock(at, q.tokens) })
		}
		stages = append(stages, stage{job: func(done func(error)) { r.exchange(blocks, done) }},
			stage{job: func(done func(error)) { done(r.store()) }})
	}
	return append(stages, stage{job: func(done func(error)) {
		s.copied += r.sent
		for _, q := range r.seqs {
			if q.Replica != e.Rank {
				continue
			}
			if err := errors.Join(q.ReplicaCache.SealOn(e.pool.Run, nil), q.ReplicaCache.Reserve(q.tokens+q.rows)); err != nil {
				done(err)
				return
			}
		}
		done(nil)
	}})
}

// replication returns the stages that send the step's decoded rows to their replicas.
func (e *Epoch) replication(s *Step) []stage {
	r := &s.buf.rows
	r.epoch, r.batch, r.seqs, r.sent = e, s.buf.batch, r.seqs[:0], 0
	for _, c := range s.Work.Runs {
		if q := e.Seqs[c.Seq]; !c.Prefill && q.Replica != plan.None {
			r.seqs = append(r.seqs, moved{q, c.Start, len(c.Tokens)})
		}
	}
	if len(r.seqs) == 0 {
		return nil
	}
	return []stage{{job: func(done func(error)) {
		r.exchange([]blockOf{func(q moved, own *kvcache.Store) rowblock.Block { return own.StepBlock(q.tokens, q.rows) }}, done)
	}}, {job: func(done func(error)) {
		s.copied += r.sent
		done(r.store())
	}}}
}

// exchange sends blocks of each sequence's cache from its owner to its replica.
func (r *replicas) exchange(blocks []blockOf, done func(error)) {
	r.blocks = blocks
	e := r.epoch
	r.reset(len(e.Place.Slices), func(rank int) (bytes int) {
		for _, q := range r.seqs {
			for _, block := range blocks {
				if q.Replica == e.Rank && q.Owner == rank {
					bytes += block(q, q.ReplicaCache).Bytes(q.ReplicaCache)
				}
			}
		}
		return bytes
	})
	for _, q := range r.seqs {
		if q.Owner != e.Rank {
			continue
		}
		before := len(r.send[q.Replica])
		for _, block := range blocks {
			var err error
			if r.send[q.Replica], err = block(q, q.Cache).Append(r.send[q.Replica], q.Cache); err != nil {
				done(err)
				return
			}
		}
		r.sent += uint64(len(r.send[q.Replica]) - before)
	}
	e.Group.AllToAll(collective.OpID(r.batch.NextOp()), r.send, r.recv, done)
}

// store passes the received blocks to the replicas on this socket.
func (r *replicas) store() error {
	rows := slices.Clone(r.recv)
	for _, q := range r.seqs {
		if q.Replica != r.epoch.Rank {
			continue
		}
		for _, block := range r.blocks {
			var err error
			if rows[q.Owner], err = block(q, q.ReplicaCache).Store(rows[q.Owner], q.ReplicaCache); err != nil {
				return fmt.Errorf("socket: replica of sequence %d: %w", q.ID, err)
			}
		}
	}
	return nil
}

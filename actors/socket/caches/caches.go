// Package caches stores a socket's rows of sequences: the prompt during prefill, the cache that decode
// reads, replicas, and blocks of the prefix cache. It performs the effects of package machine. Goroutines
// move rows to files and between sockets while steps run. They submit a job to the executor for every
// access.
package caches

import (
	"github.com/shoal-llm/shoal/actors/layer/executor"
	"github.com/shoal-llm/shoal/actors/socket/constraint"
	"github.com/shoal-llm/shoal/actors/socket/draft"
	"github.com/shoal-llm/shoal/actors/socket/machine"
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/memory"
)

// Caches are the stores of a socket, of its current epoch and of earlier ones. Machine decides about
// their creation, changes and release. Only the executor accesses them.
type Caches struct {
	Arena       *memory.Arena
	exec        *executor.Executor
	Seqs        map[uint64]*Sequence
	blocks      map[uint64]*kvcache.Segment // of the prefix cache; empty on a socket that reads no heads
	files       *files                      // nil: blocks are in memory only
	spiller     *spiller                    // moves caches to files; nil: caches stay in memory
	fetcher     *fetcher                    // fetches blocks from other sockets
	taker       *taker                      // takes caches from sockets of the prefill group, or from files
	saver       *saver                      // writes caches of idle sessions to files; nil: no folder for files
	arrivals    map[uint64]*arrival         // caches that are being taken
	lent        lent                        // long blocks that other sockets have taken a part of
	incoming    map[uint64]*incoming        // blocks that are being read or fetched
	named       map[uint64]offer            // identity of each block in files
	snapshots   map[uint64]offer            // identity of each block's snapshot in files
	Drafter     *draft.Drafter              // loaded once; nil: none
	constraints constraint.Runner           // grammar computations of sequences
}

func inOrder(n int, f func(i int)) {
	for i := range n {
		f(i)
	}
}

// Release performs the effects that free memory, and those that leave blocks of ended sequences to the prefix cache. An
// epoch that is over needs no others.
func (c *Caches) Release(effects []machine.Effect) {
	for _, f := range effects {
		switch q, b := c.Seqs[f.Seq], c.blocks[f.Block]; {
		case f.Do == machine.DoRelease && c.arrivals[f.Seq] != nil:
			c.arrivals[f.Seq].end()
			delete(c.arrivals, f.Seq)
		case f.Do == machine.DoRelease && q != nil:
			q.release()
			delete(c.Seqs, f.Seq)
			c.lent.remove(f.Seq)
		case f.Do == machine.DoCommit && q != nil:
			// If it fails, the blocks after the committed tokens are missing.
			_ = q.commit(f.Tokens, f.Copy, inOrder)
		case f.Do == machine.DoKeep && q != nil:
			// If sharing fails, the block is missing, and the plan that begins with it fails.
			if segment, err := q.Cache.Share(f.Tokens); err == nil {
				c.blocks[f.Block] = segment
				c.files.keep(f.Tokens, []uint64{f.Block}, f.Keys)
			}
		case f.Do == machine.DoKeepStates && q != nil && b != nil:
			b.TakeCopy(q.Cache)
			c.files.keepSnapshot(f.Tokens, f.Block, f.Keys)
		case f.Do == machine.DoDropStates && q != nil && q.Cache != nil:
			q.Cache.States().DropCopy()
		case f.Do == machine.DoEvict:
			if b != nil {
				b.Release()
			}
			delete(c.blocks, f.Block)
			delete(c.incoming, f.Block)
			delete(c.named, f.Block)
			delete(c.snapshots, f.Block)
		case f.Do == machine.DoDropExtras:
			delete(c.incoming, f.Block)
			if b != nil {
				b.DropExtras()
			}
		}
	}
}

// KeepOnly ends the last epoch except for the caches of some sequences, and returns which of them the socket has whole. It frees
// everything else: a step that failed early has not performed all its effects, so the machine's records may differ.
// Only the executor calls it.
func (c *Caches) KeepOnly(seqs map[uint64]bool) (whole map[uint64]bool) {
	whole = map[uint64]bool{}
	var effects []machine.Effect
	for id := range c.Seqs {
		if own := c.idleCache(id); seqs[id] && own != nil && own.Sealed() {
			whole[id] = true
			continue
		}
		effects = append(effects, machine.Effect{Do: machine.DoRelease, Seq: id})
	}
	for id := range c.arrivals {
		effects = append(effects, machine.Effect{Do: machine.DoRelease, Seq: id})
	}
	for id := range c.blocks {
		effects = append(effects, machine.Effect{Do: machine.DoEvict, Block: id})
	}
	c.Release(effects)
	return whole
}

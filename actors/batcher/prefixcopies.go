package batcher

import (
	"github.com/shoal-llm/shoal/actors/batcher/prefix"
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/plan"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// Copies of recurrent states. The next turn of a conversation can start after an answer's blocks only if
// a snapshot follows the last of them. When an answer ends, its states are past that place. So the owner
// copies the states of a decoding sequence after each full block. The copy uses only
// free memory: it is dropped before a sequence is preempted, and before a request waits for memory.

// stateCopy is a request's copy of its recurrent states.
type stateCopy struct {
	booked bool // memory for it is booked on the owner
	after  int  // tokens; 0: nothing is copied yet
}

// planCopies records the states that owners copy when they commit tokens. It books memory for the copies of
// sequences that may fill a block in this step.
func (c *prefixCache) planCopies(p *plan.Plan, rows map[uint64]*request) {
	if !c.tree.Recurrent() {
		return
	}
	for i := range p.Decode {
		d := &p.Decode[i]
		r := rows[d.Seq]
		k := &r.prefix.copy
		k.commit(r)
		last := d.Start + len(d.Tokens) + p.PassCount() - 1
		fills := last >= (r.cached/tensor.BlockSlots+1)*tensor.BlockSlots
		if !k.booked && fills && c.keepsOutput(r) && c.tree.MakeFree(r.owner, c.s.ledger.copyBytes()) {
			k.booked = true
			c.s.ledger.moveCopy(r, 1)
		}
		d.Snapshot = k.booked
	}
}

// commit records where the owner copies the states when it commits the tokens of the last step.
func (k *stateCopy) commit(r *request) {
	if k.booked && r.staged > 0 {
		if at := plan.CopyAfter(r.cached-r.staged, r.cached, k.after); at > 0 {
			k.after = at
		}
	}
}

// dropCopy drops the copy of the last sequence in order that has one on a socket. It returns false if
// there is none.
func (c *prefixCache) dropCopy(rank int) bool {
	for i := len(c.s.running) - 1; i >= 0; i-- {
		if r := c.s.running[i]; r.owner == rank && r.prefix.copy.booked {
			c.s.ledger.moveCopy(r, -1)
			r.prefix.copy = stateCopy{}
			c.uncopied = append(c.uncopied, r.seq)
			return true
		}
	}
	return false
}

// makeFreeNow is State.makeFree for a cache that arrives before the next step. Only sequences with rows have copies of
// states, and the step of these rows drops the copies.
func (c *prefixCache) makeFreeNow(rank int, bytes int64) bool {
	return c.tree.MakeFreeNow(rank, bytes) || c.s.makeFree(rank, bytes)
}

// keepCopy moves a request's copy to a block of its text. It returns false if the block has a snapshot,
// or if memory is short.
func (c *prefixCache) keepCopy(r *request, b *prefix.Block) bool {
	if b.Extras&prefix.Snapshot != 0 {
		return false
	}
	c.s.ledger.moveCopy(r, -1)
	r.prefix.copy = stateCopy{}
	return c.tree.KeepSnapshot(b)
}

// copyBytes returns the size of the states of all heads.
func (l *ledger) copyBytes() int64 { return kvcache.StateBytes(l.g, l.g.KVHeads) }

// moveCopy books memory for a copy on the request's owner, or frees it with sign -1.
func (l *ledger) moveCopy(r *request, sign int64) {
	l.sockets[r.owner].reserved += sign * l.copyBytes()
	l.sockets[r.owner].copies += sign * l.copyBytes()
}

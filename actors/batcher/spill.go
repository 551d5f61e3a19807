package batcher

import (
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/plan"
)

// Rows in files. A policy that reads few rows per step can have most of a cache in a file of its
// owner. The bits are the same, and the steps are slower. When memory is short, the largest such
// cache on a socket moves to its file, if the disk has room. No step waits for that: the owner
// writes while steps run, and reports when the memory is free (StepDone.Spilled). A cache whose
// file fails is rebuilt from the tokens, and then stays in memory.

// inFile is the part of a cache that is in a file, or will be.
type inFile struct {
	blocks int
	done   bool // its memory is free
	bytes  int64
	before int64 // additional memory before it is freed, where others share its rows
}

// memoryShort divides the budget: memory is short if less than this share is free.
const memoryShort = 8

// planFiles orders each owner that is short of memory to move one cache to a file.
func (v *residency) planFiles(p *plan.Plan) {
	waits := false
	if r := v.s.head(); r != nil && !v.s.full() {
		waits = v.s.ledger.choose(r, 0).Why != ""
	}
	for rank := range v.s.ledger.sockets {
		a := &v.s.ledger.sockets[rank]
		if a.Scratch == 0 || !waits && a.room() >= a.Budget/memoryShort {
			continue
		}
		var largest *request
		for _, r := range v.s.running {
			if r.owner == rank && v.canMove(r, p) && (largest == nil || v.s.ledger.owned(r) > v.s.ledger.owned(largest)) {
				largest = r
			}
		}
		if largest == nil {
			continue
		}
		r, blocks := largest, v.fileBlocks(largest)
		if before := max(0, v.s.ledger.spillChange(r, blocks)); v.s.makeFree(rank, before) {
			r.resides.file = inFile{blocks: blocks, bytes: kvcache.FileBytes(v.s.ledger.g, blocks, r.Policy), before: before}
			r.booked[rank] += before
			a.reserved += before
			a.files += r.resides.file.bytes
			p.Spill = append(p.Spill, plan.Spill{Seq: r.seq, Owner: rank, Blocks: r.resides.file.blocks})
		}
	}
}

// fileBlocks returns the number of blocks of a sequence that can be in a file. They have only
// committed tokens.
func (v *residency) fileBlocks(r *request) int {
	return kvcache.Spillable(v.s.ledger.g, r.read, r.cached-r.staged, r.Policy)
}

// canMove reports whether a cache can move to a file in this step. A context that requests share stays in
// memory.
func (v *residency) canMove(r *request, p *plan.Plan) bool {
	if !r.movable() || r.Hold || r.resides.inMemory {
		return false
	}
	for _, k := range p.Copy {
		if k.Seq == r.seq {
			return false
		}
	}
	blocks, a := v.fileBlocks(r), &v.s.ledger.sockets[r.owner]
	return blocks > 0 && a.files+kvcache.FileBytes(v.s.ledger.g, blocks, r.Policy) <= a.Scratch
}

// moved books the caches that sockets have moved to files since the last step.
func (v *residency) moved(list []plan.Spill) {
	for _, f := range list {
		for _, r := range v.s.running {
			if r.seq == f.Seq && r.phase == decoding && r.owner == f.Owner && !r.resides.file.done {
				v.s.ledger.spilled(r, f.Blocks)
				v.s.totals.Spilled++
			}
		}
	}
}

// lost preempts sequences whose files failed. The tokens that the step sampled for them are ignored.
func (v *residency) lost(seqs []uint64) {
	for _, seq := range seqs {
		for _, r := range append(queue(nil), v.s.running...) {
			if r.seq == seq && !r.ended {
				if r.sweeping.files > 0 {
					v.s.layers.filesAfter = v.s.now + filesRest
				}
				v.s.preempt(r)
				r.resides.inMemory = true
				v.s.totals.Lost++
			}
		}
	}
}

// spilled books that the owner has freed the rows of the first blocks of a cache. It releases the
// shared blocks of the prefix cache.
func (l *ledger) spilled(r *request, blocks int) {
	a := &l.sockets[r.owner]
	change := l.spillChange(r, blocks) - r.resides.file.before
	a.Unpin(r.prefix.Blocks)
	r.prefix.Blocks = nil
	a.files -= r.resides.file.bytes
	r.resides.file = inFile{blocks: blocks, done: true, bytes: kvcache.FileBytes(l.g, blocks, r.Policy)}
	a.files += r.resides.file.bytes
	r.booked[r.owner] += change
	a.reserved += change
	a.freed -= min(0, change)
}

// spillChange returns the change of the bytes that only this sequence has on its owner, because it
// no longer shares blocks of the prefix cache.
func (l *ledger) spillChange(r *request, blocks int) int64 {
	after := kvcache.SpilledBytes(l.g, r.read, r.cached, 1, blocks, r.Policy)
	return after - kvcache.StepBytes(l.g, r.read, r.cached, 1, r.Policy) + l.sharedBytes(r)
}

// stepBytes returns kvcache.StepBytes of the owner's cache, with or without rows in a file.
func (l *ledger) stepBytes(r *request, tokens, staged int) int64 {
	blocks := 0
	if r.resides.file.done {
		blocks = r.resides.file.blocks
	}
	return kvcache.SpilledBytes(l.g, r.read, tokens, staged, blocks, r.Policy) + r.resides.file.before
}

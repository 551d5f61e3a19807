package batcher

import (
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/plan"
)

// Spill has an owner move the rows of the first Blocks blocks of a sequence to a file, behind what
// runs; StepDone says when memory has been given up. Sequences of policies that read few of their
// rows go on with them there, with the same bits, and slower: so they are spilled when memory is
// short, the largest first, and as long as the disk has room. Nothing waits for a disk but the
// memory that it would make free: a sequence that it does not take stays where it is, and one
// whose file is lost is preempted and read again, to stay in memory.
// inFile is what a request has in a file, or will have.
type inFile struct {
	blocks int
	done   bool // memory has been given up
	bytes  int64
	before int64 // booked in memory until then: what it takes more than it makes free, when others hold its rows too
}

// memoryShort is the part of the budget that should be free before anybody asks.
const memoryShort = 8

// spill orders what is to be moved.
func (s *State) spill(p *plan.Plan) {
	waits := false
	if r := s.head(); r != nil && !s.full() {
		read, tokens := r.asks()
		_, _, why := s.ledger.choose(r.Policy, read, tokens, 0, r.canOwn)
		waits = why != ""
	}
	for rank := range s.ledger.sockets {
		a := &s.ledger.sockets[rank]
		if a.Scratch == 0 || !waits && a.room() >= a.Budget/memoryShort {
			continue
		}
		var largest *request
		for _, r := range s.running {
			if r.owner == rank && s.spillable(r, p) && (largest == nil || s.ledger.owned(r) > s.ledger.owned(largest)) {
				largest = r
			}
		}
		if largest == nil {
			continue
		}
		r, blocks := largest, s.blocksToSpill(largest)
		if before := max(0, s.ledger.spillChange(r, blocks)); s.makeFree(rank, before) {
			r.file = inFile{blocks: blocks, bytes: kvcache.FileBytes(s.ledger.g, blocks, r.Policy), before: before}
			r.hold[rank] += before
			a.reserved += before
			a.files += r.file.bytes
			p.Spill = append(p.Spill, plan.Spill{Seq: r.seq, Owner: rank, Blocks: r.file.blocks})
		}
	}
}

// blocksToSpill is how many blocks of a sequence, of tokens that count, can lie in a file.
func (s *State) blocksToSpill(r *request) int {
	return kvcache.Spillable(s.ledger.g, r.read, r.cached-r.staged, r.Policy)
}

func (s *State) spillable(r *request, p *plan.Plan) bool {
	if r.phase != decoding || r.ended || r.rests() || r.shares != nil || r.inMemory || r.file.blocks > 0 {
		return false
	}
	for _, k := range p.Copy {
		if k.Seq == r.seq {
			return false
		}
	}
	blocks, a := s.blocksToSpill(r), &s.ledger.sockets[r.owner]
	return blocks > 0 && a.files+kvcache.FileBytes(s.ledger.g, blocks, r.Policy) <= a.Scratch
}

// spilled books what sockets have moved since the last step.
func (s *State) spilled(list []plan.Spill) {
	for _, f := range list {
		for _, r := range s.running {
			if r.seq == f.Seq && r.phase == decoding && r.owner == f.Owner && !r.file.done {
				s.ledger.spilled(r, f.Blocks)
				s.totals.Spilled++
			}
		}
	}
}

// lost takes sequences back whose files have failed: what the step drew of them does not count.
func (s *State) lost(seqs []uint64) {
	for _, seq := range seqs {
		for _, r := range append(queue(nil), s.running...) {
			if r.seq == seq && !r.ended {
				s.preempt(r)
				r.inMemory = true
				s.totals.Lost++
			}
		}
	}
}

// spilled books that the owner gave up the rows of so many blocks. Blocks that it shared with the
// prefix cache are among them.
func (l *ledger) spilled(r *request, blocks int) {
	a := &l.sockets[r.owner]
	change := l.spillChange(r, blocks) - r.file.before
	for _, b := range r.pins {
		l.unpin(b, r.owner)
	}
	r.pins = nil
	a.files -= r.file.bytes
	r.file = inFile{blocks: blocks, done: true, bytes: kvcache.FileBytes(l.g, blocks, r.Policy)}
	a.files += r.file.bytes
	r.hold[r.owner] += change
	a.reserved += change
	a.freed -= min(0, change)
}

// spillChange is what the bytes that only this sequence holds on its owner change by: it gives up
// the blocks of the prefix cache that it shares.
func (l *ledger) spillChange(r *request, blocks int) int64 {
	return l.sharedBytes(r) + kvcache.SpilledBytes(l.g, r.read, r.cached, 1, blocks, r.Policy) - kvcache.StepBytes(l.g, r.read, r.cached, 1, r.Policy)
}

// stepBytes is kvcache.StepBytes of the owner's cache, wherever its rows lie.
func (l *ledger) stepBytes(r *request, tokens, staged int) int64 {
	blocks := 0
	if r.file.done {
		blocks = r.file.blocks
	}
	return kvcache.SpilledBytes(l.g, r.read, tokens, staged, blocks, r.Policy) + r.file.before
}

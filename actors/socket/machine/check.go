package machine

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/plan"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// check checks a whole plan without a change of the machine. A socket can run every plan that passes.
// It returns the sequences that the plan opens; those that resume or fork are HandedOver.
func (m *Machine) check(p *plan.Plan) (opened map[uint64]*Sequence, err error) {
	if err := m.checkKeep(p.Keep); err != nil {
		return nil, err
	}
	seqs, err := m.checkOpens(p)
	if err != nil {
		return nil, err
	}
	if err := m.checkRuns(p, &seqs); err != nil {
		return nil, err
	}
	for i := range p.Sweeps {
		if err := m.checkSweep(p, &p.Sweeps[i], seqs.at(p.Sweeps[i].Seq)); err != nil {
			return nil, err
		}
	}
	for i := range p.Index {
		if err := m.checkIndex(p, &p.Index[i], seqs.at(p.Index[i].Seq)); err != nil {
			return nil, err
		}
	}
	if rows := len(p.Decode) + len(p.Chunks); rows+len(p.Index)+len(p.Sweeps) == 0 || rows == 0 && p.Passes > 1 {
		return nil, fmt.Errorf("socket: step %d has no rows", p.Step)
	}
	if p.MicroBatches < 0 || p.MicroBatches > plan.MaxMicroBatches {
		return nil, fmt.Errorf("socket: step %d runs %d micro-batches through the layers, at most %d are possible",
			p.Step, p.MicroBatches, plan.MaxMicroBatches)
	}
	for _, f := range p.Spill {
		switch q := seqs.at(f.Seq); {
		case q == nil || !q.HandedOver:
			return nil, fmt.Errorf("socket: sequence %d has no cache to move to a file", f.Seq)
		case f.Blocks == 0 || f.Blocks > q.Read/tensor.BlockSlots:
			return nil, fmt.Errorf("socket: sequence %d: %d blocks must move to a file, the cache has %d full blocks",
				f.Seq, f.Blocks, q.Read/tensor.BlockSlots)
		}
	}
	err = m.checkCopies(p, &seqs)
	if len(seqs.taken) > 0 {
		maps.Copy(seqs.opened, seqs.taken)
	}
	return seqs.opened, err
}

// sequences lists the sequences of a socket after the releases and opens of a plan.
type sequences struct {
	now      map[uint64]*Sequence
	released map[uint64]bool
	opened   map[uint64]*Sequence
	taken    map[uint64]*Sequence // opened by the plan, and ended by another that takes the cache

	kept      map[uint64]int // blocks that ended sequences leave, and their places in the text
	snapshots map[uint64]bool
}

// keeps records the blocks that a plan keeps of sequences of this socket (Machine.keep).
func (s *sequences) keeps(list []plan.Keep) {
	for _, k := range list {
		if s.now[k.Seq] == nil {
			continue
		}
		if s.kept == nil {
			s.kept, s.snapshots = map[uint64]int{}, map[uint64]bool{}
		}
		for i, id := range k.Blocks {
			s.kept[id] = k.From + i
		}
		s.snapshots[k.Snapshot] = true
	}
}

// at returns the sequence with an ID, or nil.
func (s *sequences) at(id uint64) *Sequence {
	if q := s.opened[id]; q != nil {
		return q
	}
	if s.released[id] {
		return nil
	}
	return s.now[id]
}

// checkKeep checks blocks that go to the prefix cache when their sequence ends: this
// socket has the whole sequence, and the blocks are full.
func (m *Machine) checkKeep(keep []plan.Keep) error {
	for _, k := range keep {
		q := m.seqs[k.Seq]
		if q == nil {
			continue // it was released before
		}
		fails := func(why string, args ...any) error {
			return fmt.Errorf("socket: sequence %d cannot leave blocks [%d,%d) to the prefix cache: %s", k.Seq, k.From,
				k.From+len(k.Blocks), fmt.Sprintf(why, args...))
		}
		accepted, copied := q.lastTokens((k.From + len(k.Blocks)) * tensor.BlockSlots)
		read := q.Read + accepted
		switch {
		case m.limits.Ranks != 1:
			return fails("its rows are on one of %d sockets", m.limits.Ranks)
		case !q.HandedOver:
			return fails("its prompt is not complete")
		case !q.Policy.RebuildsByPrefill():
			return fails("under %s its rows are not those of prefill", q.Policy.Spec())
		case k.From > read || k.From+len(k.Blocks) > read/tensor.BlockSlots:
			return fails("%d tokens fill %d blocks", read, read/tensor.BlockSlots)
		}
		if why := m.checkKeepStates(&k, cmp.Or(copied, q.copied)); why != "" {
			return fails("%s", why)
		}
		for i, id := range k.Blocks {
			if _, here := m.blocks[id]; here {
				return fails("block %d exists already, and is not its block %d", id, k.From+i)
			}
		}
	}
	return nil
}

// checkIndex checks pieces of a prompt's clustering: they follow the pieces that are done,
// and the tokens that they need are read.
func (m *Machine) checkIndex(p *plan.Plan, x *plan.Index, q *Sequence) error {
	switch {
	case q == nil:
		return fmt.Errorf("socket: step %d indexes sequence %d, which is not open", p.Step, x.Seq)
	case q.lastStep == p.Step:
		return fmt.Errorf("socket: step %d indexes sequence %d, and names it twice", p.Step, x.Seq)
	case q.HandedOver || q.swept.pass > 0:
		return fmt.Errorf("socket: step %d indexes sequence %d, whose prompt is complete or read layer by layer", p.Step, x.Seq)
	}
	c := kvcache.IndexWorkOf(kvcache.Geometry{Layers: m.limits.Layers, Layout: m.limits.Layout}, q.Prompt, q.Policy)
	most, read := c.Before, c.After
	if q.Indexed >= c.Before {
		most, read = c.Pieces, q.Prompt
	}
	switch {
	case x.From != q.Indexed:
		return fmt.Errorf("socket: sequence %d: its index continues from piece %d, but %d are done", x.Seq, x.From, q.Indexed)
	case x.Pieces == 0 || x.Pieces > most-q.Indexed:
		return fmt.Errorf("socket: sequence %d: %d pieces of its index after the first %d, this part ends with piece %d",
			x.Seq, x.Pieces, x.From, most)
	case q.Read < read:
		return fmt.Errorf("socket: sequence %d: its index needs %d tokens, %d are read", x.Seq, read, q.Read)
	}
	q.lastStep, q.piecesBefore, q.pieces = p.Step, c.Before, c.Pieces
	return nil
}

// checkCopies checks new replicas. The step must decode the sequence too: otherwise the
// replica would not have the tokens of its owner.
func (m *Machine) checkCopies(p *plan.Plan, seqs *sequences) error {
	for i, c := range p.Copy {
		q := seqs.at(c.Seq)
		switch {
		case q == nil:
			return fmt.Errorf("socket: sequence %d cannot be copied: it is not open", c.Seq)
		case !q.HandedOver:
			return fmt.Errorf("socket: sequence %d cannot be copied: its prompt is not complete", c.Seq)
		case q.Replica != plan.None && !dropsReplica(p, c.Seq):
			return fmt.Errorf("socket: sequence %d cannot be copied: it has a replica on %d", c.Seq, q.Replica)
		case slices.ContainsFunc(p.Copy[:i], func(o plan.Copy) bool { return o.Seq == c.Seq }):
			return fmt.Errorf("socket: step %d copies sequence %d twice", p.Step, c.Seq)
		case c.Replica >= m.limits.Ranks || c.Replica == q.Owner:
			return fmt.Errorf("socket: sequence %d: a replica on %d of %d, owner %d", c.Seq, c.Replica, m.limits.Ranks, q.Owner)
		case q.lastStep != p.Step:
			return fmt.Errorf("socket: step %d copies sequence %d and does not decode it", p.Step, c.Seq)
		}
	}
	return nil
}

// dropsReplica reports whether a plan drops the replica of a sequence that it does not open.
func dropsReplica(p *plan.Plan, seq uint64) bool {
	return slices.Contains(p.DropReplica, seq) && !slices.ContainsFunc(p.Open, func(o plan.Open) bool { return o.Seq == seq })
}

func (m *Machine) checkTokens(seq uint64, tokens []int32) error {
	for _, t := range tokens {
		if t < 0 || int(t) >= m.limits.Vocab {
			return fmt.Errorf("socket: sequence %d: token %d, vocabulary is %d", seq, uint32(t), m.limits.Vocab)
		}
	}
	return nil
}

// checkKeepStates checks that the copy of a sequence's recurrent states belongs to the last of its
// blocks. It returns the violated rule.
func (m *Machine) checkKeepStates(k *plan.Keep, copied int) string {
	end := k.From + len(k.Blocks)
	at, here := m.blocks[k.Snapshot]
	if n := len(k.Blocks); n > 0 && k.Blocks[n-1] != 0 {
		at, here = end-1, k.Blocks[n-1] == k.Snapshot
	}
	switch {
	case k.Snapshot == 0:
	case copied == 0 || copied != end*tensor.BlockSlots:
		return fmt.Sprintf("its recurrent states were copied after %d tokens, not after block %d", copied, end-1)
	case !here || at != end-1:
		return fmt.Sprintf("block %d, for its recurrent states, is not its block %d", k.Snapshot, end-1)
	case m.snapshots[k.Snapshot]:
		return fmt.Sprintf("block %d has a snapshot already", k.Snapshot)
	}
	return ""
}

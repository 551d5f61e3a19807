package sim

import (
	"fmt"
	"maps"
	"slices"

	"shoal/actors/batcher"
	"shoal/kvcache"
)

// carry is what a socket keeps between epochs, as actors/socket has it.
type carry struct {
	keeper uint64
	seqs   map[uint64]*sequence
}

func (k *carry) claim(m *memory, keeper uint64) {
	if k.keeper != keeper {
		k.clear(m)
		k.keeper = keeper
	}
}

func (k *carry) keep(m *memory, q *sequence) {
	if k.seqs == nil {
		k.seqs = map[uint64]*sequence{}
	}
	_ = m.resize(&q.partBytes, 0)
	k.seqs[q.open.Seq] = q
}

func (k *carry) held() []batcher.Held {
	var list []batcher.Held
	for _, seq := range slices.Sorted(maps.Keys(k.seqs)) {
		q := k.seqs[seq]
		h := batcher.Held{Seq: seq, Prompt: q.open.Read, Tokens: q.tokens}
		if q.staged {
			h.Staged = 1
		}
		list = append(list, h)
	}
	return list
}

func (k *carry) release(m *memory, ids []uint64) {
	for _, id := range ids {
		if q := k.seqs[id]; q != nil {
			q.release(m)
			delete(k.seqs, id)
		}
	}
}

func (k *carry) clear(m *memory) { k.release(m, slices.Collect(maps.Keys(k.seqs))) }

// stage makes the next token one that can be undone; settle keeps it.
func (q *sequence) stage() {
	q.settle()
	for h := range heads {
		q.before[h] = slices.Clone(q.own[h])
	}
	q.staged = true
}

func (q *sequence) settle() {
	if q.staged {
		q.tokens, q.staged = q.tokens+1, false
	}
}

// resume goes on with a cache that an earlier epoch left here.
func (n *node) resume(e *epoch, q *sequence) error {
	want := len(q.open.Resume)
	q.read = want
	if q.open.Owner != e.rank {
		n.carry.release(&n.memory, []uint64{q.open.Seq})
		return nil
	}
	k := n.carry.seqs[q.open.Seq]
	if k == nil {
		return fmt.Errorf("socket: sequence %d resumes, but nothing of it was kept here", q.open.Seq)
	}
	switch {
	case want == k.tokens && k.staged:
		k.own, k.staged = k.before, false
		n.w.cover[UndoneToken]++
	case want == k.tokens+1 && k.staged:
		k.settle()
	case want != k.tokens:
		return fmt.Errorf("socket: sequence %d resumes with %d tokens, %d are kept", q.open.Seq, want, k.tokens)
	}
	n.w.cover[Resumed]++
	delete(n.carry.seqs, q.open.Seq)
	q.own, q.ownBytes, q.sealed, q.tokens = k.own, k.ownBytes, true, want
	for i, token := range q.open.Resume {
		q.seen.add(token, i >= q.fresh)
	}
	return n.memory.resize(&q.ownBytes, kvcache.ResidentBytes(geometry, q.open.Read, want, q.policy()))
}

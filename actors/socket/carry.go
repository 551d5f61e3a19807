package socket

import (
	"fmt"
	"maps"
	"slices"

	"shoal/kvcache"
	"shoal/proto"
)

// carry is what a socket keeps between epochs: the caches of sequences that
// decoded. A cache lies whole on its owner, whatever the placement, so a new
// epoch need not read its prompt again. Only the executor touches it.
type carry struct {
	keeper uint64 // the coordinator's life that the numbers of sequences belong to
	seqs   map[uint64]*sequence
}

// claim drops the caches of another coordinator's sequences.
func (k *carry) claim(keeper uint64) {
	if k.keeper != keeper {
		k.clear()
		k.keeper = keeper
	}
}

// keep takes over what a sequence of an epoch that ends still needs.
func (k *carry) keep(q *sequence) {
	whole := func(s *kvcache.Store) bool { return s != nil && s.Sealed() }
	if !whole(q.own) && !whole(q.copy) {
		q.release()
		return
	}
	q.releasePart()
	if k.seqs == nil {
		k.seqs = map[uint64]*sequence{}
	}
	k.release(q.id) // of an epoch before, which nobody resumed
	k.seqs[q.id] = q
}

// store is the cache of a kept sequence: a socket has it as owner or as buddy.
func (q *sequence) store() (s *kvcache.Store, replica bool) {
	if q.own != nil {
		return q.own, false
	}
	return q.copy, true
}

func (k *carry) held() []*proto.Held {
	var list []*proto.Held
	for _, id := range slices.Sorted(maps.Keys(k.seqs)) {
		s, replica := k.seqs[id].store()
		list = append(list, &proto.Held{Seq: id, Prompt: uint32(s.Prompt()), Tokens: uint32(s.Tokens()), Staged: uint32(s.Staged()), Replica: replica})
	}
	return list
}

func (k *carry) release(id uint64) {
	if q := k.seqs[id]; q != nil {
		q.release()
		delete(k.seqs, id)
	}
}

func (k *carry) clear() {
	for id := range k.seqs {
		k.release(id)
	}
}

// resume opens a sequence where an earlier epoch left it: the owner, and the buddy
// if there is one, go on with the cache that they kept; the others only note it.
func (e *epoch) resume(o *proto.Open) (*sequence, error) {
	q, err := e.newSequence(o)
	if err != nil {
		return nil, err
	}
	q.read, q.handed = len(o.Resume), true
	if q.owner == e.rank {
		for i, t := range o.Resume {
			q.note(int32(t), i)
		}
	}
	if e.rank != q.owner && e.rank != q.buddy {
		e.carry.release(o.Seq)
		return q, nil
	}
	k := e.carry.seqs[o.Seq]
	if k == nil {
		return nil, fmt.Errorf("socket: sequence %d resumes, but nothing of it was kept here", o.Seq)
	}
	s, _ := k.store()
	if err := e.checkKept(q, s); err != nil {
		return nil, err
	}
	s.Commit(q.read - s.Tokens()) // or undo, of the last step
	if e.rank == q.owner {
		q.own = s
	} else {
		q.copy = s
	}
	delete(e.carry.seqs, o.Seq)
	return q, nil
}

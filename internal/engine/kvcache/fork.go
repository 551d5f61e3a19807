package kvcache

import (
	"errors"
	"fmt"

	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// Forks reports whether a sequence may start with the cache of another sequence that has the same
// prompt part. The policy must not change the rows and the index of that part, and must compute the tokens
// after it like generated ones.
func (p *Policy) Forks() bool { return p.Reorders && p.Tail != nil }

// Fork returns a store in the state of s at its Seal. Both hold the prompt's full blocks and their
// index, which count once; the rest is copied. With recurrent states, no token may have followed the
// prompt. Errors wrap memory.ErrBudget.
func (s *Store) Fork() (*Store, error) {
	if !s.sealed || !s.policy.Forks() || len(s.g.Windows) > 0 || s.spilled != nil {
		return nil, errors.New("kvcache: a fork needs a complete cache with clusters and all rows in memory")
	}
	f := newStore(s.arena, s.g, s.heads, s.policy)
	f.prompt = s.prompt
	full, index := s.prompt/tensor.BlockSlots, 0
	rest := s.prompt % tensor.BlockSlots
	table := blocksOf(s.prompt) * tableBytes(s.policy) * int64(len(s.tables))
	if err := s.arena.Charge(table); err != nil {
		return nil, fmt.Errorf("forking a cache of %d tokens: %w", s.prompt, err)
	}
	copies, err := s.arena.Alloc(s.g.Layout.BlockBytes(), len(s.tables)*min(1, rest))
	if err != nil {
		s.arena.Uncharge(table)
		return nil, fmt.Errorf("forking a cache of %d tokens: %w", s.prompt, err)
	}
	f.charge = table
	for i := range f.tables {
		t, from := &f.tables[i], &s.tables[i]
		rows := s.arena.Retain(from.rows()[:full])
		if rest > 0 {
			for slot := range rest {
				s.g.Layout.CopySlot(copies[i], slot, from.rows()[full], slot)
			}
			rows = append(rows, copies[i])
		}
		t.planes[rowsPlane].blocks = rows
		index = t.planes[indexPlane].room(s.prompt)
		t.planes[indexPlane].blocks = s.arena.Retain(from.planes[indexPlane].blocks[:index])
		f.resizeTable(t)
		copy(t.Positions, from.Positions[:s.prompt])
		t.Prompt, t.n, t.indexed = s.prompt, s.prompt, s.prompt
	}
	f.tokens, f.sealed = s.prompt, true
	if err := f.forkStates(s); err != nil {
		f.Release()
		return nil, fmt.Errorf("forking a cache of %d tokens: %w", s.prompt, err)
	}
	return f, f.openIndex(false)
}

// ForkBytes returns the part of ResidentBytes that all forks of a beginning of prompt tokens share.
func ForkBytes(g Geometry, prompt int, p *Policy) int64 {
	planes := g.planesOf(p, 0)
	rows, index := &planes[rowsPlane], &planes[indexPlane]
	table := int64(prompt/tensor.BlockSlots)*int64(rows.size) + int64(index.room(prompt))*int64(index.size)
	return int64(g.Layers) * int64(g.KVHeads) * table
}

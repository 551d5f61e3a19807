package tokenizer

import (
	"slices"
	"sync"
	"unicode/utf8"
)

// part is a token of a word during merging, in a linked list.
type part struct {
	id         int32 // -1: merged into its left neighbour
	prev, next int32 // -1: none
}

// mergeScratch is the working memory for one word.
type mergeScratch struct {
	syms []part
	heap []uint64 // rank<<32 | position: lowest rank first, leftmost among equals
}

var scratchPool = sync.Pool{New: func() any { return new(mergeScratch) }}

// encode appends the ids of one word, see model.
func (m *bpe) encode(dst []int32, word string, raw, literal bool) []int32 {
	if id, ok := m.whole[word]; ok {
		return append(dst, id)
	}
	if m.ignoreMerges {
		vocab := m.ids
		if raw {
			vocab = m.rawVocab
		}
		if id, ok := vocab[word]; ok && !(literal && m.isSpecial(id)) {
			return append(dst, id)
		}
	}
	if ids, ok := m.cache.get(word); ok && !(literal && m.anyBanned(ids)) {
		return append(dst, ids...)
	}
	s := scratchPool.Get().(*mergeScratch)
	n := len(dst)
	m.spell(s, word, raw, false)
	dst = m.merge(dst, s, false)
	m.cache.put(word, dst[n:])
	if literal && m.anyBanned(dst[n:]) {
		m.spell(s, word, raw, true)
		dst = m.merge(dst[:n], s, true)
	}
	if cap(s.syms) <= 1<<16 {
		scratchPool.Put(s)
	}
	return dst
}

func (m *bpe) anyBanned(ids []int32) bool { return slices.ContainsFunc(ids, m.banned) }

// spell fills s with the initial symbols of a word: its characters, else their bytes, else the
// unknown token, else nothing.
func (m *bpe) spell(s *mergeScratch, word string, raw, literal bool) {
	s.syms = s.syms[:0]
	unk := false // an unknown symbol is pending, to be fused with the next
	add := func(id int32) {
		n := int32(len(s.syms))
		if n > 0 {
			s.syms[n-1].next = n
		}
		s.syms = append(s.syms, part{id, n - 1, -1})
	}
	for i := 0; i < len(word); {
		n, id, char := 1, int32(-1), ""
		if raw {
			id = m.byteID[word[i]]
		} else {
			_, n = utf8.DecodeRuneInString(word[i:])
			char = word[i : i+n]
			if m.prefix != "" && i > 0 {
				char = m.prefix + char
			}
			if m.suffix != "" && i+n == len(word) {
				char += m.suffix
			}
			if v, ok := m.ids[char]; ok {
				id = v
			}
		}
		i += n
		if literal && id >= 0 && m.isSpecial(id) {
			id = -1
		}
		switch {
		case id >= 0:
			if unk {
				add(m.unk)
				unk = false
			}
			add(id)
		case char != "" && m.addBytes(add, char):
		case m.unk >= 0:
			if unk && !m.fuseUnk {
				add(m.unk)
			}
			unk = true
		}
	}
	if unk {
		add(m.unk)
	}
}

// addBytes adds the byte tokens of char, if all exist.
func (m *bpe) addBytes(add func(int32), char string) bool {
	var room [utf8.UTFMax]int32
	ids, ok := spellBytes(room[:0], char, &m.bytes)
	for _, id := range ids {
		add(id)
	}
	return ok
}

// merge joins neighbours, lowest rank first, until no merge applies, in O(n log n).
//
// A heap entry may be outdated. Like the library, it is dropped only if the current pair at its
// position produces another token than that of the entry, or with levels has another level.
func (m *bpe) merge(dst []int32, s *mergeScratch, literal bool) []int32 {
	s.heap = s.heap[:0]
	offer := func(pos, next int32) {
		rank, ok := m.merges[pair(s.syms[pos].id, s.syms[next].id)]
		if ok && !(literal && m.isSpecial(m.result[rank])) {
			s.push(uint64(m.levelOf(rank))<<32 | uint64(pos))
		}
	}
	for i := 1; i < len(s.syms); i++ {
		offer(int32(i-1), int32(i))
	}
	for len(s.heap) > 0 {
		top := s.pop()
		pos := int32(uint32(top))
		left := &s.syms[pos]
		if left.id < 0 || left.next < 0 {
			continue
		}
		right := &s.syms[left.next]
		now, ok := m.merges[pair(left.id, right.id)]
		if !ok || m.level == nil && m.result[now] != m.result[top>>32] || m.level != nil && m.level[now] != int32(top>>32) ||
			literal && m.isSpecial(m.result[now]) {
			continue
		}
		left.id, right.id = m.result[now], -1
		left.next = right.next
		if left.next >= 0 {
			s.syms[left.next].prev = pos
		}
		if left.prev >= 0 {
			offer(left.prev, pos)
		}
		if left.next >= 0 {
			offer(pos, left.next)
		}
	}
	for i := range s.syms {
		if s.syms[i].id >= 0 {
			dst = append(dst, s.syms[i].id)
		}
	}
	return dst
}

// levelOf returns the place of a merge in the order of all merges.
func (m *bpe) levelOf(rank int32) int32 {
	if m.level == nil {
		return rank
	}
	return m.level[rank]
}

func (s *mergeScratch) push(v uint64) {
	h := append(s.heap, v)
	i := len(h) - 1
	for i > 0 {
		up := (i - 1) / 2
		if h[up] <= v {
			break
		}
		h[i] = h[up]
		i = up
	}
	h[i] = v
	s.heap = h
}

func (s *mergeScratch) pop() uint64 {
	h := s.heap
	top, v := h[0], h[len(h)-1]
	h = h[:len(h)-1]
	i := 0
	for {
		c := 2*i + 1
		if c >= len(h) {
			break
		}
		if c+1 < len(h) && h[c+1] < h[c] {
			c++
		}
		if v <= h[c] {
			break
		}
		h[i] = h[c]
		i = c
	}
	if len(h) > 0 {
		h[i] = v
	}
	s.heap = h
	return top
}

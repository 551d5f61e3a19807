package grammar

import (
	"bytes"
	"slices"

	"github.com/shoal-llm/shoal/internal/text/grammar/regex"
)

// inside is the part of masks that depends on a terminal alone, not on the expressions after it: the
// tokens that stay inside the terminal, and as a trie the remainders of those that reach its end. It
// depends only on the regular expression and the vocabulary, so all grammars share it. For example, the
// inside of a JSON string is computed once.
type inside struct {
	mask    *Mask
	beyond  trie
	useless bool // too many tokens leave it: walk it together with the expressions after it, if there are any
}

const (
	broadBytes = 64    // a terminal is broad if at least this many bytes can continue it
	maxBeyond  = 60000 // trie nodes of remainders
	maxShared  = 512   // terminals with a cached inside, about 24 KiB each with 128k tokens
	maxKey     = 4096  // bytes of the identifier of a terminal
)

// maskOf returns the tokens that lead from a state to a live state.
func (m *machine) maskOf(v *Vocabulary, s *state) *Mask {
	if s.known != nil {
		return s.known
	}
	mask := m.plainMask(v, s.base)
	if len(s.base.maybe) > 0 {
		mask = &Mask{words: slices.Clone(mask.words), eos: mask.eos}
		for _, id := range s.base.maybe {
			if m.follows(s, v.token[id]) {
				mask.set(id)
			}
		}
		m.held += 8*len(mask.words) + 64
	}
	s.known = mask
	return mask
}

// plainMask returns the mask of a state without the texts of names. The tokens that depend on those
// are in maybe.
func (m *machine) plainMask(v *Vocabulary, s *state) *Mask {
	if s.mask != nil {
		return s.mask
	}
	mask := v.newMask()
	narrow := s
	var ways []thread
	for i := 0; i < len(s.threads); {
		j := i
		for j < len(s.threads) && s.threads[j].r == s.threads[i].r {
			j++
		}
		in := m.inside(v, s.threads[i].r)
		var follow []thread
		loose := false
		if in != nil && (in.useless || len(in.beyond) > 0) {
			for _, t := range s.threads[i:j] {
				o := m.openFrame(t.k)
				follow, loose = append(follow, o.threads...), loose || o.loose
			}
		}
		if in == nil || in.useless && len(follow) > 0 {
			ways = append(ways, s.threads[i:j]...)
			i = j
			continue
		}
		mask.join(in.mask)
		if len(follow) > 0 {
			s.maybe = m.walk(in.beyond, m.state(ordered(follow), false, loose), mask, s.maybe)
		}
		i = j
	}
	if len(ways) < len(s.threads) {
		narrow = m.state(ways, false, false)
	}
	s.maybe = m.walk(v.all, narrow, mask, s.maybe)
	if s.end {
		mask.eos = true
		for _, e := range v.eos {
			if e >= 0 && int(e) < v.size {
				mask.set(e)
			}
		}
	}
	for id := range v.marks {
		if mark := m.mark(v, s, id); mark != "" && m.follows(s, []byte(mark)) {
			mask.set(id)
		}
	}
	s.mask = mask
	m.held += 8*len(mask.words) + 64
	return mask
}

// walk adds the tokens of t that lead from s to a live state. Tokens that depend on an unknown name
// are added to maybe.
func (m *machine) walk(t trie, s *state, mask *Mask, maybe []int32) []int32 {
	if len(s.threads) == 0 {
		return maybe
	}
	var at [256]*state
	at[0] = s
	for i := 0; i < len(t); {
		n := &t[i]
		from := at[n.depth]
		to := from.next[from.part.Class[n.b]]
		if to == nil {
			to = m.after(from, n.b)
		}
		if to == dead {
			i = int(n.end)
			continue
		}
		switch {
		case n.token < 0:
		case to.loose:
			maybe = append(maybe, n.token)
		default:
			mask.set(n.token)
		}
		if len(to.threads) == 0 {
			i = int(n.end)
			continue
		}
		at[n.depth+1] = to
		i++
	}
	return maybe
}

// inside returns nil for a terminal that is not broad.
func (m *machine) inside(v *Vocabulary, r regex.ID) *inside {
	if in, ok := m.insides[r]; ok {
		return in
	}
	in := m.findInside(v, r)
	m.insides[r] = in
	return in
}

func (m *machine) findInside(v *Vocabulary, r regex.ID) *inside {
	p, n := m.Classes(m.PartitionOf(r)), 0
	var some [256]bool
	for c, b := range p.First {
		some[c] = m.Step(r, b) != regex.Empty
	}
	for _, c := range p.Class {
		if some[c] {
			n++
		}
	}
	if n < broadBytes {
		return nil
	}
	key := m.Spell(r, maxKey)
	if key != "" {
		v.mu.Lock()
		in := v.shared[key]
		v.mu.Unlock()
		if in != nil {
			return in
		}
	}
	in := m.makeInside(v, r)
	if key != "" {
		v.mu.Lock()
		if len(v.shared) >= maxShared {
			for k := range v.shared { // evict any one: those in use are added again
				delete(v.shared, k)
				break
			}
		}
		v.shared[key] = in
		v.mu.Unlock()
	}
	return in
}

func (m *machine) makeInside(v *Vocabulary, r regex.ID) *inside {
	in := &inside{mask: v.newMask()}
	t := v.all
	if m.HoldsPlain(r, m.plainChars, plainRunes) {
		copy(in.mask.words, v.plain.words)
		t = v.rest
	}
	var ends [][2]int32 // token, number of its bytes inside
	var at [256]regex.ID
	at[0] = r
	for i := 0; i < len(t); {
		n := &t[i]
		to := m.Step(at[n.depth], n.b)
		if to == regex.Empty {
			i = int(n.end)
			continue
		}
		if n.token >= 0 {
			in.mask.set(n.token)
		}
		if m.Nullable(to) {
			in.useless = in.useless || len(ends) > maxBeyond
			for j := i + 1; j < int(n.end) && !in.useless; j++ {
				if t[j].token >= 0 {
					ends = append(ends, [2]int32{t[j].token, int32(n.depth) + 1})
				}
			}
		}
		if to == regex.Epsilon {
			i = int(n.end)
			continue
		}
		at[n.depth+1] = to
		i++
	}
	if in.useless = in.useless || len(ends) > maxBeyond; in.useless {
		return in
	}
	in.beyond = suffixes(ends, v.token)
	return in
}

func suffixes(ends [][2]int32, token [][]byte) trie {
	tail := func(e [2]int32) []byte { return token[e[0]][e[1]:] }
	slices.SortFunc(ends, func(a, b [2]int32) int { return bytes.Compare(tail(a), tail(b)) })
	ids, tails := make([]int32, len(ends)), make([][]byte, len(ends))
	for i, e := range ends {
		ids[i], tails[i] = int32(i), tail(e)
	}
	t := newTrie(ids, tails, 0)
	for i := range t {
		if t[i].token >= 0 {
			t[i].token = ends[t[i].token][0]
		}
	}
	return t
}

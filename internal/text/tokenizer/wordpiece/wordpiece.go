// Package wordpiece is BERT's tokenizer model: each word is cut into the longest known pieces from
// the left (Schuster and Nakajima, "Japanese and Korean voice search", 2012; Devlin et al.,
// arXiv:1810.04805).
package wordpiece

import "unicode/utf8"

// Model is immutable after New.
type Model struct {
	ids      map[string]int32
	unk      int32
	prefix   string
	maxChars int
	longest  int // bytes of the longest token
}

// New returns a model over ids, which it keeps. unk replaces a word that cannot be cut, or that has
// more than maxChars characters. prefix marks the pieces inside a word ("##").
func New(ids map[string]int32, unk int32, prefix string, maxChars int) *Model {
	m := &Model{ids: ids, unk: unk, prefix: prefix, maxChars: maxChars}
	for s := range ids {
		m.longest = max(m.longest, len(s))
	}
	return m
}

// Encode appends the ids of one word. Pieces whose id is banned are not used.
func (m *Model) Encode(dst []int32, word string, banned func(int32) bool) []int32 {
	if utf8.RuneCountInString(word) > m.maxChars {
		return append(dst, m.unk)
	}
	n := len(dst)
	buf := append(make([]byte, 0, 64), m.prefix...)
	for start := 0; start < len(word); {
		id, end := int32(-1), min(len(word), start+m.longest)
		for end < len(word) && end > start && !utf8.RuneStart(word[end]) {
			end--
		}
		for end > start {
			piece := word[start:end]
			if start > 0 {
				buf = append(buf[:len(m.prefix)], piece...)
			}
			var ok bool
			if start > 0 {
				id, ok = m.ids[string(buf)]
			} else {
				id, ok = m.ids[piece]
			}
			if ok && !banned(id) {
				break
			}
			id = -1
			_, size := utf8.DecodeLastRuneInString(piece)
			end -= size
		}
		if id < 0 {
			return append(dst[:n], m.unk)
		}
		dst = append(dst, id)
		start = end
	}
	return dst
}

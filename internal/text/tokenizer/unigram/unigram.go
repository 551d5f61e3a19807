// Package unigram is SentencePiece's language model of pieces: of all ways to cut a text, the one with
// the highest sum of scores (Kudo, arXiv:1804.10959).
//
// Both reference libraries search with the same algorithm, but their arithmetic differs: the
// tokenizers library adds in double precision, sentencepiece rounds each sum to float32. Ties and near
// ties therefore need the arithmetic of the library whose ids must result.
package unigram

import (
	"math"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"
)

// unkPenalty is subtracted from the lowest score for an unknown character.
const unkPenalty = 10

// Piece is an entry of the vocabulary. Its id is its index.
type Piece struct {
	Text  string
	Score float64
}

// Options complete a vocabulary.
type Options struct {
	Unk int32 // id of the unknown piece
	// SentencePiece: the arithmetic of sentencepiece instead of tokenizers. A run of unknown
	// characters is then always unknown, even if the vocabulary has it as a piece.
	SentencePiece bool
	// Hidden pieces are never found in a text: control, byte and unknown pieces of sentencepiece.
	Hidden func(id int32) bool
	// Forced pieces win against all others: user-defined symbols of sentencepiece.
	Forced func(id int32) bool
}

// Model is immutable after New.
type Model struct {
	pieces []Piece
	opts   Options
	unk    float64 // score of an unknown character
	top    float64 // highest score
	ids    map[string]int32
	sorted []int32    // ids in the order of their texts
	start  [257]int32 // start[b] is the first of sorted whose text begins with b or a higher byte
}

// New returns the model of pieces. ids has the id of each text; of equal texts, it has the one that
// texts get. The model keeps both.
func New(pieces []Piece, ids map[string]int32, o Options) *Model {
	m := &Model{pieces: pieces, ids: ids, opts: o}
	for i, p := range pieces {
		id := int32(i)
		if i == 0 || p.Score < m.unk {
			m.unk = p.Score
		}
		if i == 0 || p.Score > m.top {
			m.top = p.Score
		}
		if p.Text != "" && ids[p.Text] == id && (o.Hidden == nil || !o.Hidden(id)) {
			m.sorted = append(m.sorted, id)
		}
	}
	if o.SentencePiece {
		m.unk, m.top = m.bounds()
		m.unk = float64(float32(m.unk) - unkPenalty)
	} else {
		m.unk -= unkPenalty
	}
	slices.SortFunc(m.sorted, func(a, b int32) int { return strings.Compare(pieces[a].Text, pieces[b].Text) })
	for b := range 256 {
		n, _ := slices.BinarySearchFunc(m.sorted, byte(b), func(id int32, b byte) int { return int(pieces[id].Text[0]) - int(b) })
		m.start[b] = int32(n)
	}
	m.start[256] = int32(len(m.sorted))
	return m
}

// bounds returns the lowest and highest score of normal pieces, from which sentencepiece derives
// the others. It starts the highest at the smallest positive number, so it is never negative.
func (m *Model) bounds() (low, high float64) {
	low, high = math.MaxFloat32, 0x1p-126
	for _, id := range m.sorted {
		if m.opts.Forced == nil || !m.opts.Forced(id) {
			low, high = min(low, m.pieces[id].Score), max(high, m.pieces[id].Score)
		}
	}
	return low, high
}

// node is the end of the best path to a position of the text.
type node struct {
	score float64
	from  int32 // start of the last piece, -1: none
	id    int32
}

var pool = sync.Pool{New: func() any { return new([]node) }}

// Part is a piece of a cut text, or a run of unknown characters (Unknown).
type Part struct {
	Lo, Hi  int
	ID      int32
	Unknown bool
}

// Cut appends the best cut of text to dst, in the order of the text. Pieces whose id is banned are not used.
func (m *Model) Cut(dst []Part, text string, banned func(int32) bool) []Part {
	buf := pool.Get().(*[]node)
	nodes := slices.Grow((*buf)[:0], len(text)+1)[:len(text)+1]
	for i := range nodes {
		nodes[i].from = -1
	}
	nodes[0].score = 0
	for at := 0; at < len(text); {
		_, size := utf8.DecodeRuneInString(text[at:])
		single := false
		m.prefixes(text[at:], func(id int32, n int) {
			if banned(id) {
				return
			}
			m.offer(nodes, at, at+n, id, m.score(id, n))
			single = single || n == size
		})
		if !single {
			m.offer(nodes, at, at+size, m.opts.Unk, m.unk)
		}
		at += size
	}
	first := len(dst)
	for end := len(text); end > 0; {
		n := nodes[end]
		p := Part{int(n.from), end, n.id, n.id == m.opts.Unk}
		if last := len(dst) - 1; p.Unknown && last >= first && dst[last].Unknown {
			dst[last].Lo = p.Lo
		} else {
			dst = append(dst, p)
		}
		end = p.Lo
	}
	slices.Reverse(dst[first:])
	if !m.opts.SentencePiece {
		for i, p := range dst[first:] {
			if id, ok := m.ids[text[p.Lo:p.Hi]]; ok && p.Unknown && !banned(id) {
				dst[first+i] = Part{p.Lo, p.Hi, id, false}
			}
		}
	}
	if cap(nodes) <= 1<<16 {
		*buf = nodes
		pool.Put(buf)
	}
	return dst
}

func (m *Model) score(id int32, n int) float64 {
	if m.opts.Forced != nil && m.opts.Forced(id) {
		return float64(float32(n)*float32(m.top)) - 0.1
	}
	return m.pieces[id].Score
}

// offer extends the best path to lo by a piece, if that is the best path to hi so far.
func (m *Model) offer(nodes []node, lo, hi int, id int32, score float64) {
	score += nodes[lo].score
	if m.opts.SentencePiece {
		score = float64(float32(score))
	}
	to := &nodes[hi]
	if to.from >= 0 && score <= to.score {
		return
	}
	*to = node{score, int32(lo), id}
}

// prefixes calls found for the pieces at the start of text, shortest first, with their lengths.
func (m *Model) prefixes(text string, found func(id int32, n int)) {
	lo, hi := int(m.start[text[0]]), int(m.start[int(text[0])+1])
	for depth := 1; lo < hi; depth++ {
		if p := m.pieces[m.sorted[lo]].Text; len(p) == depth {
			found(m.sorted[lo], depth)
			lo++
		}
		if depth == len(text) {
			return
		}
		b := text[depth]
		lo += m.search(lo, hi, func(p string) bool { return p[depth] >= b })
		hi = lo + m.search(lo, hi, func(p string) bool { return p[depth] > b })
	}
}

// search returns the number of pieces of sorted[lo:hi] before the first for which f holds.
func (m *Model) search(lo, hi int, f func(string) bool) int {
	a, b := lo, hi
	for a < b {
		mid := int(uint(a+b) / 2)
		if f(m.pieces[m.sorted[mid]].Text) {
			b = mid
		} else {
			a = mid + 1
		}
	}
	return a - lo
}

package tokenizer

import (
	"slices"
	"unicode/utf8"

	"github.com/shoal-llm/shoal/internal/attempt"
)

// useScores derives the merges of a SentencePiece vocabulary (Kudo and Richardson,
// arXiv:1808.06226). Two neighbours may merge if their joined text is a token. The result with the
// highest score merges first, leftmost among equals.
func (m *bpe) useScores(scores []float32, mergeable func(id int) bool) {
	var order []int32
	for id, s := range m.tokens {
		if m.known[id] && mergeable(id) && utf8.RuneCountInString(s) > 1 {
			order = append(order, int32(id))
		}
	}
	slices.SortStableFunc(order, func(a, b int32) int {
		switch x, y := scores[a], scores[b]; {
		case x > y:
			return -1
		case x < y:
			return 1
		}
		return int(a - b)
	})
	if n := len(order); n > 1 && scores[order[0]] == scores[order[n-1]] {
		panic(attempt.Failure{Err: invalid("tokenizer scores", "are all %g: the order of merges is undefined", scores[order[0]])})
	}
	m.merges, m.result, m.level = make(map[uint64]int32, 2*len(order)), order, make([]int32, len(order))
	for rank, id := range order {
		if m.level[rank] = int32(rank); rank > 0 && scores[order[rank-1]] == scores[id] {
			m.level[rank] = m.level[rank-1]
		}
		s := m.tokens[id]
		if len(s) > maxAddedBytes {
			panic(attempt.Failure{Err: invalid("tokenizer tokens", "token %d has %d bytes, the limit is %d", id, len(s), maxAddedBytes)})
		}
		for i := range s {
			if i == 0 {
				continue
			}
			left, ok := m.ids[s[:i]]
			right, also := m.ids[s[i:]]
			if !ok || !also {
				continue
			}
			if m.merges[pair(left, right)] = int32(rank); len(m.merges) > maxMerges {
				panic(attempt.Failure{Err: invalid("tokenizer tokens", "make more than %d merges", maxMerges)})
			}
		}
	}
}

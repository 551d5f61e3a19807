package kvpolicy

import (
	"cmp"
	"slices"

	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/method"
)

// resnap compresses the cache as SnapKV does (arXiv 2404.14469, listing 1), at the end of prefill and again
// after every tokens generated since. Each time the newest obs tokens stay, and of the others the topk
// with the most votes: the attention of the last obs queries, pooled over neighbours. The other tokens
// leave one by one, the one with the fewest votes first, as new tokens need their slots. So a sequence
// never has more than topk, every and obs slots, and its answer may be endless.
//
// The marks of the tokens that leave are their scores: -1 for the last one, -2 for the one before it, and
// so on. Other scores are votes. So they follow from the prompt and the generated tokens alone, and a
// lost cache is replayed to the same bits. In decode the softmax runs over the slots that a query
// reads.
var resnap = method.Method{Name: "resnap", Params: []method.Param{method.Size("topk", 704, 0), method.Size("every", 256, 1),
	method.Size("obs", 64, 1), method.Odd("pool", 7)}, Parts: func(v []int) kvcache.Parts {
	of := windowVotes(v[2], v[3], ofPrefix, 0, v[2])
	cut := recut{votes: of, topk: v[0], every: v[1], size: v[0] + v[1] + v[2]}
	return kvcache.Parts{Recent: v[2], TopK: v[0] + v[1], Compressor: cut, Needs: of.needs, Eviction: cut}
}}

// recut is the compressor and the eviction.
type recut struct {
	votes
	topk, every int
	size        int // slots
}

// Score marks the tokens of a prompt beyond the topk with the most votes, if it fills the slots.
func (x recut) Score(s *kvcache.Statistics) []float32 {
	scores := make([]float32, s.Prompt)
	if s.Prompt >= x.size {
		candidates := s.Prompt - x.needs.Window
		mark(scores[:candidates], x.votes.Score(s)[:candidates], x.topk, func(i int) int { return i })
	}
	return scores
}

// mark sets scores at the places of the votes beyond the topk highest: -1, -2 and so on. Of equals, the
// earlier is higher.
func mark(scores, votes []float32, topk int, place func(i int) int) {
	order := make([]int, len(votes))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Or(cmp.Compare(votes[b], votes[a]), a-b) })
	for rank, i := range order[min(topk, len(order)):] {
		scores[place(i)] = -float32(rank + 1)
	}
}

// Slots implements kvcache.Eviction.
func (x recut) Slots(tokens int) int { return min(tokens, x.size) }

// Slot implements kvcache.Eviction: the next free slot, or that of the lowest mark.
func (x recut) Slot(h *kvcache.Head, pos int) int {
	if pos < x.size {
		return pos
	}
	least := 0
	for slot, score := range h.Scores[:x.size] {
		if score < h.Scores[least] {
			least = slot
		}
	}
	return least
}

// Observe implements kvcache.Scored: it counts votes of the last queries before the next compression, and
// compresses when no mark is left.
func (x recut) Observe(h *kvcache.Head, attention []float32) {
	n := len(attention)
	scores, left := h.Scores[:n], x.size-n
	for _, score := range scores {
		if score < 0 {
			left++
		}
	}
	if left < x.needs.Window {
		for slot, a := range attention {
			if scores[slot] >= 0 {
				scores[slot] += a
			}
		}
	}
	if left > 0 {
		return
	}
	order := make([]int, n) // slots by position
	for slot := range order {
		order[slot] = slot
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(h.Positions[a], h.Positions[b]) })
	votes := make([]float32, n-x.needs.Window)
	for i := range votes {
		votes[i] = scores[order[i]]
	}
	clear(scores)
	mark(scores, pooled(votes, x.pool), x.topk, func(i int) int { return order[i] })
}

package kvpolicy

import (
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/method"
)

// h2o keeps heavy hitters: the newest tokens, and the topk others that received most attention,
// summed over all queries so far (H2O, arXiv 2306.14048).
//
// step=0 cuts once, at the end of prefill. Decode then overwrites the ring of the recent tokens and
// leaves the heavy hitters alone (slots [ring | top-K]). step=1 is the original, which keeps
// counting in decode: each new token takes the slot of the token with the least attention so far
// outside of the recent window.
var h2o = method.Method{Name: "h2o", Params: []method.Param{method.Size("recent", 512, 1), method.Size("topk", 512, 0),
	method.Flag("step")}, Parts: func(v []int) kvcache.Parts {
	p := kvcache.Parts{Recent: v[0], TopK: v[1], Compressor: received{}, Needs: kvcache.Needs{PromptAttention: true},
		Eviction: kvcache.Ring{Recent: v[0]}}
	if v[2] == 1 {
		p.Eviction = heavyHitters{lowestScore{recent: v[0], size: v[0] + v[1]}}
	}
	return p
}, Named: []method.Named{{Name: "paper", Settings: "recent=10%,topk=10%,step=1"}}} // a fifth of the prompt, half of it recent, section 5

// received scores a token by the attention that it received from the whole prompt.
type received struct{}

func (received) Score(s *kvcache.Statistics) []float32 { return s.Attention }

// heavyHitters evicts the token with the least attention so far.
type heavyHitters struct{ lowestScore }

// Observe implements Scored: attention accumulates.
func (heavyHitters) Observe(h *kvcache.Head, attention []float32) {
	for slot, a := range attention {
		h.Scores[slot] += a
	}
}

// lowestScore evicts the token with the lowest score among those older than the last recent-1. Of
// equals, the oldest is evicted.
type lowestScore struct{ recent, size int }

func (l lowestScore) Slots(tokens int) int { return min(tokens, l.size) }

// Slot implements Eviction: the next free slot, or that of the evicted token.
func (l lowestScore) Slot(h *kvcache.Head, pos int) int {
	if pos < l.size {
		return pos
	}
	best := -1
	for slot, score := range h.Scores[:l.size] {
		at := h.Positions[slot]
		if int(at) > pos-l.recent {
			continue
		}
		if best < 0 || score < h.Scores[best] || score == h.Scores[best] && at < h.Positions[best] {
			best = slot
		}
	}
	return best
}

package kvcache

import "fmt"

// TOVA keeps Size tokens; at every step the one that the newest query attends
// to least goes, whatever its age (TOVA, arXiv 2401.06104). Each KV head decides
// for itself, on the attention of its group; the paper averages all heads of a
// layer.
type TOVA struct{ Size int }

// Name implements Policy.
func (s TOVA) Name() string { return "tova" }

// Spec implements Policy.
func (s TOVA) Spec() string { return fmt.Sprintf("tova:size=%d", s.Size) }

// Needs implements Policy.
func (s TOVA) Needs() Needs { return Needs{Window: 1, DecodeAttention: true} }

// Identity implements Policy.
func (s TOVA) Identity() bool { return false }

// Slots implements Policy.
func (s TOVA) Slots(_, tokens int) int { return min(tokens, s.Size) }

// Keep implements Policy: the last query of the prompt decides.
func (s TOVA) Keep(e *Evidence) Kept { return keepScored(e, windowVotes(e, 1), 1, s.Size) }

// Write implements Policy: the newest token itself stays.
func (s TOVA) Write(h *Head, pos int) int { return evictLowest(h, pos, 1, s.Size) }

// Read implements Policy: every slot.
func (s TOVA) Read(*Head, []float32, []uint64) []uint64 { return nil }

// Observe implements Observer: only the newest query counts.
func (s TOVA) Observe(h *Head, attention []float32) { copy(h.Scores, attention) }

func parseTOVA(p *params) (Policy, error) {
	s := TOVA{Size: p.size("size", 1024, 2)}
	return s, p.done()
}

// keepScored keeps size prompt tokens, the newest `recent` among them and those
// with the highest scores, in order of position, with their scores.
func keepScored(e *Evidence, scores []float32, recent, size int) Kept {
	recent = min(recent, e.Prompt)
	kept := topK(scores, 0, e.Prompt-recent, size-recent)
	for pos := e.Prompt - recent; pos < e.Prompt; pos++ {
		kept = append(kept, int32(pos))
	}
	k := Kept{Positions: kept, Scores: make([]float32, len(kept))}
	for i, pos := range kept {
		k.Scores[i] = scores[pos]
	}
	return k
}

// evictLowest is the slot for the token at pos: the next free one, or that of
// the token with the lowest score among those older than the last recent-1 and
// than the running step, whose tokens have no score yet; the oldest of equals goes.
func evictLowest(h *Head, pos, recent, size int) int {
	if pos < size {
		return pos
	}
	limit := min(pos-recent, h.Tokens-1)
	if pos-h.Tokens >= size { // a step of more tokens than there are slots
		limit = pos - recent
	}
	best := -1
	for slot, score := range h.Scores[:size] {
		at := h.Positions[slot]
		if int(at) > limit {
			continue
		}
		if best < 0 || score < h.Scores[best] || score == h.Scores[best] && at < h.Positions[best] {
			best = slot
		}
	}
	return best
}

package kvcache

import "fmt"

// H2O keeps heavy hitters: the Recent newest tokens, and the TopK others that
// received most attention, summed over all queries so far (H2O, arXiv
// 2306.14048).
//
// Step false: one cut at the end of prefill; decode then turns the ring of the
// recent tokens and leaves the heavy hitters alone (slots [ring | top-K]).
// Step true: the original, which goes on counting in decode: each new token
// takes the slot of the token outside the recent window that has the least
// attention so far.
type H2O struct {
	Recent, TopK int
	Step         bool
}

// Name implements Policy.
func (s H2O) Name() string { return "h2o" }

// Spec implements Policy.
func (s H2O) Spec() string {
	step := 0
	if s.Step {
		step = 1
	}
	return fmt.Sprintf("h2o:recent=%d,topk=%d,step=%d", s.Recent, s.TopK, step)
}

// Needs implements Policy.
func (s H2O) Needs() Needs { return Needs{PromptAttention: true, DecodeAttention: s.Step} }

// Identity implements Policy.
func (s H2O) Identity() bool { return false }

func (s H2O) cut() SnapStream { return SnapStream{Recent: s.Recent, TopK: s.TopK} }

// Slots implements Policy.
func (s H2O) Slots(prompt, tokens int) int {
	if s.Step {
		return min(tokens, s.Recent+s.TopK)
	}
	return s.cut().Slots(prompt, tokens)
}

// Keep implements Policy.
func (s H2O) Keep(e *Evidence) Kept {
	if s.Step {
		return keepScored(e, e.Attention, s.Recent, s.Recent+s.TopK)
	}
	kept := s.cut().stream().Keep(e)
	if k := s.cut().validTopK(e.Prompt); k > 0 {
		kept.Positions = append(kept.Positions, topK(e.Attention, 0, e.Prompt-s.Recent, k)...)
	}
	return kept
}

// Write implements Policy.
func (s H2O) Write(h *Head, pos int) int {
	if s.Step {
		return evictLowest(h, pos, s.Recent, s.Recent+s.TopK)
	}
	return s.cut().Write(h, pos)
}

// Read implements Policy: every slot.
func (s H2O) Read(*Head, []float32, []uint64) []uint64 { return nil }

// Observe implements Observer: attention accumulates.
func (s H2O) Observe(h *Head, attention []float32) {
	if !s.Step {
		return
	}
	for slot, a := range attention {
		h.Scores[slot] += a
	}
}

func parseH2O(p *params) (Policy, error) {
	s := H2O{Recent: p.size("recent", 512, 1), TopK: p.size("topk", 512, 0), Step: p.flag("step")}
	return s, p.done()
}

package kvcache

import "fmt"

// SnapKV keeps the last Obs prompt tokens and the TopK tokens before them that
// these attend to most, pooled (SnapKV, arXiv 2404.14469). It compresses the
// prompt only: every generated token is kept, in a slot of its own.
type SnapKV struct {
	TopK int // prompt tokens chosen by votes
	Obs  int // observation window, kept whole
	Pool int // width of the average pooling, odd; 1: none
}

// Name implements Policy.
func (s SnapKV) Name() string { return "snapkv" }

// Spec implements Policy.
func (s SnapKV) Spec() string {
	return fmt.Sprintf("snapkv:topk=%d,obs=%d,pool=%d", s.TopK, s.Obs, s.Pool)
}

// Needs implements Policy.
func (s SnapKV) Needs() Needs { return Needs{Window: s.Obs} }

// Identity implements Policy.
func (s SnapKV) Identity() bool { return false }

// Slots implements Policy.
func (s SnapKV) Slots(prompt, tokens int) int {
	return min(prompt, s.TopK+s.Obs) + tokens - prompt
}

// Keep implements Policy: equations 1 and 2, the window after the chosen tokens.
func (s SnapKV) Keep(e *Evidence) Kept {
	window := min(s.Obs, e.Prompt)
	var kept []int32
	if k := min(s.TopK, e.Prompt-window); k > 0 {
		kept = topK(pooled(windowVotes(e, s.Obs), s.Pool), 0, e.Prompt-window, k)
	}
	for pos := e.Prompt - window; pos < e.Prompt; pos++ {
		kept = append(kept, int32(pos))
	}
	return Kept{Positions: kept}
}

// Write implements Policy: the next free slot.
func (s SnapKV) Write(h *Head, pos int) int { return s.Slots(h.Prompt, pos) }

// Read implements Policy: every slot.
func (s SnapKV) Read(*Head, []float32, []uint64) []uint64 { return nil }

func parseSnapKV(p *params) (Policy, error) {
	s := SnapKV{TopK: p.size("topk", 960, 0), Obs: p.size("obs", 64, 1), Pool: p.odd("pool", 7)}
	return s, p.done()
}

package kvcache

import "fmt"

// SnapStream keeps, in this order of slots, the first Sink tokens, a ring of the
// Recent newest ones, and the TopK prompt tokens between them that the last Obs
// queries attend to most (SnapStream, arXiv 2511.03092, section 3):
//
//	| sink | ring of recent | top-K |
//
// Prefill makes the ring by listing 3 and picks the top-K by listing 6; decode
// writes one row in place by listing 5. Positions are the original ones.
//
//	case 1, L <  Sink+Recent: no token is evicted, the top-K section is empty
//	case 2, L >= Sink+Recent: valid_topk = min(L-Sink-Recent, TopK) of it are kept
//
// Where the paper masks the rest of a static top-K section, ours is as long as
// valid_topk: no slot is there that no token fills.
type SnapStream struct {
	Sink, Recent, TopK int // tokens
	Obs                int // observation window, queries
	Pool               int // width of the average pooling, odd; 1: none
	name               string
}

// Name is "snapstream", or "sage" for the special case of SAGE-KV.
func (s SnapStream) Name() string {
	if s.name != "" {
		return s.name
	}
	return "snapstream"
}

// Spec implements Policy.
func (s SnapStream) Spec() string {
	if s.name == sageName {
		return fmt.Sprintf("%s:sink=%d,recent=%d,topk=%d", s.name, s.Sink, s.Recent, s.TopK)
	}
	return fmt.Sprintf("snapstream:sink=%d,recent=%d,topk=%d,obs=%d,pool=%d", s.Sink, s.Recent, s.TopK, s.Obs, s.Pool)
}

// Needs implements Policy.
func (s SnapStream) Needs() Needs { return Needs{Window: s.Obs} }

// Identity implements Policy.
func (s SnapStream) Identity() bool { return false }

// stream is the policy of the sink and the ring.
func (s SnapStream) stream() Streaming { return Streaming{Sink: s.Sink, Recent: s.Recent} }

// validTopK is the number of top-K tokens after a prompt (listing 4).
func (s SnapStream) validTopK(prompt int) int {
	return min(max(prompt-s.Sink-s.Recent, 0), s.TopK)
}

// Slots implements Policy.
func (s SnapStream) Slots(prompt, tokens int) int {
	return s.stream().Slots(prompt, tokens) + s.validTopK(prompt)
}

// Keep implements Policy: listing 4.
func (s SnapStream) Keep(e *Evidence) Kept {
	kept := s.stream().Keep(e)
	if k := s.validTopK(e.Prompt); k > 0 {
		votes := pooled(windowVotes(e, s.Obs), s.Pool)
		kept.Positions = append(kept.Positions, topK(votes, s.Sink, e.Prompt-s.Recent, k)...)
	}
	return kept
}

// Write implements Policy: equation 4, listing 5.
func (s SnapStream) Write(h *Head, pos int) int { return s.stream().Write(h, pos) }

// Run implements Runner.
func (s SnapStream) Run(pos, m int) (slot, n int) { return s.stream().Run(pos, m) }

// Read implements Policy: every slot.
func (s SnapStream) Read(*Head, []float32, []uint64) []uint64 { return nil }

func parseSnapStream(p *params) (Policy, error) {
	s := SnapStream{Sink: p.size("sink", 4, 0), Recent: p.size("recent", 1020, 1), TopK: p.size("topk", 1024, 0),
		Obs: p.size("obs", 64, 1), Pool: p.odd("pool", 7)}
	return s, p.done()
}

const sageName = "sage"

// Sage is SAGE-KV (arXiv 2503.08879) in the same slots: the last prompt token
// alone votes, without pooling.
func Sage(sink, recent, topK int) SnapStream {
	return SnapStream{Sink: sink, Recent: recent, TopK: topK, Obs: 1, Pool: 1, name: sageName}
}

func parseSage(p *params) (Policy, error) {
	s := Sage(p.size("sink", 4, 0), p.size("recent", 64, 1), p.size("topk", 956, 0))
	return s, p.done()
}

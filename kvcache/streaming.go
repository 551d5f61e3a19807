package kvcache

import "fmt"

// Streaming keeps the first Sink tokens and the Recent newest ones, StreamingLLM
// with the ring buffer of SnapStream section 3.2.1: slots [sink | ring], a token
// keeps its original position (its key is never rotated again), and the newest
// overwrites the oldest in place (listing 5).
//
// Efficient Streaming Language Models with Attention Sinks, arXiv 2309.17453.
type Streaming struct {
	Sink   int // tokens kept for ever from the start, >= 0
	Recent int // size of the ring, >= 1
}

func (s Streaming) Name() string   { return "streaming" }
func (s Streaming) Spec() string   { return fmt.Sprintf("streaming:sink=%d,recent=%d", s.Sink, s.Recent) }
func (s Streaming) Needs() Needs   { return Needs{} }
func (s Streaming) Identity() bool { return false }

func (s Streaming) Slots(_, tokens int) int { return min(tokens, s.Sink+s.Recent) }

// Keep fills the sink and the ring as if every prompt token had been written in
// turn; listing 3 gathers the same rows from two ranges.
func (s Streaming) Keep(e *Evidence) Kept {
	kept := make([]int32, s.Slots(e.Prompt, e.Prompt))
	for pos := 0; pos < min(s.Sink, e.Prompt); pos++ {
		kept[pos] = int32(pos)
	}
	for pos := max(s.Sink, e.Prompt-s.Recent); pos < e.Prompt; pos++ {
		kept[s.slot(pos)] = int32(pos)
	}
	return Kept{Positions: kept}
}

func (s Streaming) Write(_ *Head, pos int) int { return s.slot(pos) }

// Run implements Runner: until the sink is full, then until the ring wraps.
func (s Streaming) Run(pos, m int) (slot, n int) {
	slot = s.slot(pos)
	if slot < s.Sink {
		return slot, min(m, s.Sink-slot)
	}
	return slot, min(m, s.Sink+s.Recent-slot)
}

func (s Streaming) Read(*Head, []float32, []uint64) []uint64 { return nil }

// slot is listing 5.
func (s Streaming) slot(pos int) int {
	if pos < s.Sink {
		return pos
	}
	return s.Sink + (pos-s.Sink)%s.Recent
}

func parseStreaming(p *params) (Policy, error) {
	s := Streaming{Sink: p.size("sink", 4, 0), Recent: p.size("recent", 1020, 1)}
	return s, p.done()
}

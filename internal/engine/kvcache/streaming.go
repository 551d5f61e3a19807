package kvcache

import "fmt"

// Ring is StreamingLLM (arXiv 2309.17453) with the ring buffer of SnapStream (arXiv 2511.03092),
// section 3.2.1: slots [sink | ring]. A token keeps its original position (its key is never rotated
// again), and the newest overwrites the oldest in place.
type Ring struct {
	Sink   int // first tokens that are always kept, >= 0
	Recent int // size of the ring, >= 1
}

func (r Ring) Slots(tokens int) int { return min(tokens, r.Sink+r.Recent) }

// Slot implements Eviction: listing 5.
func (r Ring) Slot(_ *Head, pos int) int {
	if pos < r.Sink {
		return pos
	}
	return r.Sink + (pos-r.Sink)%r.Recent
}

// Run implements Runner: until the sink is full, then until the ring wraps.
func (r Ring) Run(pos, m int) (slot, n int) {
	slot = r.Slot(nil, pos)
	if slot < r.Sink {
		return slot, min(m, r.Sink-slot)
	}
	return slot, min(m, r.Sink+r.Recent-slot)
}

// Streaming keeps the first sink tokens and the newest recent ones.
func Streaming(sink, recent int) *Policy {
	spec := fmt.Sprintf("streaming:sink=%d,recent=%d", sink, recent)
	return Compose("streaming", spec, Parts{Sink: sink, Recent: recent, Eviction: Ring{sink, recent}})
}

package kvcache

import "github.com/shoal-llm/shoal/internal/engine/kvcache/topk"

// Parts.Ring keeps the newest tokens after those of the prompt. The slots are [prompt | ring]: a new token takes
// the slot of the oldest one in the ring. Under a Selector the index has the prompt's slots only, so it
// never changes in decode. A query selects from the prompt as if no token followed it, and reads the whole
// ring.

// selectable returns the number of slots from which a query selects: all, or with a ring only the prompt's.
func (p *Policy) selectable(prompt, slots int) int {
	if p.Ring > 0 {
		return min(slots, p.Slots(prompt, prompt))
	}
	return slots
}

// planeSlots returns the number of slots in a plane after a number of tokens.
func (p *Policy) planeSlots(plane, prompt, tokens int) int {
	slots := p.Slots(prompt, tokens)
	if plane == indexPlane {
		return p.selectable(prompt, slots)
	}
	return slots
}

// ringPosition returns the position of the token in a slot after a number of tokens, or -1 if there is none. The
// policy must keep the prompt in place.
func (p *Policy) ringPosition(prompt, tokens, slot int) int {
	switch {
	case slot < prompt || p.Ring == 0:
		return slot
	case slot >= tokens:
		return -1
	}
	return slot + (tokens-1-slot)/p.Ring*p.Ring
}

// withRingPages appends the ring's pages to a selection of the prompt's pages, up to slot n. nil means that all
// pages are read.
func withRingPages(pages []int32, page, n int) []int32 {
	if pages == nil {
		return nil
	}
	for next := pages[len(pages)-1] + 1; int(next)*page < n; next++ {
		pages = append(pages, next)
	}
	return pages
}

// withRingSlots adds the slots [from, n) to a selection. nil means that all slots are read.
func withRingSlots(mask []uint64, from, n int) []uint64 {
	if mask == nil {
		return nil
	}
	for len(mask)*64 < n {
		mask = append(mask, 0)
	}
	topk.Mark(mask, from, n)
	return mask
}

package kvcache

import (
	"fmt"

	"shoal/tensor"
)

// Window is the rule of a layer whose attention sees only the newest Size tokens
// (sliding-window attention, Mistral 7B, arXiv 2310.06825, section 2): position i sees
// i-Size+1 to i. It belongs to the model, not to the request: such a layer keeps its
// window whole under every policy, and the policy acts on the layers that see
// everything (Geometry.Rule).
//
// The slots are a ring of whole blocks, one more than the window fills: position p lies
// in slot p mod the ring, in place, and no row ever moves. So a window begins and ends
// in the blocks in which it lay while the prompt was read, and attention walks them
// in the same order (Store.View): prefill and decode give the same bits, and a policy
// that keeps every token still is rebuilt by prefill.
type Window struct{ Size int }

// ring is the number of slots: whole blocks around any window.
func (w Window) ring() int { return int(blocksOf(w.Size-1)+1) * tensor.BlockSlots }

func (w Window) stream() Streaming { return Streaming{Recent: w.ring()} }

func (w Window) Name() string                             { return "window" }
func (w Window) Spec() string                             { return fmt.Sprintf("window:size=%d", w.Size) }
func (w Window) Needs() Needs                             { return Needs{} }
func (w Window) Identity() bool                           { return false }
func (w Window) Slots(prompt, tokens int) int             { return w.stream().Slots(prompt, tokens) }
func (w Window) Keep(e *Evidence) Kept                    { return w.stream().Keep(e) }
func (w Window) Write(h *Head, pos int) int               { return w.stream().Write(h, pos) }
func (w Window) Run(pos, m int) (slot, n int)             { return w.stream().Run(pos, m) }
func (w Window) Read(*Head, []float32, []uint64) []uint64 { return nil } // see Store.View

// view are the blocks that hold the window up to position newest, in the order of
// their positions, the number of their slots, and the slots of the window. It fills
// order and mask.
func (w Window) view(blocks, order [][]byte, newest int, mask []uint64) ([][]byte, int, []uint64) {
	const size = tensor.BlockSlots
	oldest := max(0, newest-w.Size+1)
	first := oldest / size
	order = order[:0]
	for b := first; b <= newest/size; b++ {
		order = append(order, blocks[b%(w.ring()/size)])
	}
	n := newest + 1 - first*size
	mask = mask[:(n+63)/64]
	for i := range mask {
		mask[i] = ^uint64(0)
	}
	mask[0] <<= oldest % size
	return order, n, mask
}

// Rule is what layer goes by in a sequence under policy p: the window of the layer, if
// the model gives it one.
func (g Geometry) Rule(layer int, p Policy) Policy {
	if layer < len(g.Windows) && g.Windows[layer] > 0 {
		return Window{g.Windows[layer]}
	}
	return p
}

// rules are the distinct rules of the layers and how many layers go by each.
func (g Geometry) rules(p Policy) (rules []Policy, layers []int64) {
	rules, layers = []Policy{p}, []int64{int64(g.Layers)}
next:
	for _, size := range g.Windows {
		if size == 0 {
			continue
		}
		layers[0]--
		for i, r := range rules[1:] {
			if r == (Window{size}) {
				layers[i+1]++
				continue next
			}
		}
		rules, layers = append(rules, Window{size}), append(layers, 1)
	}
	return rules, layers
}

package kvcache

import (
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// A layer whose attention sees only the newest tokens (sliding-window attention, Mistral
// 7B, arXiv 2310.06825, section 2) has a window in Geometry.Windows: position i sees
// i-window+1 to i. It belongs to the model, not to the request: such a layer keeps its
// window whole under every policy, and the policy acts on the layers that see everything.
//
// The slots are a ring of whole blocks, one more than the window fills: position p lies
// in slot p mod the ring, in place, and no row ever moves. So a window begins and ends
// in the blocks in which it lay while the prompt was read, and attention walks them
// in the same order: prefill and decode give the same bits, and a policy that keeps every
// token still is rebuilt by prefill.

// windowRing is the number of slots: whole blocks around any window.
func windowRing(window int) int { return int(blocksOf(window-1)+1) * tensor.BlockSlots }

// window of a layer, 0: it sees everything.
func (g Geometry) window(layer int) int {
	if layer < len(g.Windows) {
		return g.Windows[layer]
	}
	return 0
}

// unwindowed is the number of layers that see everything.
func (g Geometry) unwindowed() int {
	n := g.Layers
	for layer := range g.Layers {
		if g.window(layer) > 0 {
			n--
		}
	}
	return n
}

// Rule is what layer goes by in a sequence under policy p: the ring of its window, if the
// model gives it one.
func (g Geometry) Rule(layer int, p *Policy) *Policy {
	if w := g.window(layer); w > 0 {
		ring := Ring{Recent: windowRing(w)}
		return Compose("window", "window", Parts{Recent: ring.Recent, Eviction: ring})
	}
	return p.Layer(layer)
}

// rule of some layers of a model.
type rule struct {
	*Policy
	window int
	layers int64
}

func (g Geometry) rules(p *Policy) []rule {
	if g.Windows == nil && p.Skip == 0 {
		return []rule{{p, 0, int64(g.Layers)}}
	}
	var rules []rule
next:
	for layer := range g.Layers {
		window, of := g.window(layer), p.Layer(layer)
		for i, r := range rules {
			if r.window == window && (window > 0 || r.Policy == of) {
				rules[i].layers++
				continue next
			}
		}
		rules = append(rules, rule{g.Rule(layer, p), window, 1})
	}
	return rules
}

// windowView are the blocks that hold the window up to position newest, in the order of
// their positions, the number of their slots, and the slots of the window. The list begins
// where a run of the text does (tensor.RunBlocks), with nil for the blocks before the
// window, so that the runs are those of the prompt. It fills order and mask.
func windowView(window int, blocks, order [][]byte, newest int, mask []uint64) ([][]byte, int, []uint64) {
	const size = tensor.BlockSlots
	oldest := max(0, newest-window+1)
	begin, first := oldest/tensor.RunSlots*tensor.RunBlocks, oldest/size
	order, mask = order[:0], mask[:newest/size+1-begin]
	for b := begin; b <= newest/size; b++ {
		if mask[b-begin] = 0; b < first {
			order = append(order, nil)
			continue
		}
		mask[b-begin] = ^uint64(0)
		order = append(order, blocks[b%(windowRing(window)/size)])
	}
	mask[first-begin] <<= oldest % size
	return order, newest + 1 - begin*size, mask
}

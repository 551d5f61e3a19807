package kvcache

import (
	"github.com/shoal-llm/shoal/internal/engine/kvcache/window"
)

// A layer with sliding-window attention (Mistral 7B, arXiv 2310.06825, section 2) has a window in
// Geometry.Windows: position i attends to i-window+1 to i, or with Geometry.Chunked to the tokens of
// its chunk up to i (Llama 4). The window belongs to the model, not to the request. Such a layer keeps
// its whole window under every policy, and the policy applies to the other layers.
//
// The slots are a ring of whole blocks, one more than the window fills. Position p is in slot p mod
// the ring, and rows never move. So a window starts and ends in the same blocks as in prefill, and
// attention reads them in the same order. Prefill and decode give the same bits, and a cache whose
// policy keeps every token can still be rebuilt by prefill.

// window returns the window of a layer; 0: none.
func (g Geometry) window(layer int) int {
	if layer < len(g.Windows) {
		return g.Windows[layer]
	}
	return 0
}

// unwindowed returns the number of layers without a window.
func (g Geometry) unwindowed() int {
	n := g.Layers
	for layer := range g.Layers {
		if g.window(layer) > 0 {
			n--
		}
	}
	return n
}

// Rule returns the policy of a layer in a sequence under policy p: the ring of its window, if it has
// one.
func (g Geometry) Rule(layer int, p *Policy) *Policy {
	if w := g.window(layer); w > 0 {
		ring := Ring{Recent: window.Slots(w)}
		return Compose("window", "window", Parts{Recent: ring.Recent, Eviction: ring})
	}
	return g.layer(layer, p)
}

// layer returns the policy of a layer without a window.
func (g Geometry) layer(layer int, p *Policy) *Policy {
	switch {
	case layer < p.Skip && p.skipped != nil:
		return p.skipped
	case layer < p.Skip:
		return full
	case p.layers == nil:
		return p
	}
	place := 0
	for i := range layer {
		if g.window(i) == 0 {
			place++
		}
	}
	return p.at(place, g.unwindowed())
}

// rule is the policy of some layers of a model.
type rule struct {
	*Policy
	window int
	layers int64
}

// fewRules is the number of rules of most models: of layers with a window, and of the others.
const fewRules = 2

// rules appends the rules of all layers to an empty slice.
func (g Geometry) rules(p *Policy, rules []rule) []rule {
	if g.Windows == nil && p.Skip == 0 && p.layers == nil {
		return append(rules, rule{p, 0, int64(g.Layers)})
	}
next:
	for layer := range g.Layers {
		window, of := g.window(layer), g.layer(layer, p)
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

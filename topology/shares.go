package topology

import (
	"fmt"
	"math"
	"slices"
)

// shareSlack is the factor by which a node's claim may exceed its measured speed (a busy machine
// can halve a measurement) and the other nodes' shares.
const shareSlack = 2

// shares returns the nodes' shares: the operator's value, otherwise the node's own claim within
// bounds. The bounds keep a mistyped or false claim from moving most of the model to one node. Only
// proportions matter.
func (a *Authority) shares(part []Node) []float64 {
	known := make([]float64, len(part))
	for i, n := range part {
		known[i] = claimed(n)
		if s, ok := a.cfg.Shares[n.ID]; ok {
			known[i] = s
		}
	}
	out := slices.Clone(known)
	for i, n := range part {
		if _, ok := a.cfg.Shares[n.ID]; !ok && len(part) > 1 {
			others := slices.Delete(slices.Clone(known), i, i+1)
			slices.Sort(others)
			if most := shareSlack * others[(len(others)-1)/2]; out[i] > most {
				out[i] = most
				a.capped[n.ID] = fmt.Sprintf("it claims a share of %.4g and gets %.4g, %v times the median of the others", known[i], most, shareSlack)
			}
		}
		out[i] = a.slowed(n, out[i])
	}
	return out
}

// claimed returns a node's claim, limited by its measured speed. 0: it claims nothing.
func claimed(n Node) float64 {
	valid := func(x float64) bool { return x > 0 && !math.IsInf(x, 1) }
	share := n.Share
	if !valid(share) {
		share = n.Speed
	} else if valid(n.Speed) {
		share = min(share, shareSlack*n.Speed)
	}
	if !valid(share) {
		return 1
	}
	return share
}

// Capped lists the nodes of the placement with a smaller share than they claim, and why.
func (a *Authority) Capped() map[string]string { return a.capped }

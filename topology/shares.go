package topology

import (
	"fmt"
	"math"
	"slices"
)

// shareSlack is how many times what is known a node may say about itself: what it
// measured, which a busy machine halves, and what the others have.
const shareSlack = 2

// shares are what nodes are to have: what the operator said of a node, else what it says
// of itself, within bounds. A number that somebody mistyped, or made up, does not bring
// most of the model to one node. Only proportions matter.
func (a *Authority) shares(part []Node) []float64 {
	known := make([]float64, len(part))
	for i, n := range part {
		known[i] = said(n)
		if s, ok := a.cfg.Shares[n.ID]; ok {
			known[i] = s
		}
	}
	out := slices.Clone(known)
	a.capped = map[string]string{}
	for i, n := range part {
		if _, ok := a.cfg.Shares[n.ID]; !ok && len(part) > 1 {
			others := slices.Delete(slices.Clone(known), i, i+1)
			slices.Sort(others)
			if most := shareSlack * others[(len(others)-1)/2]; out[i] > most {
				out[i] = most
				a.capped[n.ID] = fmt.Sprintf("it says %.4g and counts as %.4g, %v times the median of the others", known[i], most, shareSlack)
			}
		}
		out[i] = a.slowed(n, out[i])
	}
	return out
}

// said is what a node claims, not far beyond what it measured. 0 is nothing said.
func said(n Node) float64 {
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

// Capped lists the nodes of the placement that have less than they say, and why.
func (a *Authority) Capped() map[string]string { return a.capped }

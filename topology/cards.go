package topology

import "slices"

// Cards chooses the nodes that compute together when some have a graphics card.
type Cards string

const (
	// CardAlone: one card computes, and the other nodes are spares. Exchanges with others take longer
	// than a card's own work, so this is the fastest for a model that fits.
	CardAlone Cards = "alone"
	// CardsTogether: all cards compute, and the other nodes are spares.
	CardsTogether Cards = "together"
	// CardsAndCPUs: all nodes compute.
	CardsAndCPUs Cards = "all"
)

// of returns the nodes that compute, in order. Without a card these are all nodes.
func (c Cards) of(nodes []Node) []Node {
	at := slices.IndexFunc(nodes, onCard)
	switch {
	case at < 0 || c == CardsAndCPUs:
		return nodes
	case c == CardsTogether:
		return slices.DeleteFunc(slices.Clone(nodes), func(n Node) bool { return !onCard(n) })
	}
	return nodes[at : at+1]
}

func onCard(n Node) bool { return n.Device != "" }

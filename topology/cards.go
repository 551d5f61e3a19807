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

// CardRows are the possible numbers of tokens in a step of cards.
var CardRows = [...]int{512, 1024, 2048}

// CardStep returns the most tokens of a step that all nodes compute on cards in a short time; 0: some node has no
// card, or does not report it.
func CardStep(nodes []Node) int {
	if len(nodes) == 0 {
		return 0
	}
	least := nodes[0].DeviceStep
	for _, n := range nodes {
		if !onCard(n) {
			return 0
		}
		least = min(least, n.DeviceStep)
	}
	return least
}

// ShortCardStep returns the largest of CardRows up to most that a card of a speed in multiply-adds a second computes
// in a short step, or the smaller one of the first and most. Decode rows wait for the whole step.
func (s *Shape) ShortCardStep(speed float64, most int) int {
	step := min(CardRows[0], most)
	for _, rows := range CardRows {
		if rows <= most && s.Weights()*float64(s.Layers*rows) <= shortSeconds*speed {
			step = rows
		}
	}
	return step
}

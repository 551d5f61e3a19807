package coordinator

import (
	"cmp"
	"testing"

	"github.com/shoal-llm/shoal/internal/proto"
	"github.com/shoal-llm/shoal/topology"
)

// Two micro-batches need two nodes, all of which support them.
func TestMaxMicroBatches(t *testing.T) {
	for name, c := range map[string]struct {
		nodes []topology.Node
		want  int
	}{
		"alone":        {make([]topology.Node, 1), 1},
		"several":      {make([]topology.Node, 3), 2},
		"new builds":   {[]topology.Node{{Wire: 8}, {Wire: 9}}, 2},
		"an old build": {[]topology.Node{{Wire: 8}, {Wire: 7}}, 1},
		"a card":       {[]topology.Node{{}, {Device: "cuda:0 of a test"}}, 1},
	} {
		if got := (&Group{Nodes: c.nodes}).MaxMicroBatches(); got != c.want {
			t.Errorf("%s: %d micro-batches, want %d", name, got, c.want)
		}
	}
}

// Groups of cards choose the tokens of a step and of a chunk, unless the operator has set them.
func TestStepTokensOfCards(t *testing.T) {
	card, cpu := topology.Node{Device: "cuda:0 of a test", DeviceStep: 2048}, topology.Node{}
	for name, c := range map[string]struct {
		nodes       []topology.Node
		set         int // by the operator; 0: not set
		step, chunk int
	}{
		"a card":                {[]topology.Node{card}, 0, 2048, 2048},
		"a card, fewer set":     {[]topology.Node{card}, 300, 300, 300},
		"a card, more set":      {[]topology.Node{card}, 4096, 4096, 2048},
		"a CPU":                 {[]topology.Node{cpu}, 0, 512, 256},
		"a card and a CPU":      {[]topology.Node{card, cpu}, 0, 512, 256},
		"a CPU, more are set":   {[]topology.Node{cpu}, 1024, 1024, 256},
		"an old build's card":   {[]topology.Node{{Device: "cuda:0"}}, 0, 512, 256},
		"cards, and one slower": {[]topology.Node{card, {Device: "cuda:0", DeviceStep: 1024}}, 0, 1024, 1024},
	} {
		authority := topology.AuthorityConfig{Shape: topology.Shape{Hidden: 64, Layers: 1}}
		d := &Director{cfg: Config{Authority: authority,
			Models: []Model{{Load: &proto.LoadRequest{MaxStepTokens: uint32(cmp.Or(c.set, 512))}, CardSteps: c.set == 0}}}}
		g := &Group{Nodes: c.nodes}
		if step, chunk := d.StepTokens(g), d.ChooseChunk(g); step != c.step || chunk != c.chunk {
			t.Errorf("%s: %d tokens a step and %d a chunk, want %d and %d", name, step, chunk, c.step, c.chunk)
		}
	}
}

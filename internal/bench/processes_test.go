package bench

import (
	"strings"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/client/wire"
	"github.com/shoal-llm/shoal/cluster"
	"github.com/shoal-llm/shoal/topology"
)

// Figures are invalid if the cluster lost a node, or if steps lacked a sequence or included
// prompts.
func TestSteady(t *testing.T) {
	start := time.Now()
	lost := func(at time.Duration) []wire.ClusterEvent {
		return []wire.ClusterEvent{
			{At: start.Add(-time.Minute), Kind: wire.EventServing},
			{At: start.Add(at), Kind: topology.KindLost, Node: "b", Reason: "gone", Cost: &wire.Cost{}},
			{At: start.Add(time.Hour), Kind: wire.EventNodeUp, Node: "b"},
		}
	}
	for _, c := range []struct {
		name        string
		events      []wire.ClusterEvent
		steps, rows uint64
		want        string
	}{
		{"steady", nil, 62, 62 * 16, ""},
		{"a plan that began and one that ended", nil, 62, 70 * 16, ""},
		{"a node lost before", lost(-time.Second), 62, 62 * 16, ""},
		{"a node lost", lost(time.Second), 62, 62 * 16, "node_lost b (gone)"},
		{"without some", nil, 200, 150 * 16, "200 steps had 2400 rows, not 3200"},
		{"with prompts", nil, 62, 1625, "62 steps had 1625 rows, not 992"},
	} {
		err := steady(c.events, start, cluster.StepTotals{Steps: c.steps, Rows: c.rows}, 16)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}

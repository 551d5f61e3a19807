package cluster_test

import (
	"slices"
	"testing"

	"github.com/shoal-llm/shoal/client/wire"
)

// TestAuditCheck falsifies the state of a cluster: the audit must detect each falsification.
func TestAuditCheck(t *testing.T) {
	good := func() []wire.ClusterState {
		node := func(id string) wire.NodeState {
			return wire.NodeState{ID: id, Share: 0.5, KVUsedBytes: 10, KVReserved: 20, KVBudgetBytes: 20,
				Goroutines: 50, OpenFiles: 20, Subscriptions: 9}
		}
		store := &wire.StoreState{Term: 1}
		later := &wire.StoreState{Term: 2}
		return []wire.ClusterState{
			{},
			{Epoch: 1, StepRows: 5, WireBytes: 50, Store: store, Nodes: []wire.NodeState{node("a"), node("b")}},
			{Epoch: 1, StepRows: 7, WireBytes: 70, Store: store, Nodes: []wire.NodeState{node("a"), node("b")}},
			{Epoch: 2, StepRows: 1, WireBytes: 10, Store: later, Nodes: []wire.NodeState{node("a"), node("c")}},
			{Epoch: 0, StepRows: 1, WireBytes: 10, Store: later, Nodes: []wire.NodeState{node("a")}},
			{Epoch: 2, StepRows: 3, WireBytes: 30, Store: later, Nodes: []wire.NodeState{node("a"), node("c")}},
		}
	}
	play := func(states []wire.ClusterState) *audit {
		a := newAudit()
		for _, s := range states {
			a.sample(s)
		}
		end := states[len(states)-1]
		end.Nodes = slices.Clone(end.Nodes)
		for i := range end.Nodes {
			end.Nodes[i].KVUsedBytes = 0
		}
		a.returned(states[2], end)
		return a
	}
	if a := play(good()); a.names() != nil || a.rows != 10 || a.wire != 100 {
		t.Fatalf("a good run: %v broken, %d rows, %d bytes; want none, 10 and 100", a.broken, a.rows, a.wire)
	}
	for _, x := range []struct {
		name   string
		doctor func(s []wire.ClusterState)
	}{
		{"I5", func(s []wire.ClusterState) { s[2].Nodes[1].KVUsedBytes = 21 }},
		{"I5", func(s []wire.ClusterState) { s[3].Nodes[0].KVReserved = 21 }},
		{"I6", func(s []wire.ClusterState) { s[5].Nodes[0].Goroutines = 90 }},
		{"I6", func(s []wire.ClusterState) { s[5].Nodes[1].OpenFiles = 90 }},
		{"I6", func(s []wire.ClusterState) { s[5].Nodes[1].Subscriptions = 10 }},
		{"I7", func(s []wire.ClusterState) { s[5].Epoch = 1 }},
		{"I7", func(s []wire.ClusterState) { s[2].Nodes[1].ID = "c" }},
		{"I7", func(s []wire.ClusterState) { s[5].Store = &wire.StoreState{Term: 1} }},
	} {
		s := good()
		x.doctor(s)
		if got := play(s).names(); !slices.Equal(got, []string{x.name}) {
			t.Errorf("a run that violates %s gives the findings %v", x.name, got)
		}
	}
}

package store

import (
	"encoding/json"
	"testing"

	"github.com/shoal-llm/shoal/internal/wire/wiretest"
	"github.com/shoal-llm/shoal/topology"
)

// TestWire records the encodings that coordinators exchange through the store: the lease with the
// placement, and the members.
func TestWire(t *testing.T) {
	form := func(name string, v any) wiretest.Form {
		b, err := json.MarshalIndent(v, "", " ")
		if err != nil {
			t.Fatal(err)
		}
		return wiretest.Form{Name: name, Text: string(b)}
	}
	r := func(lo int) topology.Range { return topology.Range{Lo: lo, Hi: lo + 1} }
	wiretest.Check(t,
		wiretest.Form{Name: "bucket and keys", Text: bucket + " " + claimKey + " " + membersKey},
		form("claim", topology.Claim{Term: 1, Holder: "a", Incarnation: 2, API: "x:1", Beat: 3,
			Incarnations: []uint64{4}, Drained: map[string]uint64{"n": 5},
			Placement: topology.Placement{Epoch: 6, Mapping: topology.Gather, Slices: []topology.Slice{{ID: "n",
				KVHeads: r(1), Q: r(2), K: r(3), V: r(4), Out: r(5), Down: r(6), FFNUnits: r(7), FFN: r(8), Vocab: r(9)}}}}),
		form("members", plan{ID: "s", Revision: 1, Self: "a", Members: []member{{"a", "x:2", "a-1"}}, Removed: []member{{"b", "x:3", "b-1"}}}))
}

package coordinator

import (
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/plan"
)

// TestSequenceNames: opened sequences have the id of their request, and released ones are removed. The number
// of names is bounded.
func TestSequenceNames(t *testing.T) {
	var n sequenceNames
	n.apply(&plan.Plan{Open: []plan.Open{{Seq: 1, ID: "a"}, {Seq: 2, ID: "b"}}})
	n.apply(&plan.Plan{Release: []uint64{1}, Open: []plan.Open{{Seq: 3, ID: "a"}}})
	if len(n) != 2 || n[2] != "b" || n[3] != "a" {
		t.Errorf("%v", n)
	}
	for seq := range uint64(3 * maxNames) {
		n.apply(&plan.Plan{Open: []plan.Open{{Seq: 10 + seq, ID: "x"}}})
	}
	if len(n) > maxNames+1 {
		t.Errorf("%d are known", len(n))
	}
}

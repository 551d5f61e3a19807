package replicas

import (
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/plan"
)

// TestBackoff: pauses double while steps with replicas fail in a row, up to 32 minutes. A step that ends well ends
// that. Other steps change nothing.
func TestBackoff(t *testing.T) {
	var b Backoff
	other, copies := &plan.Plan{}, &plan.Plan{Copy: []plan.Copy{{}}}
	now := int64(7)
	if b.Failed(other, now); !b.Over(now) {
		t.Fatal("a pause after a step without replicas")
	}
	for i := range 9 {
		b.Failed(copies, now)
		b.Done(other)
		end := now + 30_000<<min(i, 6)
		if b.Over(end-1) || !b.Over(end) {
			t.Fatalf("pause %d does not end after %d ms", i, end-now)
		}
		now = end
	}
	b.Done(copies)
	b.Failed(copies, now)
	if !b.Over(now + 30_000) {
		t.Fatal("the pause is as long as before")
	}
}

// TestNodesChange: a placement of other nodes ends the pause after the first failure in a row, and no other. One of the
// same nodes ends none.
func TestNodesChange(t *testing.T) {
	var b Backoff
	copies := &plan.Plan{Copy: []plan.Copy{{}}}
	b.Placed([]string{"b", "a", "c"})
	b.Failed(copies, 5)
	if b.Placed([]string{"c", "b", "a"}); b.Over(6) {
		t.Fatal("the same nodes end the pause")
	}
	if b.Placed([]string{"b", "a"}); !b.Over(6) {
		t.Fatal("the pause goes on without the lost node")
	}
	b.Failed(copies, 6)
	if b.Placed([]string{"a", "c"}); b.Over(7) {
		t.Fatal("each attempt may end a node")
	}
	b.Done(copies)
	b.Failed(copies, 8)
	if b.Placed([]string{"a"}); !b.Over(9) {
		t.Fatal("a replica was made meanwhile, and the pause goes on")
	}
}

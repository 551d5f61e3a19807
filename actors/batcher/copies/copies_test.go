package copies

import (
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/plan"
)

// TestRest: pauses double while steps with replicas fail in a row, up to 32 minutes. One that ends well ends
// that. Other steps change nothing.
func TestRest(t *testing.T) {
	var r Rest
	other, copies := &plan.Plan{}, &plan.Plan{Copy: []plan.Copy{{}}}
	now := int64(7)
	if r.Failed(other, now); !r.Over(now) {
		t.Fatal("a pause after a step without replicas")
	}
	for i := range 9 {
		r.Failed(copies, now)
		r.Done(other)
		end := now + 30_000<<min(i, 6)
		if r.Over(end-1) || !r.Over(end) {
			t.Fatalf("pause %d does not end after %d ms", i, end-now)
		}
		now = end
	}
	r.Done(copies)
	r.Failed(copies, now)
	if !r.Over(now + 30_000) {
		t.Fatal("the pause is as long as before")
	}
}

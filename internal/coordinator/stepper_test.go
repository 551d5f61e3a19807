package coordinator

import (
	"testing"
	"time"

	"github.com/shoal-llm/shoal/internal/engine/plan"
)

// TestBrokenStep checks that a step that a lost node breaks counts exactly once, whether it fails
// before its placement ends or after.
func TestBrokenStep(t *testing.T) {
	at := time.Unix(100, 0)
	var f figures
	f.begin(at, 1) // in flight, then interrupted
	if got := f.broken(); !got.Equal(at) {
		t.Errorf("in flight: %v", got)
	}
	if got := f.broken(); !got.IsZero() {
		t.Errorf("counted again: %v", got)
	}
	f.begin(at, 1)
	f.record(at, time.Second, &plan.Plan{}, nil)
	if got := f.broken(); !got.IsZero() {
		t.Errorf("done before: %v", got)
	}
	f.begin(at.Add(time.Second), 1) // of the next epoch, before the old epoch's step has returned
	f.record(at, time.Second, &plan.Plan{}, nil)
	if got := f.broken(); !got.Equal(at.Add(time.Second)) {
		t.Errorf("an older step ended it: %v", got)
	}
}

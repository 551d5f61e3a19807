package store

import (
	"testing"
	"time"
)

// TestLateness: an obstacle at start is logged once, and only if it lasts.
func TestLateness(t *testing.T) {
	var l lateness
	now := time.Unix(1000, 0)
	for i, c := range []struct {
		after time.Duration
		why   string
		want  bool
	}{
		{0, "a", false},
		{2 * time.Second, "b", false},
		{startPatience, "b", true},
		{2 * time.Second, "b", false},
		{2 * time.Second, "c", true},
		{2 * time.Second, "", false},
		{2 * time.Second, "c", false},
		{startPatience, "c", true},
	} {
		now = now.Add(c.after)
		if got := l.log(c.why, now); got != c.want {
			t.Errorf("%d: %q is logged: %v", i, c.why, got)
		}
	}
}

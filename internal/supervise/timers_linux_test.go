package supervise

import (
	"os/exec"
	"strings"
	"testing"
)

// TestChildrenHaveCoarseTimers: only children have the slack.
func TestChildrenHaveCoarseTimers(t *testing.T) {
	slack := func(start func(*exec.Cmd) error) string {
		cmd := exec.Command("cat", "/proc/self/timerslack_ns")
		var out strings.Builder
		cmd.Stdout = &out
		if err := start(cmd); err != nil {
			t.Skipf("NOT TESTED: the slack of a child's timers cannot be read here: %v", err)
		}
		if err := cmd.Wait(); err != nil {
			t.Skipf("NOT TESTED: the slack of a child's timers cannot be read here: %v", err)
		}
		return strings.TrimSpace(out.String())
	}
	before := slack((*exec.Cmd).Start)
	if got := slack(func(c *exec.Cmd) error { return coarseTimers(c.Start) }); got != "2000000" {
		t.Errorf("a child's timers have a slack of %s ns, want 2000000", got)
	}
	if after := slack((*exec.Cmd).Start); after != before {
		t.Errorf("another child's timers have a slack of %s ns, before %s", after, before)
	}
}

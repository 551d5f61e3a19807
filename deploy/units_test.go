package deploy_test

import (
	"slices"
	"strings"
	"testing"
)

// TestNodeStopsLast: on a machine with both units, the node runs on while the coordinator ends its requests, which takes
// up to 30 s. systemd starts units in the given order, and stops them in the reverse one.
func TestNodeStopsLast(t *testing.T) {
	var before []string
	for line := range strings.Lines(read(t, "systemd/shoal-node.service")) {
		if list, ok := strings.CutPrefix(strings.TrimSpace(line), "Before="); ok {
			before = append(before, strings.Fields(list)...)
		}
	}
	if !slices.Contains(before, "shoal-coordinator.service") {
		t.Errorf("shoal-node.service is ordered before %q, want shoal-coordinator.service: a reboot stops both at once", before)
	}
}

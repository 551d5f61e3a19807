package host_test

import (
	"net/netip"
	"testing"

	"github.com/shoal-llm/shoal/test/wire/host"
)

// TestProbe: the steps fail if, and only if, a host cannot be created.
func TestProbe(t *testing.T) {
	var failed []host.Step
	for _, s := range host.Probe() {
		if s.Err != "" && s.Name != "real-time priority" {
			failed = append(failed, s)
		}
	}
	n, err := host.Create("probe-test", netip.MustParsePrefix("10.77.1.1/16"), 1500)
	if err == nil {
		n.Remove()
	}
	if (err == nil) != (len(failed) == 0) {
		t.Errorf("Create: %v; failed steps: %+v", err, failed)
	}
}

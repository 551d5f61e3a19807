package host_test

import (
	"net/netip"
	"testing"

	"github.com/shoal-llm/shoal/test/wire/host"
)

// TestProbe: the steps fail if, and only if, a host cannot be created.
func TestProbe(t *testing.T) {
	var failed []host.Step
	addresses := []netip.Prefix{netip.MustParsePrefix("10.77.1.1/16"), netip.MustParsePrefix("fd77::1:1/64")}
	for _, s := range host.Probe() {
		switch {
		case s.Err != "" && !s.Optional:
			failed = append(failed, s)
		case s.Err != "" && s.Name == "IPv6 address of the device":
			addresses = addresses[:1]
		}
	}
	n, err := host.Create("probe-test", 1500, addresses...)
	if err == nil {
		n.Remove()
	}
	if (err == nil) != (len(failed) == 0) {
		t.Errorf("Create: %v; failed steps: %+v", err, failed)
	}
}

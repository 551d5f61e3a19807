package cluster_test

import (
	"testing"

	"github.com/shoal-llm/shoal/internal/testlevel"
)

// TestSameBitsOnMixedMachines: nodes with different kernels (forced by SHOAL_CPU) give the same
// bits, alone and in one cluster.
func TestSameBitsOnMixedMachines(t *testing.T) {
	testlevel.NeedLong(t)
	if testing.Short() {
		t.Skip("portable kernels are slow")
	}
	reqs := mixed(false)[2:9]
	run := func(cpus ...string) []string {
		c, gossip := coordinate(t, config{args: []string{"--nodes", "2"}})
		for i, cpu := range cpus {
			var env []string
			if cpu != "" {
				env = []string{"SHOAL_CPU=" + cpu}
			}
			join(t, string(rune('a'+i)), gossip, env, "--share", "1")
		}
		c.waitReady()
		return c.send(t, reqs, len(reqs))
	}
	want := run("", "")
	if n := compare(t.Errorf, "one node with portable kernels", reqs, want, run("", "portable")); n > 0 {
		t.Errorf("%d of %d answers differ", n, len(reqs))
	}
}

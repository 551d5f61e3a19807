package cluster_test

import (
	"fmt"
	"math/rand/v2"
	"regexp"
	"testing"
)

var listeners = regexp.MustCompile(`node joined" .*gossip=(\S+) control=(\S+) routes=(\S+) tensors=(\S+)`)

// TestPorts: every port of a process can be chosen, and a node runs on the same machine as its
// coordinator.
func TestPorts(t *testing.T) {
	parallel(t)
	first := 10000 + rand.IntN(10000)
	c, gossip := coordinate(t, config{args: []string{"--nodes", "1", "--ports", fmt.Sprint(first), "--data-dir", t.TempDir()}})
	n := join(t, "beside", gossip, nil, "--bind", fmt.Sprintf("127.0.0.1:%d", first+10), "--ports", fmt.Sprint(first+11))
	got := n.line(t, n.err, listeners, startLimit)
	for i, what := range []string{"gossip", "control", "routes", "tensors"} {
		if want := fmt.Sprintf("127.0.0.1:%d", first+10+i); got[1+i] != want {
			t.Errorf("%s is at %s, want %s", what, got[1+i], want)
		}
	}
	c.waitReady()
	if _, stderr, code := command(t, patience, nil, "node", "--join", gossip, "--ports", "70000"); code == 0 {
		t.Errorf("--ports 70000: %s", stderr)
	}
}

package cluster_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"

	"github.com/shoal-llm/shoal/internal/testlevel"
)

// TestChaosSixteen kills nodes of sixteen, one at a time, while 16 streams decode under every
// policy, and restarts each. With and without replicas, text and scores equal the undisturbed run.
// SEED selects the victims, SHOAL_VICTIMS their number (default 3; 16 for all).
func TestChaosSixteen(t *testing.T) {
	testlevel.NeedFull(t)
	number := func(name string, otherwise int) int {
		if n, err := strconv.Atoi(os.Getenv(name)); err == nil {
			return n
		}
		return otherwise
	}
	const nodes = 16
	victims := rand.New(rand.NewPCG(uint64(number("SEED", 7)), 16)).Perm(nodes)[:min(nodes, number("SHOAL_VICTIMS", 3))]
	reqs := streaming(16, 48)
	var want []string
	for _, replicas := range []string{"0", "1"} {
		t.Run("replicas "+replicas, func(t *testing.T) {
			c, gossip := coordinate(t, config{args: []string{"--nodes", fmt.Sprint(nodes), "--replicas", replicas}})
			var procs [nodes]*process
			for i := range procs {
				procs[i] = join(t, fmt.Sprintf("n%d", i), gossip, nil)
			}
			c.waitReady()
			if want == nil {
				want, _ = c.undisturbed(t, reqs)
			}
			for _, v := range victims {
				id := fmt.Sprintf("n%d", v)
				surviveFault(t, c, fmt.Sprintf("replicas %s, kill -9 %s of 16", replicas, id), reqs, want, func() { procs[v].kill(t) })
				c.waitNodes(nodes-1, recoverLimit)
				c.busy(t, id+" comes back", reqs, want, func() {
					procs[v] = join(t, id, gossip, nil)
					c.waitNodes(nodes, recoverLimit)
				})
			}
			c.waitIdle(recoverLimit)
		})
	}
}

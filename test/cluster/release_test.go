package cluster_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/shoal-llm/shoal/internal/testlevel"
)

// TestReleaseRaces: a request that starts at the end of another request gets its bytes, for any order
// of the messages. No bytes leak.
func TestReleaseRaces(t *testing.T) {
	testlevel.NeedLong(t)
	for _, n := range []int{1, 2} {
		t.Run(fmt.Sprintf("n%d", n), func(t *testing.T) {
			c := up(t, n, "--kv-memory", "3MiB") // one large request per node, or a few small ones
			epoch := c.state().Epoch
			r := rand.New(rand.NewPCG(1, 1))
			var reqs []request
			for i := range 100 {
				prompt, tokens := 3, 1+i%3
				if i%10 == 0 {
					prompt, tokens = 200, 2
				}
				reqs = append(reqs, request{fmt.Sprintf("request %d", i), "/v1/completions",
					map[string]any{"prompt": ids(r, prompt), "max_tokens": tokens, "ignore_eos": true, "temperature": 0}})
			}
			c.send(t, reqs, n)
			c.waitIdle(patience)
			if s := c.state(); failed(s) != 0 {
				t.Errorf("%d steps failed, epoch %d to %d", failed(s), epoch, s.Epoch)
			}
		})
	}
}

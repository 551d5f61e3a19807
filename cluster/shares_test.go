package cluster

import (
	"fmt"
	"testing"

	"github.com/shoal-llm/shoal/internal/server/engine"
)

// TestShares checks that a policy with shares of the prompt answers as the one with the numbers does, on
// any number of nodes, and takes the same memory.
func TestShares(t *testing.T) {
	for _, sockets := range []int{1, 3, 4} {
		e := startLocal(t,
			LocalConfig{Sockets: sockets, Threads: 1, Serve: ServeConfig{Model: goldenDir, Policy: "streaming:sink=2%,recent=25%"}})
		for i, c := range []struct{ share, number string }{
			{"snapkv:topk=20%,obs=8", "snapkv:topk=%[2]d,obs=8"},
			{"snapstream:sink=4,recent=10%,topk=20%,obs=8", "snapstream:sink=4,recent=%[1]d,topk=%[2]d,obs=8"},
			{"h2o:recent=10%,topk=20%,step=1,positions=cache", "h2o:recent=%[1]d,topk=%[2]d,step=1,positions=cache"},
			{"squeezed:tail=10%,clusters=0.2,obs=16", "squeezed:tail=%[1]d,clusters=0.2,obs=16"},
			{"", "streaming:sink=%[3]d,recent=%[4]d"},
		} {
			for _, n := range []int{200, 333} {
				number := fmt.Sprintf(c.number+"%[5]s", n/10, n/5, n/50, n/4, "")
				a := complete(t, e, &engine.Request{ID: fmt.Sprint("share", i, n), Prompt: text(i, n), Policy: c.share, NoCache: true})
				b := complete(t, e, &engine.Request{ID: fmt.Sprint("number", i, n), Prompt: text(i, n), Policy: number, NoCache: true})
				if a.bits != b.bits {
					t.Errorf("%d sockets: %q and %s answer a prompt of %d tokens differently", sockets, c.share, number, n)
				}
				bytes, _ := e.CacheBytes(c.share, n, 20)
				if want, _ := e.CacheBytes(number, n, 20); bytes != want {
					t.Errorf("%q takes %d bytes, %s %d", c.share, bytes, number, want)
				}
			}
		}
		waitIdle(t, e)
	}
}

// TestSharesOfTheCaller: the shares of one cluster do not appear in the settings of another that its caller starts with the
// same ServeConfig.
func TestSharesOfTheCaller(t *testing.T) {
	shares := map[string]float64{"socket-0": 3}
	startLocal(t, LocalConfig{Serve: ServeConfig{Model: goldenDir, Shares: shares}, Sockets: 2, Shares: []float64{1, 2}})
	if len(shares) != 1 || shares["socket-0"] != 3 {
		t.Errorf("the caller's shares are now %v", shares)
	}
}

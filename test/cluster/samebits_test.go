package cluster_test

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// shape is one way to run the same requests, without effect on the answers.
type shape struct {
	nodes   int
	mapping string
	chunk   int
	uneven  bool
	width   int // concurrent requests
}

func (s shape) String() string {
	share := "even"
	if s.uneven {
		share = "uneven"
	}
	return fmt.Sprintf("n%d-%s-chunk%d-%s-batch%d", s.nodes, s.mapping, s.chunk, share, s.width)
}

func (s shape) args() []string {
	a := []string{"--mapping", s.mapping, "--chunk", fmt.Sprint(s.chunk), "--step-tokens", fmt.Sprint(max(s.chunk, 64))}
	if s.uneven && s.nodes > 1 {
		var shares []string
		for i := range s.nodes {
			shares = append(shares, fmt.Sprint(1+(i*5)%4)) // 1 2 3 4 1 ...
		}
		a = append(a, "--share", strings.Join(shares, ","))
	}
	return a
}

// shapes returns the tested combinations of node count, mapping, chunk and share: some of them by
// default, all with SHOAL_E2E=full.
func shapes() []shape {
	switch {
	case full():
		var all []shape
		for _, n := range []int{1, 2, 3, 5, 7, 16} {
			for _, mapping := range []string{"gather", "reduce"} {
				for _, chunk := range []int{64, 512} {
					for _, uneven := range []bool{false, true} {
						if n == 1 && uneven {
							continue
						}
						all = append(all, shape{n, mapping, chunk, uneven, 1}, shape{n, mapping, chunk, uneven, 16})
					}
				}
			}
		}
		return all
	case testing.Short():
		return []shape{{3, "reduce", 64, true, 16}}
	}
	return []shape{
		{2, "gather", 64, false, 16},
		{3, "reduce", 64, true, 1},
		{16, "gather", 512, true, 16}, // TestGoldens covers reduce on 16
	}
}

// TestSameBits: the whole answer (text, every logprob, usage) of 20 mixed requests depends only on
// the request.
func TestSameBits(t *testing.T) {
	one := shape{1, "reduce", 512, false, 1}
	var reqs []request
	var want []string
	run := func(t *testing.T, s shape) []string {
		c := up(t, s.nodes, s.args()...)
		if reqs == nil {
			reqs = mixed(c.chats())
		}
		began := time.Now()
		got := c.send(t, reqs, s.width)
		t.Logf("%d requests in %.1f s", len(reqs), time.Since(began).Seconds())
		c.waitIdle(patience)
		return got
	}
	t.Run(one.String(), func(t *testing.T) { want = run(t, one) })
	if want == nil {
		t.Fatal("the first cluster did not answer")
	}
	for _, s := range shapes() {
		t.Run(s.String(), func(t *testing.T) {
			if n := compare(t.Errorf, s.String(), reqs, want, run(t, s)); n > 0 {
				t.Errorf("%d of %d answers differ", n, len(reqs))
			}
		})
	}
}

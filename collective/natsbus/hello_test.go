package natsbus

import (
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"
)

// TestHelloTwin runs the barrier on a simulated network. Every path (source, destination, subject)
// drops everything until it opens at some moment, as a spreading subscription does. A rank that is
// ready must have only open paths, and all ranks become ready soon after the last path has opened.
func TestHelloTwin(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 8).Draw(t, "ranks")
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 5))
		type path struct {
			src, dst int
			direct   bool
		}
		type flight struct {
			path
			flags byte
		}
		opens := map[path]int{}
		gs := make([]*barrier, n)
		for i := range gs {
			gs[i] = newBarrier(i, n, [32]byte{1})
			for j := range n {
				opens[path{i, j, true}] = r.IntN(30)
				opens[path{i, j, false}] = r.IntN(30)
			}
		}
		var wire []flight
		sent := 0
		emit := func(now, src int, out []hello) {
			for _, g := range out {
				for j := range n {
					p := path{src, j, g.dst >= 0}
					if j != src && (g.dst < 0 || g.dst == j) && now >= opens[p] {
						wire = append(wire, flight{p, g.flags})
						sent++
					}
				}
			}
		}
		ready := func(now, k int) bool {
			if gs[k].remaining > 0 {
				return false
			}
			for p, at := range opens {
				if (p.src == k || p.dst == k) && p.src != p.dst && now < at {
					t.Fatalf("rank %d is ready at %d; path %+v opens at %d", k, now, p, at)
				}
			}
			return true
		}
		for now := range 40 {
			for k := range gs {
				emit(now, k, gs[k].tick(nil)) // nothing when ready
			}
			for burst := 0; len(wire) > 0; burst++ {
				if burst > 40*n*n {
					t.Fatalf("ranks keep each other busy: %d hellos in one moment", burst)
				}
				i := r.IntN(len(wire))
				f := wire[i]
				wire = append(wire[:i], wire[i+1:]...)
				body := make([]byte, helloBytes)
				gs[f.src].payload(body, f.flags)
				emit(now, f.dst, gs[f.dst].received(f.src, f.direct, body, nil))
			}
			for k := range gs {
				ready(now, k)
			}
		}
		for k := range gs {
			if !ready(40, k) {
				ranks, why := gs[k].missing()
				t.Fatalf("rank %d still misses %v: %v", k, ranks, why)
			}
		}
	})
}

package topology

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

// lossy is a tensor-parallel group over TCP connections that lose packets. A lost packet arrives after
// the sender's timeout and delays the later packets of its connection.
type lossy struct {
	r    *rand.Rand
	n    int
	ops  int           // exchanges a step
	work time.Duration // compute of each rank before each exchange
	trip time.Duration // one way
	slow []float64     // slowdown of each rank
	loss func(from, to int) float64
	free [][]time.Duration // when a connection has delivered everything sent before
	now  time.Duration
}

// tcpTimeout is the minimum time after which Linux retransmits.
const tcpTimeout = 200 * time.Millisecond

// head is the coordinator, which requests steps over connections of the same network.
const head = -1

func (l *lossy) carried(from, to int) time.Duration {
	d := l.trip
	for wait := tcpTimeout + 2*l.trip; l.r.Float64() < l.loss(from, to); wait *= 2 {
		d += wait
	}
	return d
}

// step runs one step. It returns its time and how long each rank waited for each other alone.
func (l *lossy) step() (time.Duration, [][]time.Duration) {
	late, ready := make([][]time.Duration, l.n), make([]time.Duration, l.n)
	if l.free == nil {
		l.free = make([][]time.Duration, l.n)
	}
	for i := range late {
		late[i], ready[i] = make([]time.Duration, l.n), l.now+l.carried(head, i)
		if l.free[i] == nil {
			l.free[i] = make([]time.Duration, l.n)
		}
	}
	for range l.ops {
		next := make([]time.Duration, l.n)
		for i := range ready {
			work := float64(l.work)
			if l.slow != nil {
				work *= l.slow[i]
			}
			ready[i] += time.Duration(work * (0.8 + 0.4*l.r.Float64()))
		}
		for to := range ready {
			before, last, lastRank := ready[to], ready[to], -1
			for from := range ready {
				if from == to {
					continue
				}
				at := max(ready[from]+l.carried(from, to), l.free[from][to])
				l.free[from][to] = at
				switch {
				case at > last:
					before, last, lastRank = last, at, from
				case at > before:
					before = at
				}
			}
			if lastRank >= 0 {
				late[to][lastRank] += last - before
			}
			next[to] = last
		}
		ready = next
	}
	end := l.now
	for i, at := range ready {
		end = max(end, at+l.carried(i, head))
	}
	took := end - l.now
	l.now = end
	return took, late
}

// TestPaceSeen: measured steps of three nodes over a network that lost two packets in a hundred.
// Each rank was blamed or excused by its own waits.
func TestPaceSeen(t *testing.T) {
	us := func(n int) time.Duration { return time.Duration(n) * time.Microsecond }
	for _, x := range []struct {
		what string
		late [3][3]int // microseconds
		want [3]int
	}{
		{"from 0 to 1, which all then wait for", [3][3]int{{0, 215423, 1023}, {214309, 0, 10199}, {1688, 215364, 0}}, [3]int{0, 0, 0}},
		{"between 1 and 2, both ways", [3][3]int{{0, 1679, 210812}, {7661, 0, 204638}, {7526, 204954, 0}}, [3]int{0, 0, 0}},
		{"from 1 to 0 in the last exchange: no other rank waits", [3][3]int{{0, 2197, 1250}, {210063, 0, 1150}, {461, 1947, 0}}, [3]int{0, 0, 0}},
		{"the coordinator's request to 2, which looks like a delay of 2 to the others",
			[3][3]int{{0, 1157, 205485}, {1692, 0, 211497}, {1660, 1331, 0}}, [3]int{0, 0, 202494}},
	} {
		var p StragglerDetector
		late := make([][]time.Duration, 3)
		for i := range late {
			for _, d := range x.late[i] {
				late[i] = append(late[i], us(d))
			}
		}
		for j, want := range x.want {
			if got := p.cost(j, late); got != us(want) {
				t.Errorf("%s: rank %d has cost %v, want %v", x.what, j, got, us(want))
			}
		}
	}
}

// TestPaceLossy: a network that loses two packets in a hundred on every connection makes no node a
// straggler in hours. A node that is also slow is found.
func TestPaceLossy(t *testing.T) {
	ids := strings.Fields("a b c d e f g h")
	uniform := func(int, int) float64 { return 0.02 }
	hours := 4 * time.Hour
	if testing.Short() {
		hours = time.Hour
	}
	for _, x := range []struct {
		what string
		l    lossy
		slow string
	}{
		{"two", lossy{n: 2, ops: 8, work: 500 * time.Microsecond}, ""},
		{"three", lossy{n: 3, ops: 8, work: 500 * time.Microsecond}, ""},
		{"three, few exchanges", lossy{n: 3, ops: 2, work: 2 * time.Millisecond}, ""},
		{"three, 50 ms there and back", lossy{n: 3, ops: 8, work: 500 * time.Microsecond, trip: 25 * time.Millisecond}, ""},
		{"four", lossy{n: 4, ops: 8, work: 500 * time.Microsecond}, ""},
		{"four, many exchanges", lossy{n: 4, ops: 80, work: time.Millisecond}, ""},
		{"eight", lossy{n: 8, ops: 8, work: 500 * time.Microsecond}, ""},
		{"three, a computes ten times as long", lossy{n: 3, ops: 8, work: 20 * time.Millisecond, slow: []float64{10, 1, 1}}, "a"},
		{"two, b computes ten times as long", lossy{n: 2, ops: 8, work: 20 * time.Millisecond, slow: []float64{1, 10}}, "b"},
		{"four, c computes ten times as long", lossy{n: 4, ops: 8, work: 20 * time.Millisecond, slow: []float64{1, 1, 10, 1}}, "c"},
	} {
		x.l.r, x.l.loss = rand.New(rand.NewPCG(7, uint64(x.l.n))), uniform
		var p StragglerDetector
		named, fenced, most := map[string]int{}, map[string]int{}, 0.0
		end := hours
		if x.slow != "" {
			end = time.Minute
		}
		for x.l.now < end {
			wall, late := x.l.step()
			for _, r := range p.Step(wall, ids[:x.l.n], late, nil) {
				switch {
				case r.Fence:
					fenced[r.ID]++
				case !r.Over:
					named[r.ID]++
				}
			}
			for _, id := range ids[:x.l.n] {
				most = max(most, p.Ratio(id))
			}
		}
		t.Logf("%s: named %v, fenced %v, the others wait up to %.2f", x.what, named, fenced, most)
		for id := range fenced {
			if id != x.slow {
				t.Errorf("%s: %s is fenced, but only the network is slow", x.what, id)
			}
		}
		if x.slow != "" && fenced[x.slow] == 0 {
			t.Errorf("%s: it is not fenced", x.what)
		}
		if x.slow == "" && len(named) > 0 {
			t.Errorf("%s: %v are named", x.what, named)
		}
	}
}

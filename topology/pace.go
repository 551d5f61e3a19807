package topology

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// Pace finds stragglers: nodes that take part and answer, and for which the
// others wait most of the time (a throttled processor, a failing disk, a machine
// that swaps). One slow step says nothing; it takes several, over seconds.
type Pace struct {
	nodes map[string]*pace
	clock time.Duration // spent in steps
}

type pace struct {
	wall   float64       // seconds of steps without what it alone had to do, the older the less
	late   float64       // of wall, seconds that the others waited for it alone
	slow   time.Duration // when it began to be slow, on the clock; -1: it is not
	misses int           // steps since then of which it cost more than half
}

// Remark is what Pace has to say about a node.
type Remark struct {
	ID    string
	Ratio float64 // of the time, the others wait for it
	Fence bool    // it is to be left out; else it is only named
	Over  bool    // it keeps up again
}

// The rules: a node is named when the others have waited for it more than half of
// the time for two seconds of steps, and is to be left out after eight seconds and
// eight misses. Less than two milliseconds, or a sixth, of a step is no straggling.
const (
	paceHalf   = 2 * time.Second // after which a step counts half
	paceSlow   = 0.5
	paceFine   = 0.35
	paceName   = 2 * time.Second
	paceFence  = 8 * time.Second
	paceMisses = 8
	paceFloor  = 2 * time.Millisecond
	paceLeast  = 6 // part of a step
)

// Reset forgets the rates: another placement serves.
func (p *Pace) Reset() { *p = Pace{} }

// Step takes the times of one step: late[i][j] is how long rank i waited for rank
// j alone. What counts is the median of what the others say, so that no single
// rank can blame another. own is what each has computed that others need not have, as the
// attention of a long sequence: who has more of it than the others keeps them waiting by
// design, so that is taken from the step, and the node is judged by the rest.
func (p *Pace) Step(wall time.Duration, ids []string, late [][]time.Duration, own []time.Duration) []Remark {
	if wall <= 0 || len(ids) < 2 || len(late) != len(ids) {
		return nil
	}
	if p.nodes == nil {
		p.nodes = map[string]*pace{}
	}
	p.clock += wall
	fade := math.Exp2(-wall.Seconds() / paceHalf.Seconds())
	var out []Remark
	for j, id := range ids {
		n := p.nodes[id]
		if n == nil {
			n = &pace{slow: -1}
			p.nodes[id] = n
		}
		more := min(moreThanOthers(j, own), wall)
		cost, rest := max(0, p.cost(j, late)-more), wall-more
		n.wall, n.late = n.wall*fade+rest.Seconds(), n.late*fade+cost.Seconds()
		floor, ratio := max(paceFloor, wall/paceLeast), n.ratio()
		switch {
		case n.slow >= 0 && ratio < paceFine:
			if p.clock-n.slow >= paceName {
				out = append(out, Remark{ID: id, Ratio: ratio, Over: true})
			}
			n.slow, n.misses = -1, 0
		case n.slow < 0 && ratio > paceSlow && cost >= floor:
			n.slow = p.clock
		}
		if n.slow < 0 {
			continue
		}
		if cost >= floor && cost > rest/2 {
			n.misses++
		}
		before, now := p.clock-wall-n.slow, p.clock-n.slow
		switch {
		case now >= paceFence && n.misses >= paceMisses && ratio > paceSlow:
			out = append(out, Remark{ID: id, Ratio: ratio, Fence: true})
		case before < paceName && now >= paceName:
			out = append(out, Remark{ID: id, Ratio: ratio})
		}
	}
	return out
}

// Ratio is the part of the time that the others wait for a node, 0 to 1, without what it alone
// had to do.
func (p *Pace) Ratio(id string) float64 {
	if n := p.nodes[id]; n != nil {
		return n.ratio()
	}
	return 0
}

func (n *pace) ratio() float64 {
	if n.wall <= 0 {
		return 0
	}
	return min(1, n.late/n.wall)
}

// moreThanOthers is what rank j has of its own beyond the median of the others, of two the less.
func moreThanOthers(j int, own []time.Duration) time.Duration {
	if j >= len(own) || len(own) < 2 {
		return 0
	}
	others := slices.Sorted(slices.Values(slices.Concat(own[:j], own[j+1:])))
	return max(0, own[j]-others[(len(others)-1)/2])
}

// cost is what rank j kept the others waiting by itself: the median of what they
// waited for it alone; of two, the less; less what it has waited for others. Who
// computes slowly waits for nobody. Whom a message reaches late, because the network
// lost it, keeps the others waiting for as long as it has waited: nobody's fault.
func (p *Pace) cost(j int, late [][]time.Duration) time.Duration {
	var said []time.Duration
	for i := range late {
		if i != j && j < len(late[i]) {
			said = append(said, late[i][j])
		}
	}
	if len(said) == 0 {
		return 0
	}
	slices.SortFunc(said, cmp.Compare[time.Duration])
	cost := said[(len(said)-1)/2]
	for _, d := range late[j] {
		cost -= d
	}
	return max(0, cost)
}

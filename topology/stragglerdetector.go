package topology

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// StragglerDetector finds stragglers: nodes that take part and answer, but keep the others waiting
// most of the time (a throttled CPU, a failing disk, a machine that swaps). One slow step is not
// enough; it takes several, over seconds.
type StragglerDetector struct {
	nodes map[string]*nodeDelay
	clock time.Duration // time spent in steps
}

type nodeDelay struct {
	wall   float64       // seconds of steps without the node's own extra work, decaying with age
	late   float64       // seconds of wall that the others waited for this node alone
	slow   time.Duration // when it became slow, on the clock; -1: it is not
	misses int           // steps since then in which it cost more than half
}

// Verdict is the judgement of a StragglerDetector on one node.
type Verdict struct {
	ID    string
	Ratio float64 // part of the time that the others wait for it
	Fence bool    // fence it; otherwise only name it
	Over  bool    // it keeps up again
}

// The rules. A node is named when the others have waited for it more than half of the time for two
// seconds of steps. It is fenced after eight seconds and eight misses. A delay below two
// milliseconds, or below a sixth of a step, does not count.
const (
	delayHalfLife   = 2 * time.Second // half-life of a step's weight
	delaySlow       = 0.5
	delayFine       = 0.35
	delayName       = 2 * time.Second
	delayFence      = 8 * time.Second
	delayMisses     = 8
	minDelay        = 2 * time.Millisecond
	minDelayDivisor = 6 // at least 1/minDelayDivisor of a step
)

// Reset clears the rates, for another placement.
func (s *StragglerDetector) Reset() { *s = StragglerDetector{} }

// Step records the times of one step. late[i][j] is how long rank i waited for rank j alone. The
// median over the reporters counts, so that no single rank can blame another. own[j] is rank j's
// compute that other ranks need not have, such as the attention of a long sequence. A rank with
// more of it keeps the others waiting by design, so the excess is subtracted from the step.
func (s *StragglerDetector) Step(wall time.Duration, ids []string, late [][]time.Duration, own []time.Duration) []Verdict {
	if wall <= 0 || len(ids) < 2 || len(late) != len(ids) {
		return nil
	}
	if s.nodes == nil {
		s.nodes = map[string]*nodeDelay{}
	}
	s.clock += wall
	fade := math.Exp2(-wall.Seconds() / delayHalfLife.Seconds())
	var out []Verdict
	for j, id := range ids {
		n := s.nodes[id]
		if n == nil {
			n = &nodeDelay{slow: -1}
			s.nodes[id] = n
		}
		more := min(moreThanOthers(j, own), wall)
		cost, rest := max(0, s.cost(j, late)-more), wall-more
		n.wall, n.late = n.wall*fade+rest.Seconds(), n.late*fade+cost.Seconds()
		floor, ratio := max(minDelay, wall/minDelayDivisor), n.ratio()
		switch {
		case n.slow >= 0 && ratio < delayFine:
			if s.clock-n.slow >= delayName {
				out = append(out, Verdict{ID: id, Ratio: ratio, Over: true})
			}
			n.slow, n.misses = -1, 0
		case n.slow < 0 && ratio > delaySlow && cost >= floor:
			n.slow = s.clock
		}
		if n.slow < 0 {
			continue
		}
		if cost >= floor && cost > rest/2 {
			n.misses++
		}
		before, now := s.clock-wall-n.slow, s.clock-n.slow
		switch {
		case now >= delayFence && n.misses >= delayMisses && ratio > delaySlow:
			out = append(out, Verdict{ID: id, Ratio: ratio, Fence: true})
		case before < delayName && now >= delayName:
			out = append(out, Verdict{ID: id, Ratio: ratio})
		}
	}
	return out
}

// Ratio returns the part of the time, 0 to 1, that the others wait for a node, without the node's own
// extra work.
func (s *StragglerDetector) Ratio(id string) float64 {
	if n := s.nodes[id]; n != nil {
		return n.ratio()
	}
	return 0
}

func (n *nodeDelay) ratio() float64 {
	if n.wall <= 0 {
		return 0
	}
	return min(1, n.late/n.wall)
}

// moreThanOthers returns by how much rank j's own work exceeds the median of the others' (the lower one
// of an even number).
func moreThanOthers(j int, own []time.Duration) time.Duration {
	if j >= len(own) || len(own) < 2 {
		return 0
	}
	others := slices.Sorted(slices.Values(slices.Concat(own[:j], own[j+1:])))
	return max(0, own[j]-others[(len(others)-1)/2])
}

// cost returns how long rank j kept the others waiting by itself: the median of their waits for it alone
// (the lower one of an even number), minus its own waits. A slow rank does not wait itself. A rank
// whose incoming message was lost in the network waits as long as the others wait for it, and is
// not to blame.
func (s *StragglerDetector) cost(j int, late [][]time.Duration) time.Duration {
	var known []time.Duration
	for i := range late {
		if i != j && j < len(late[i]) {
			known = append(known, late[i][j])
		}
	}
	if len(known) == 0 {
		return 0
	}
	slices.SortFunc(known, cmp.Compare[time.Duration])
	cost := known[(len(known)-1)/2]
	for _, d := range late[j] {
		cost -= d
	}
	return max(0, cost)
}

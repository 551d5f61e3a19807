package topology

import "time"

// Progress is a node's progress in the step in flight.
type Progress struct {
	Done     bool   // it has answered the step
	Silent   bool   // it did not report its progress
	Busy     bool   // it computes; false: it waits for others
	Finished uint64 // pieces of the step that it has finished; all nodes have the same number of pieces
}

// waits reports whether the node only waits for others.
func (p Progress) waits() bool { return p.Done || !p.Silent && !p.Busy }

// Stall finds the nodes that hold up a step: those without progress for Deadline while all others wait.
// Gossip cannot detect them, since a process with a hanging executor or actor still answers its probes.
type Stall struct {
	Deadline time.Duration
	marks    []mark
}

type mark struct {
	finished uint64
	since    time.Duration
}

// Check takes the reports of all ranks at one moment of a step and returns the ranks that hold it
// up. The time counts from when another node waits. Until then all may be stuck on a shared
// resource.
func (s *Stall) Check(now time.Duration, ranks []Progress) []int {
	if len(s.marks) != len(ranks) {
		s.marks = make([]mark, len(ranks))
		for i, p := range ranks {
			s.marks[i] = mark{p.Finished, now}
		}
		return nil
	}
	waiting := 0
	for _, p := range ranks {
		if p.waits() {
			waiting++
		}
	}
	var out []int
	for i, p := range ranks {
		m := &s.marks[i]
		if waiting == 0 || !p.Silent && p.Finished != m.finished {
			*m = mark{p.Finished, now}
		}
		if !p.waits() && now-m.since >= s.Deadline {
			out = append(out, i)
		}
	}
	if waiting+len(out) < len(ranks) {
		return nil // a node works
	}
	return out
}

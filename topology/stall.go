package topology

import "time"

// Progress is how far a node is with the step in flight.
type Progress struct {
	Done     bool   // it has answered the step
	Silent   bool   // it did not say how far it is
	Busy     bool   // it computes; false: it waits for others
	Finished uint64 // pieces of the step that it has finished; all nodes have the same pieces
}

// waits: it could go on if others did.
func (p Progress) waits() bool { return p.Done || !p.Silent && !p.Busy }

// Stall finds the nodes that hold up a step: those that have made no progress for
// Deadline while all others wait. Gossip does not see them: a process whose
// executor or actor hangs answers its probes.
type Stall struct {
	Deadline time.Duration
	marks    []mark
}

type mark struct {
	finished uint64
	since    time.Duration
}

// Look takes what all ranks said at a moment of one step, and returns the ranks
// that hold it up. The time counts from when somebody waits: until then all may
// stand still for what they share, and one of them is the first to go on.
func (s *Stall) Look(now time.Duration, ranks []Progress) []int {
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
		return nil // somebody works
	}
	return out
}

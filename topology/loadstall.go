package topology

import "time"

// LoadProgress is how far a node is with its load.
type LoadProgress struct {
	Done   bool   // it has loaded, or has answered that it cannot
	Silent bool   // it did not say how far it is
	Moved  uint64 // a sum of what it has done; it grows with every piece
}

// LoadStall finds the nodes that hang while they load. A load may last for as long
// as it moves. Nobody waits for another there, so each is judged by itself, but for
// one thing: when none moves, what they share is at fault (a file server, this
// machine), and leaving one out would help nobody. When that is over, all have the
// whole deadline again: one of them is the first to move.
type LoadStall struct {
	Deadline time.Duration // a node that has not moved for this long hangs, if others move or are done
	All      time.Duration // when nobody has moved for this long, the load is over
	marks    []mark
	last     time.Duration // when somebody moved, or was done
}

// Look takes what all ranks said at a moment of one load. It returns those that
// hang, and whether the whole load is to be given up.
func (s *LoadStall) Look(now time.Duration, ranks []LoadProgress) (hung []int, over bool) {
	if len(s.marks) != len(ranks) {
		s.marks, s.last = make([]mark, len(ranks)), now
		for i, p := range ranks {
			s.marks[i] = mark{p.Moved, now}
		}
		return nil, false
	}
	done := 0
	for i, p := range ranks {
		if p.Done {
			done++
		}
		if m := &s.marks[i]; p.Done || !p.Silent && p.Moved != m.finished {
			*m, s.last = mark{p.Moved, now}, now
		}
	}
	stands := now-s.last > s.Deadline/2 // all of them
	for i, p := range ranks {
		m := &s.marks[i]
		if stands {
			m.since = now
		}
		if !p.Done && now-m.since >= s.Deadline {
			hung = append(hung, i)
		}
	}
	return hung, done < len(ranks) && hung == nil && now-s.last >= s.All
}

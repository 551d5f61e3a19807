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
// machine), and leaving one out would help nobody.
type LoadStall struct {
	Deadline time.Duration // a node that has not moved for this long hangs, if others move or are done
	All      time.Duration // when nobody has moved for this long, the load is over
	marks    []mark
}

// Look takes what all ranks said at a moment of one load. It returns those that
// hang, and whether the whole load is to be given up.
func (s *LoadStall) Look(now time.Duration, ranks []LoadProgress) (hung []int, over bool) {
	if len(s.marks) != len(ranks) {
		s.marks = make([]mark, len(ranks))
		for i, p := range ranks {
			s.marks[i] = mark{p.Moved, now}
		}
		return nil, false
	}
	works, last, done := false, time.Duration(0), 0
	for i, p := range ranks {
		m := &s.marks[i]
		if p.Done || !p.Silent && p.Moved != m.finished {
			*m = mark{p.Moved, now}
		}
		last = max(last, m.since)
		switch {
		case p.Done:
			works = true
			done++
		case now-m.since >= s.Deadline:
			hung = append(hung, i)
		default:
			works = true
		}
	}
	if !works {
		hung = nil
	}
	return hung, done < len(ranks) && hung == nil && now-last >= s.All
}

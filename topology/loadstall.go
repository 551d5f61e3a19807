package topology

import "time"

// LoadProgress is a node's progress in a load.
type LoadProgress struct {
	Done   bool   // it has loaded, or has answered with an error
	Silent bool   // it did not report its progress
	Moved  uint64 // grows with every piece of work done
}

// LoadStall finds the nodes that hang in a load. A load may take any time as long as it makes progress.
// Nodes load independently, so each is judged by itself. If no node makes progress, a shared resource
// is at fault (a file server, this machine), and leaving one node out would not help. When a node makes
// progress again, all nodes get the whole deadline again.
type LoadStall struct {
	Deadline time.Duration // a node without progress for this long hangs, if others move or are done
	All      time.Duration // if no node moves for this long, the load is abandoned
	marks    []mark
	last     time.Duration // when a node last moved or was done
}

// Check takes the reports of all ranks at one moment of a load. It returns the ranks that hang, and
// whether to abandon the load.
func (s *LoadStall) Check(now time.Duration, ranks []LoadProgress) (hung []int, over bool) {
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
	stands := now-s.last > s.Deadline/2 // no node moves
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

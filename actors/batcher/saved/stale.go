package saved

import (
	"maps"
	"slices"
)

// Stale lists the newest sessions with unused files, and the sockets that have removed them. All files of an ended
// session are unused. So are files on sockets other than the one with the newest cache. A socket that left removes its
// files when it has joined again. The zero value has no sessions.
type Stale struct {
	list   []*stale // the oldest first
	epoch  uint32   // of the newest Due
	orders map[uint64]removal
	busy   map[string]int  // unanswered orders, by ID of the socket
	waits  map[string]bool // IDs of sockets that had maxRemovals orders when a session was due
	due    bool            // a session was added, or waits for a socket that has answered
	retry  int64           // the earliest time of an order after an error; 0: none
}

type stale struct {
	session string
	clean   map[string]bool // by ID of a socket of this epoch: true: it has no file of it; false: it is asked
	keeps   []string        // IDs of sockets that have a newer file, or write one
	after   int64           // no order before this time
	settled bool            // no order is due in this epoch
}

// removal is an unanswered order.
type removal struct {
	of  *stale
	ids []string // of the sockets
}

// Removal is an order to remove the files of a session from some sockets.
type Removal struct {
	Number  uint64
	Session string
	Sockets []int // indices in the list of Due
}

const (
	maxStale      = 2048   // the sessions of a server (sessions.MaxSessions), and as many that are over
	maxRemovals   = 64     // orders that a socket has at once
	removalMillis = 60_000 // time from an error to the next order
)

// End adds a session that is over.
func (s *Stale) End(session string) {
	s.list = slices.DeleteFunc(s.list, func(x *stale) bool { return x.session == session })
	s.add(session)
}

// Writes records that a socket writes a newer file of a session, which no later order removes.
func (s *Stale) Writes(session, id string) {
	if x := s.find(session); x != nil {
		delete(x.clean, id)
		if !slices.Contains(x.keeps, id) {
			x.keeps = append(x.keeps, id)
		}
	}
}

// Wrote records that the newest file of a session is complete. Those on other sockets are of no use.
func (s *Stale) Wrote(session, id string) {
	x := s.find(session)
	if x == nil {
		x = s.add(session)
	}
	x.keeps, x.settled, s.due = []string{id}, false, true
}

func (s *Stale) add(session string) *stale {
	if len(s.list) == maxStale {
		s.list = slices.Delete(s.list, 0, 1)
	}
	x := &stale{session: session, clean: map[string]bool{}}
	s.list, s.due = append(s.list, x), true
	return x
}

func (s *Stale) find(session string) *stale {
	at := slices.IndexFunc(s.list, func(x *stale) bool { return x.session == session })
	if at < 0 {
		return nil
	}
	return s.list[at]
}

// Asks reports whether Due may have orders.
func (s *Stale) Asks(epoch uint32, now int64) bool {
	return s.epoch != epoch || s.due || s.retry != 0 && now >= s.retry
}

// Due returns the orders for sockets with a disk, by ID. A socket that has no file of a session is not asked again in an
// epoch. next returns the number of an order.
func (s *Stale) Due(epoch uint32, now int64, ids []string, next func() uint64) (due []Removal) {
	if s.epoch != epoch || s.orders == nil {
		s.begin(epoch, ids)
	}
	s.due, s.retry = false, 0
	clear(s.waits)
	for _, x := range s.list {
		if x.settled {
			continue
		}
		x.settled = true
		r := Removal{Session: x.session}
		var requested []string
		for i, id := range ids {
			_, asks := x.clean[id]
			switch {
			case asks || slices.Contains(x.keeps, id):
			case now < x.after:
				x.settled = false
				if s.retry == 0 || x.after < s.retry {
					s.retry = x.after
				}
			case s.busy[id] >= maxRemovals:
				x.settled, s.waits[id] = false, true
			default:
				r.Sockets, requested = append(r.Sockets, i), append(requested, id)
				s.busy[id]++
				x.clean[id] = false
			}
		}
		if len(requested) > 0 {
			r.Number = next()
			s.orders[r.Number] = removal{x, requested}
			due = append(due, r)
		}
	}
	return due
}

// begin begins an epoch. Orders of an earlier one get no answer.
func (s *Stale) begin(epoch uint32, ids []string) {
	s.epoch, s.orders, s.busy, s.waits = epoch, map[uint64]removal{}, map[string]int{}, map[string]bool{}
	for _, x := range s.list {
		x.after, x.settled = 0, false
		maps.DeleteFunc(x.clean, func(id string, clean bool) bool { return !clean || !slices.Contains(ids, id) })
	}
}

// Done processes the answer to an order. After an error its sockets are asked again in removalMillis, or in the next epoch.
func (s *Stale) Done(d Done, now int64) {
	o, ok := s.orders[d.Number]
	if !ok {
		return
	}
	delete(s.orders, d.Number)
	for _, id := range o.ids {
		s.busy[id]--
		if _, requested := o.of.clean[id]; requested { // else it has a newer file
			if o.of.clean[id] = true; d.Err != "" {
				delete(o.of.clean, id)
			}
		}
		if s.waits[id] && s.busy[id] <= maxRemovals/2 { // not after each answer: Due looks at all sessions
			s.due = true
		}
	}
	if d.Err == "" {
		return
	}
	if o.of.after, o.of.settled = now+removalMillis, false; s.retry == 0 {
		s.retry = o.of.after
	}
}

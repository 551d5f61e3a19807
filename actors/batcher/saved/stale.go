package saved

import (
	"maps"
	"slices"
)

// Stale remembers the newest sessions with files that are of no use, and the sockets that have removed them. All files of
// a session that is over are of no use, and those of other sockets than the one with the newest cache. A socket that was
// away is asked when it is there again. The zero value has no sessions.
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
func (e *Stale) End(session string) {
	e.list = slices.DeleteFunc(e.list, func(x *stale) bool { return x.session == session })
	e.add(session)
}

// Writes records that a socket writes a newer file of a session, which no later order removes.
func (e *Stale) Writes(session, id string) {
	if x := e.find(session); x != nil {
		delete(x.clean, id)
		if !slices.Contains(x.keeps, id) {
			x.keeps = append(x.keeps, id)
		}
	}
}

// Wrote records that the newest file of a session is complete. Those on other sockets are of no use.
func (e *Stale) Wrote(session, id string) {
	x := e.find(session)
	if x == nil {
		x = e.add(session)
	}
	x.keeps, x.settled, e.due = []string{id}, false, true
}

func (e *Stale) add(session string) *stale {
	if len(e.list) == maxStale {
		e.list = slices.Delete(e.list, 0, 1)
	}
	x := &stale{session: session, clean: map[string]bool{}}
	e.list, e.due = append(e.list, x), true
	return x
}

func (e *Stale) find(session string) *stale {
	at := slices.IndexFunc(e.list, func(x *stale) bool { return x.session == session })
	if at < 0 {
		return nil
	}
	return e.list[at]
}

// Asks reports whether Due may have orders.
func (e *Stale) Asks(epoch uint32, now int64) bool {
	return e.epoch != epoch || e.due || e.retry != 0 && now >= e.retry
}

// Due returns the orders for sockets with a disk, by ID. A socket that has no file of a session is not asked again in an
// epoch. next returns the number of an order.
func (e *Stale) Due(epoch uint32, now int64, ids []string, next func() uint64) (due []Removal) {
	if e.epoch != epoch || e.orders == nil {
		e.begin(epoch, ids)
	}
	e.due, e.retry = false, 0
	clear(e.waits)
	for _, x := range e.list {
		if x.settled {
			continue
		}
		x.settled = true
		r := Removal{Session: x.session}
		var asked []string
		for i, id := range ids {
			_, asks := x.clean[id]
			switch {
			case asks || slices.Contains(x.keeps, id):
			case now < x.after:
				x.settled = false
				if e.retry == 0 || x.after < e.retry {
					e.retry = x.after
				}
			case e.busy[id] >= maxRemovals:
				x.settled, e.waits[id] = false, true
			default:
				r.Sockets, asked = append(r.Sockets, i), append(asked, id)
				e.busy[id]++
				x.clean[id] = false
			}
		}
		if len(asked) > 0 {
			r.Number = next()
			e.orders[r.Number] = removal{x, asked}
			due = append(due, r)
		}
	}
	return due
}

// begin begins an epoch. Orders of an earlier one get no answer.
func (e *Stale) begin(epoch uint32, ids []string) {
	e.epoch, e.orders, e.busy, e.waits = epoch, map[uint64]removal{}, map[string]int{}, map[string]bool{}
	for _, x := range e.list {
		x.after, x.settled = 0, false
		maps.DeleteFunc(x.clean, func(id string, clean bool) bool { return !clean || !slices.Contains(ids, id) })
	}
}

// Done takes the answer to an order. After an error its sockets are asked again in removalMillis, or in the next epoch.
func (e *Stale) Done(d Done, now int64) {
	o, ok := e.orders[d.Number]
	if !ok {
		return
	}
	delete(e.orders, d.Number)
	for _, id := range o.ids {
		e.busy[id]--
		if _, asked := o.of.clean[id]; asked { // else it has a newer file
			if o.of.clean[id] = true; d.Err != "" {
				delete(o.of.clean, id)
			}
		}
		if e.waits[id] && e.busy[id] <= maxRemovals/2 { // not after each answer: Due looks at all sessions
			e.due = true
		}
	}
	if d.Err == "" {
		return
	}
	if o.of.after, o.of.settled = now+removalMillis, false; e.retry == 0 {
		e.retry = o.of.after
	}
}

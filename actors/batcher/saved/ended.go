package saved

import (
	"maps"
	"slices"
)

// Ended remembers the newest sessions that are over, and the sockets that have removed their files. A socket that was
// away is asked when it is there again. The zero value has no sessions.
type Ended struct {
	list   []*ended // the oldest first
	epoch  uint32   // of the newest Due
	orders map[uint64]removal
	busy   map[string]int  // unanswered orders, by ID of the socket
	waits  map[string]bool // IDs of sockets that had maxRemovals orders when a session was due
	due    bool            // a session was added, or waits for a socket that has answered
	retry  int64           // the earliest time of an order after an error; 0: none
}

type ended struct {
	session string
	clean   map[string]bool // by ID of a socket of this epoch: true: it has no file of it; false: it is asked
	keeps   []string        // IDs of sockets that have a file of a newer session of the name, or write one
	after   int64           // no order before this time
}

// removal is an unanswered order.
type removal struct {
	of  *ended
	ids []string // of the sockets
}

// Removal is an order to remove the files of a session from some sockets.
type Removal struct {
	Number  uint64
	Session string
	Sockets []int // indices in the list of Due
}

const (
	maxEnded      = 1024
	maxRemovals   = 64     // orders that a socket has at once
	removalMillis = 60_000 // time from an error to the next order
)

// Add adds a session that is over.
func (e *Ended) Add(session string) {
	e.list = slices.DeleteFunc(e.list, func(x *ended) bool { return x.session == session })
	if len(e.list) == maxEnded {
		e.list = slices.Delete(e.list, 0, 1)
	}
	e.list = append(e.list, &ended{session: session, clean: map[string]bool{}})
	e.due = true
}

// Writes records that a socket writes a file of a newer session of the name, which no later order removes.
func (e *Ended) Writes(session, id string) {
	if x := e.find(session); x != nil && !slices.Contains(x.keeps, id) {
		x.keeps = append(x.keeps, id)
	}
}

// Wrote records that the newest file of a newer session of the name is complete. It is of no use on other sockets.
func (e *Ended) Wrote(session, id string) {
	if x := e.find(session); x != nil {
		x.keeps = []string{id}
	}
}

func (e *Ended) find(session string) *ended {
	at := slices.IndexFunc(e.list, func(x *ended) bool { return x.session == session })
	if at < 0 {
		return nil
	}
	return e.list[at]
}

// Asks reports whether Due may have orders.
func (e *Ended) Asks(epoch uint32, now int64) bool {
	return e.epoch != epoch || e.due || e.retry != 0 && now >= e.retry
}

// Due returns the orders for sockets with a disk, by ID. A socket that has no file of a session is not asked again in an
// epoch. next returns the number of an order.
func (e *Ended) Due(epoch uint32, now int64, ids []string, next func() uint64) (due []Removal) {
	if e.epoch != epoch || e.orders == nil {
		e.begin(epoch, ids)
	}
	e.due, e.retry = false, 0
	clear(e.waits)
	for _, x := range e.list {
		r := Removal{Session: x.session}
		var asked []string
		for i, id := range ids {
			_, asks := x.clean[id]
			switch {
			case asks || slices.Contains(x.keeps, id):
			case now < x.after:
				if e.retry == 0 || x.after < e.retry {
					e.retry = x.after
				}
			case e.busy[id] >= maxRemovals:
				e.waits[id] = true
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
func (e *Ended) begin(epoch uint32, ids []string) {
	e.epoch, e.orders, e.busy, e.waits = epoch, map[uint64]removal{}, map[string]int{}, map[string]bool{}
	for _, x := range e.list {
		x.after = 0
		maps.DeleteFunc(x.clean, func(id string, clean bool) bool { return !clean || !slices.Contains(ids, id) })
	}
}

// Done takes the answer to an order. After an error its sockets are asked again in removalMillis, or in the next epoch.
func (e *Ended) Done(d Done, now int64) {
	o, ok := e.orders[d.Number]
	if !ok {
		return
	}
	delete(e.orders, d.Number)
	for _, id := range o.ids {
		e.busy[id]--
		if o.of.clean[id] = true; d.Err != "" {
			delete(o.of.clean, id)
		}
		if e.waits[id] && e.busy[id] <= maxRemovals/2 { // not after each answer: Due looks at all sessions
			e.due = true
		}
	}
	if d.Err == "" {
		return
	}
	if o.of.after = now + removalMillis; e.retry == 0 {
		e.retry = o.of.after
	}
}

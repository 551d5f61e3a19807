package saved

import "slices"

// Ended remembers the newest sessions that are over, and the sockets that have removed their files. A socket that was
// away is asked when it is there again. The zero value has no sessions.
type Ended struct {
	list  []*ended // the oldest first
	epoch uint32   // of the newest Due
	asks  bool     // a session was added since
}

type ended struct {
	session string
	clean   map[string]bool // IDs of sockets without a file of it
	number  uint64          // of the order under way
	asked   []string        // by it
}

// Removal is an order to remove the files of a session from some sockets.
type Removal struct {
	Number  uint64
	Session string
	Sockets []int // indices in the list of Due
}

const maxEnded = 1024

// Add adds a session that is over.
func (e *Ended) Add(session string) {
	e.Remove(session)
	if len(e.list) == maxEnded {
		e.list = slices.Delete(e.list, 0, 1)
	}
	e.list = append(e.list, &ended{session: session, clean: map[string]bool{}})
	e.asks = true
}

// Remove forgets a session: another one of its name has begun.
func (e *Ended) Remove(session string) {
	e.list = slices.DeleteFunc(e.list, func(x *ended) bool { return x.session == session })
}

// Due returns the orders for sockets with a disk, by ID: once in each epoch, and after each Add. next returns the number
// of an order.
func (e *Ended) Due(epoch uint32, ids []string, next func() uint64) (due []Removal) {
	if e.epoch == epoch && !e.asks {
		return nil
	}
	again := e.epoch != epoch // the answers of an earlier epoch do not come any more
	e.epoch, e.asks = epoch, false
	for _, x := range e.list {
		if x.number != 0 && !again {
			continue
		}
		var sockets []int
		x.number, x.asked = 0, nil
		for i, id := range ids {
			if !x.clean[id] {
				sockets, x.asked = append(sockets, i), append(x.asked, id)
			}
		}
		if len(sockets) > 0 {
			x.number = next()
			due = append(due, Removal{x.number, x.session, sockets})
		}
	}
	return due
}

// Done takes the answer to an order. After an error its sockets are asked again in the next epoch.
func (e *Ended) Done(d Done) {
	for _, x := range e.list {
		if x.number == 0 || x.number != d.Number {
			continue
		}
		for _, id := range x.asked {
			if d.Err == "" {
				x.clean[id] = true
			}
		}
		x.number, x.asked = 0, nil
	}
}

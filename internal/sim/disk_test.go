package sim

import (
	"errors"
	"slices"
	"time"

	"github.com/shoal-llm/shoal/internal/jobs/journal"
)

// disk is the store of jobs and behaves like JetStream: an append names the last message of its
// journal, and is acknowledged when it is synced. On a power loss an unsynced message is lost, or
// present without acknowledgement, or truncated.
type disk struct {
	shelves map[string]*shelf
	order   []string // of the journals, by creation
	seq     uint64
	life    int // power losses so far
	down    bool
	full    bool
}

// shelf is one journal.
type shelf struct {
	messages []journal.Message
	from     map[uint64]*coordinator // the writer of each message
	synced   int                     // number of synced messages
	torn     bool
}

func (s *shelf) last() uint64 {
	if len(s.messages) == 0 {
		return 0
	}
	return s.messages[len(s.messages)-1].Seq
}

func (d *disk) shelf(name string) *shelf {
	s := d.shelves[name]
	if s == nil {
		s = &shelf{from: map[uint64]*coordinator{}}
		d.shelves[name] = s
		d.order = append(d.order, name)
	}
	return s
}

var errNoAnswer = errors.New("sim: the store does not answer")

// once forwards the first call to done, and calls it with an error after a limit.
func (c *coordinator) once(done func(seq uint64, read []journal.Message, err error)) func(uint64, []journal.Message, error) {
	over := false
	end := func(seq uint64, read []journal.Message, err error) {
		if !over {
			over = true
			done(seq, read, err)
		}
	}
	c.w.after(c.process, c.w.cfg.store, func() { end(0, nil, errNoAnswer) })
	return func(seq uint64, read []journal.Message, err error) {
		c.w.after(c.process, c.w.transit(), func() { end(seq, read, err) })
	}
}

// appendLog sends a message to the store.
func (c *coordinator) appendLog(name string, after uint64, data []byte, done func(uint64, error)) {
	w, d := c.w, &c.w.disk
	answer := c.once(func(seq uint64, _ []journal.Message, err error) { done(seq, err) })
	w.after(nil, w.transit(), func() {
		s := d.shelf(name)
		switch {
		case d.down:
			w.cover[StoreDown]++
			return
		case d.full:
			w.cover[StoreFull]++
			answer(0, nil, journal.ErrFull)
			return
		case s.last() != after && w.opt.Bug != LogNoCompare:
			answer(0, nil, journal.ErrConflict)
			return
		}
		d.seq++
		seq, life := d.seq, d.life
		s.messages, s.from[seq] = append(s.messages, journal.Message{Seq: seq, Data: data}), c
		if w.opt.Bug == EarlyAck {
			answer(seq, nil, nil)
		}
		if w.faults.power--; w.faults.power == 0 && w.faults.active {
			w.blackout()
		}
		w.after(nil, w.between(50*time.Microsecond, 2*time.Millisecond), func() {
			if d.life != life {
				return
			}
			for s.synced < len(s.messages) && s.messages[s.synced].Seq <= seq {
				s.synced++
			}
			for _, o := range w.coords {
				if o != c && o.entries != nil {
					w.after(o.process, w.transit(), func() { o.followed(name, seq) })
				}
			}
			if w.faults.active && w.chance(16) {
				w.cover[LostAck]++
				return
			}
			answer(seq, nil, nil)
		})
	})
}

// readLog reads the synced messages of a journal after a given one.
func (c *coordinator) readLog(name string, after uint64, done func([]journal.Message, error)) {
	w, d := c.w, &c.w.disk
	answer := c.once(func(_ uint64, read []journal.Message, err error) { done(read, err) })
	w.after(nil, w.transit(), func() {
		if !d.down {
			answer(0, d.synced(name, after), nil)
		}
	})
}

func (d *disk) synced(name string, after uint64) (out []journal.Message) {
	if s := d.shelves[name]; s != nil {
		for _, m := range s.messages[:s.synced] {
			if m.Seq > after {
				out = append(out, m)
			}
		}
	}
	return out
}

// blackout is a power loss of the store.
func (w *world) blackout() {
	d := &w.disk
	if d.down {
		return
	}
	d.down, d.life = true, d.life+1
	w.cover[Blackout]++
	w.logf("store: the power fails")
	for _, name := range d.order {
		s := d.shelves[name]
		lost := s.messages[s.synced:]
		if len(lost) == 0 {
			continue
		}
		first := lost[0]
		s.messages = slices.Clone(s.messages[:s.synced])
		switch w.rng.IntN(6) {
		case 0, 1: // it is present, but unacknowledged
			s.messages = append(s.messages, first)
		case 2: // half of it is present
			first.Data = first.Data[:w.rng.IntN(len(first.Data))]
			s.messages, s.torn = append(s.messages, first), true
			w.cover[TornRecord]++
			w.logf("store: message %d of %s is torn", first.Seq, name)
		default:
			w.cover[LostWrite]++
		}
		s.synced = len(s.messages)
	}
	w.after(nil, w.spell()/4, func() { w.disk.down = false })
}

// fill makes the store full for a while.
func (w *world) fill() {
	w.disk.full = true
	w.logf("store: it is full")
	w.after(nil, w.spell()/2, func() { w.disk.full = false })
}

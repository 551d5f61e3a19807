package sim

import (
	"encoding/json"
	"errors"
	"time"

	"github.com/shoal-llm/shoal/internal/jobs"
	"github.com/shoal-llm/shoal/internal/jobs/journal"
)

// The parts of internal/jobs/store.go and journal/writer.go: the real State, Journal and Writing in
// each coordinator, over a store that fails.

// entry is a coordinator's knowledge of a job.
type entry struct {
	id      string
	k       *client
	journal journal.Journal
	state   jobs.State
	events  []jobs.Logged
	damage  error
	busy    bool     // the journal is being written
	queue   []func() // waiting writers
	run     *attempt
	pause   int64 // no attempt before this time
}

var rules = jobs.Rules{MaxFailures: 3, MaxTakeovers: 3, Backoff: 10 * time.Millisecond, MaxBackoff: 80 * time.Millisecond}

// wall is the clock of records: it continues when a process restarts.
func (w *world) wall() int64 { return 1_000_000 + w.now.Milliseconds() }

func (c *coordinator) entry(id string) *entry {
	e := c.entries[id]
	if e == nil {
		e = &entry{id: id, journal: journal.Journal{Name: id}}
		for _, k := range c.w.clients {
			if k.spec.ID == id {
				e.k = k
			}
		}
		c.entries[id] = e
		c.jobs = append(c.jobs, e)
	}
	return e
}

// openJobs is jobs.NewStore and Start.
func (c *coordinator) openJobs() {
	c.w.after(c.process, c.w.transit(), func() {
		d := &c.w.disk
		if d.down {
			c.openJobs()
			return
		}
		c.entries = map[string]*entry{}
		for _, name := range d.order {
			if read := d.synced(name, 0); len(read) > 0 {
				_ = c.catchUp(c.entry(name), read) // a damaged job is marked by catchUp
			}
		}
		c.every(c.w.cfg.tick/4, c.dispatch)
	})
}

// fold applies a record, its own or another coordinator's.
func (c *coordinator) fold(e *entry, r *journal.Record) error {
	n, err := jobs.UpdateOf(r)
	if err != nil {
		return err
	}
	next := e.state
	if err := next.Apply(n); err != nil {
		return err
	}
	if n.Kind == jobs.KindTokens {
		_, events, err := jobs.DecodeTokens(r.Payload)
		if err != nil {
			return err
		}
		e.events = append(e.events, events...)
	}
	e.state = next
	c.sendEvents(e)
	return nil
}

func (c *coordinator) catchUp(e *entry, read []journal.Message) error {
	err := e.journal.CatchUp(read, func(r *journal.Record) error { return c.fold(e, r) })
	if err != nil {
		c.markDamaged(e, err)
	}
	return err
}

// markDamaged marks a job whose records are damaged.
func (c *coordinator) markDamaged(e *entry, err error) {
	if e.damage == nil {
		e.damage = err
		c.w.logf("%s: %s is damaged: %v", c.name, e.id, err)
		c.sendEvents(e)
	}
}

// lock is the journal's lock: one writer at a time.
func (e *entry) lock(do func()) {
	if e.busy {
		e.queue = append(e.queue, do)
		return
	}
	e.busy = true
	do()
}

func (e *entry) unlock() {
	e.busy = false
	if len(e.queue) > 0 {
		next := e.queue[0]
		e.queue = e.queue[1:]
		e.lock(next)
	}
}

// followed is jobs.Store.Follow: another coordinator has written.
func (c *coordinator) followed(name string, seq uint64) {
	e := c.entry(name)
	e.lock(func() {
		if e.journal.Last() >= seq || e.damage != nil {
			e.unlock()
			return
		}
		c.readLog(name, e.journal.Last(), func(read []journal.Message, err error) {
			if err == nil {
				_ = c.catchUp(e, read)
			}
			e.unlock()
		})
	})
}

// append is jobs.Store.append. over: the caller does not need it any more.
func (c *coordinator) append(e *entry, n jobs.Update, payload []byte, over func() bool, done func(error)) {
	e.lock(func() {
		end := func(err error) {
			e.unlock()
			if errors.Is(err, journal.ErrDamaged) {
				c.markDamaged(e, err)
			}
			done(err)
		}
		write := func() {
			next := e.state
			if e.damage != nil {
				end(e.damage)
				return
			}
			if err := next.Apply(n); err != nil {
				end(err)
				return
			}
			r := jobs.NewRecord(n, payload)
			w, move := e.journal.Write(&r)
			c.move(e, w, move, over, func(err error) {
				if err == nil {
					err = c.fold(e, &r)
				}
				end(err)
			})
		}
		if !e.journal.MustCatchUp() {
			write()
			return
		}
		c.readLog(e.id, e.journal.Last(), func(read []journal.Message, err error) {
			if err == nil {
				err = c.catchUp(e, read)
			}
			if err != nil {
				end(err)
				return
			}
			write()
		})
	})
}

// move carries out a move of a Writing.
func (c *coordinator) move(e *entry, w *journal.Writing, move journal.Move, over func() bool, done func(error)) {
	next := func(m journal.Move) { c.move(e, w, m, over, done) }
	switch move {
	case journal.MoveAppend:
		if c.dies(true, KilledBeforeWrite) {
			return
		}
		c.stalls(FrozenBeforeWrite, func() {
			c.appendLog(e.id, e.journal.Last(), w.Data, func(seq uint64, err error) {
				if !c.dies(err == nil, KilledBeforeAck) {
					next(w.Appended(seq, err))
				}
			})
		})
	case journal.MoveRead:
		c.readLog(e.id, e.journal.Last(), func(read []journal.Message, err error) {
			m := w.Found(read, err, func(r *journal.Record) error { return c.fold(e, r) })
			if m == journal.MoveEnd && w.Err == nil {
				c.w.cover[FoundAfterAll]++
			}
			next(m)
		})
	case journal.MovePause:
		c.w.after(c.process, w.Pause, func() { next(w.Waited(over())) })
	case journal.MoveEnd:
		done(w.Err)
	}
}

func never() bool { return false }

// accept answers a client that requests its job with this key, for the first or another time.
func (c *coordinator) accept(k *client, answer func(err error)) {
	e := c.entry(k.spec.ID)
	if e.state.Phase != "" || e.damage != nil {
		c.w.cover[AcceptedBefore]++
		answer(e.damage)
		return
	}
	until := c.w.now + 2*c.w.cfg.store
	spec, _ := json.Marshal(jobs.Spec{Endpoint: "/v1/completions", Body: json.RawMessage(`{}`), Key: k.spec.ID})
	c.append(e, jobs.Update{Kind: jobs.KindAccept, At: c.w.wall()}, spec, func() bool { return c.w.now > until }, func(err error) {
		if e.state.Phase != "" {
			err = nil
		}
		answer(err)
	})
}

// cancelJob is jobs.stopJob.
func (c *coordinator) cancelJob(k *client) {
	e := c.entry(k.spec.ID)
	if e.state.Phase.Final() || e.damage != nil {
		return
	}
	until := c.w.now + 4*c.w.cfg.store
	c.append(e, jobs.Update{Kind: jobs.KindCancel, At: c.w.wall()}, nil, func() bool { return c.w.now > until }, func(err error) {
		switch {
		case errors.Is(err, journal.ErrConflict):
			c.cancelJob(k)
		case err == nil && e.run != nil:
			e.run.end(err)
		}
	})
}

// dispatch is jobs.Service.startDue.
func (c *coordinator) dispatch() {
	if !c.ready() {
		return
	}
	for _, e := range c.jobs {
		n, ok := e.state.Begin(c.w.wall(), rules)
		if !ok || e.run != nil || e.damage != nil || c.w.wall() < e.pause || c.dead {
			continue
		}
		if n.Kind == jobs.KindStart && e.state.Phase == jobs.Running {
			c.w.cover[JobTakenOver]++
		}
		a := &attempt{c: c, e: e}
		e.run = a
		c.append(e, n, nil, never, func(err error) {
			if err != nil || n.Kind == jobs.KindDead {
				a.end(err)
				return
			}
			a.number = n.Attempt
			a.resume()
		})
	}
}

// sendEvents sends the client of a job its new events: GET .../events?from=N.
func (c *coordinator) sendEvents(e *entry) {
	if e.k == nil || e.k.at != c {
		return
	}
	if e.k.next > 0 && !e.k.received {
		c.w.cover[Reattached]++
	}
	e.k.received = true
	c.w.after(nil, c.w.transit(), func() {
		if !c.dead && e.k.at == c {
			e.k.events(e)
		}
	})
}

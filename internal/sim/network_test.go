package sim

import (
	"errors"
	"time"
)

// network delays, repeats or loses messages. Links are by slot, the coordinators' last; they survive
// processes.
type network struct {
	links [maxNodes + maxRivals][maxNodes + maxRivals]link
	loss  int  // one in this many messages is lost; 0: none
	twice int  // ... is repeated
	late  int  // ... is much delayed
	storm bool // ... is delayed about as long as a new epoch takes
	cuts  int  // number of cut links

	troubled time.Duration // when it last started or stopped being disturbed
}

// link is one direction of one pair.
type link struct {
	cut   bool
	waits []func() // messages held until a cut link heals, as by TCP; the others are lost
}

func (p *process) port() int {
	if p.slot < 0 {
		return maxNodes - 1 - p.slot
	}
	return p.slot
}

// reaches reports whether messages pass from a to b.
func (w *world) reaches(a, b *process) bool { return !w.net.links[a.port()][b.port()].cut }

// send sends a message; do runs at its arrival. It may be lost, repeated, delayed and reordered.
func (w *world) send(from, to *process, do func()) {
	if from.dead {
		return
	}
	n := &w.net
	if n.loss > 0 && w.chance(n.loss) {
		w.cover[LostMessage]++
		return
	}
	l := &n.links[from.port()][to.port()]
	if l.cut {
		w.cover[CutMessage]++
		if w.chance(2) {
			l.waits = append(l.waits, func() { w.after(to, w.transit(), do) })
		}
		return
	}
	w.after(to, w.transit(), do)
	if n.twice > 0 && w.chance(n.twice) {
		w.cover[RepeatedMessage]++
		w.after(to, w.transit()*4, do)
	}
}

// transit is the latency of a message.
func (w *world) transit() time.Duration {
	d := w.between(50*time.Microsecond, 800*time.Microsecond)
	if w.net.late > 0 && w.chance(w.net.late) {
		w.cover[LateMessage]++
		if w.net.storm {
			return d + w.between(5*time.Millisecond, 90*time.Millisecond)
		}
		d += w.between(time.Millisecond, 400*time.Millisecond)
	}
	return d
}

func (w *world) cut(a, b int) {
	if l := &w.net.links[a][b]; !l.cut {
		l.cut = true
		w.net.cuts++
	}
}

// heal repairs a link; the held messages arrive now.
func (w *world) heal(a, b int) {
	l := &w.net.links[a][b]
	if !l.cut {
		return
	}
	held := l.waits
	l.cut, l.waits = false, nil
	w.net.cuts--
	w.trouble()
	for _, do := range held {
		do()
	}
}

// Errors of calls, as in package rpc.
var (
	errUnreachable = errors.New("rpc: peer unreachable")
	errTimeout     = errors.New("rpc: no answer before the deadline")
)

// call is a request that waits for its answer.
type call struct {
	from, to *process
	over     bool
	done     func(any, error)
}

// ask sends a request and waits for one answer, like rpc.System.Call: done is called once, with the
// first answer or an error. serve runs at the receiver for every copy that arrives.
func (w *world) ask(from, to *process, limit time.Duration, serve func(reply func(any, error)), done func(any, error)) {
	c := &call{from: from, to: to, done: done}
	to.calls = append(to.calls, c)
	w.after(from, limit, func() { c.end(nil, errTimeout) })
	if to.dead {
		w.refuse(c)
		return
	}
	w.send(from, to, func() {
		serve(func(v any, err error) {
			w.send(to, from, func() { c.end(v, err) })
		})
	})
}

func (c *call) end(v any, err error) {
	if c.over {
		return
	}
	c.over = true
	c.done(v, err)
	if len(c.to.calls) > 64 {
		kept := c.to.calls[:0]
		for _, o := range c.to.calls {
			if !o.over {
				kept = append(kept, o)
			}
		}
		clear(c.to.calls[len(kept):])
		c.to.calls = kept
	}
}

// refuse fails a call to a dead process: its kernel, or its successor, refuses the connection,
// unless the way back is cut too.
func (w *world) refuse(c *call) {
	if !c.over && w.reaches(c.from, c.to) && w.reaches(c.to, c.from) {
		w.after(c.from, w.between(100*time.Microsecond, 3*time.Millisecond), func() { c.end(nil, errUnreachable) })
	}
}

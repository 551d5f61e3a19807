package sim

import (
	"fmt"
	"math/rand/v2"
	"time"
)

// world is the clock, the event queue and all participants.
type world struct {
	opt    Options
	cfg    config
	rng    *rand.Rand
	now    time.Duration
	queue  events
	serial uint64
	ran    int // events
	lives  uint64
	store  store
	disk   disk
	files  [maxNodes]map[string]*file // of the prefix cache, by slot of the node: they survive its processes

	coord   *coordinator   // the coordinator that was elected last
	coords  []*coordinator // competing coordinators, by place
	nodes   []*node        // by slot; a restarted node takes its predecessor's place
	clients []*client
	net     network
	faults  faults
	watch   *checker
	log     transcript
	cover   Cover
}

// process is one run of a program: a restart makes a new one.
type process struct {
	name        string
	slot        int // of the node; negative: coordinators
	incarnation uint64
	dead        bool
	frozen      bool
	slow        int           // slowdown; 1: not slow
	held        []event       // events while it was frozen
	calls       []*call       // calls to it that wait for an answer
	stirred     time.Duration // when it last started or resumed
	dragged     time.Duration // when it was last slow
}

// nextLife returns a process's incarnation: all are different, in no order.
func (w *world) nextLife() uint64 {
	w.lives++
	return w.lives * 6007 % 9973 // both are primes
}

// event happens at a moment, in a process (nil: outside).
type event struct {
	at     time.Duration
	serial uint64 // order among equal moments
	in     *process
	do     func()
}

// after schedules do in p after d. It is dropped if p is dead by then, and delayed while p is
// frozen.
func (w *world) after(p *process, d time.Duration, do func()) {
	w.serial++
	w.queue.push(event{w.now + d, w.serial, p, do})
}

// run processes events up to a moment, or until over returns true.
func (w *world) run(until time.Duration, over func() bool) {
	for len(w.queue) > 0 && w.queue[0].at <= until && w.watch.broken == "" && !over() {
		e := w.queue.pop()
		w.now = e.at
		w.ran++
		switch {
		case e.in == nil:
			e.do()
		case e.in.dead:
		case e.in.frozen:
			e.in.held = append(e.in.held, e)
		default:
			e.do()
		}
	}
}

// freeze stops a process like SIGSTOP; messages to it wait.
func (w *world) freeze(p *process) {
	if !p.dead && !p.frozen {
		p.frozen = true
		w.logf("%s freezes", p.name)
	}
}

// thaw resumes it: timers that are due and all messages arrive at once.
func (w *world) thaw(p *process) {
	if p.dead || !p.frozen {
		return
	}
	w.logf("%s continues, with %d queued events", p.name, len(p.held))
	p.frozen, p.stirred = false, w.now
	for _, e := range p.held {
		w.after(p, 0, e.do)
	}
	p.held = nil
}

// between draws a duration from [lo, hi).
func (w *world) between(lo, hi time.Duration) time.Duration {
	return lo + time.Duration(w.rng.Int64N(int64(max(hi-lo, 1))))
}

// chance is true once in n.
func (w *world) chance(n int) bool { return w.rng.IntN(n) == 0 }

func (w *world) logf(format string, args ...any) {
	if w.opt.Trace {
		w.log.add(w.now, fmt.Sprintf(format, args...))
	}
}

// events is a binary heap by (at, serial).
type events []event

func (h events) less(i, j int) bool {
	return h[i].at < h[j].at || h[i].at == h[j].at && h[i].serial < h[j].serial
}

func (h *events) push(e event) {
	*h = append(*h, e)
	q := *h
	for i := len(q) - 1; i > 0; {
		up := (i - 1) / 2
		if !q.less(i, up) {
			break
		}
		q[i], q[up] = q[up], q[i]
		i = up
	}
}

func (h *events) pop() event {
	q := *h
	top, last := q[0], len(q)-1
	q[0], q[last] = q[last], event{}
	*h = q[:last]
	q = q[:last]
	for i := 0; ; {
		down := 2*i + 1
		if down >= last {
			break
		}
		if down+1 < last && q.less(down+1, down) {
			down++
		}
		if !q.less(down, i) {
			break
		}
		q[i], q[down] = q[down], q[i]
		i = down
	}
	return top
}

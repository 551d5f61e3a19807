package collective

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// Group is one rank of a set of ranks that run collectives together, in one
// epoch. All methods may be called concurrently.
//
// Every operation returns at once and calls done exactly once: from a goroutine of the group or of
// the transport, or before it returns if there is nothing to wait for. done must not block. Slices
// that were passed in belong to the group until done is called.
//
//	NewGroup ──▶ running ──failure──▶ failed ──Close──▶ closed
//	                └──────────Close──────────────────────┘
type Group struct {
	cfg     Config
	t       Transport
	recycle func([]byte)
	poller  Poller // or nil

	mu        sync.Mutex
	work      sync.Cond // signals the worker that there is work
	st        *state
	timer     *time.Timer
	armed     bool
	clock     int64     // nanoseconds that this process has run, pauses left out
	lastClock time.Time // when clock was last advanced
	manual    bool      // without goroutine and clock: see ManualGroup
	closed    bool
	polled    bool // the polling goroutine does the work, not the worker
	working   bool // a goroutine is doing work and uses message

	message     []byte   // send buffer of the goroutine that does the work
	batch       []job    // chunks that Config.Parallel sends in parallel
	messages    [][]byte // send buffers of chunks, by index
	sendBatched func(i int)
	ended       chan struct{} // closed when the worker has returned
}

// NewGroup joins rank cfg.Rank to its group. The group owns t and closes it. A transport serves one
// group.
func NewGroup(cfg Config, t Transport) (*Group, error) {
	g, err := newGroup(cfg, t)
	if err != nil {
		return nil, err
	}
	if n, ok := t.(Notifier); ok {
		n.OnError(func(err error) {
			if e := (*OpError)(nil); !errors.As(err, &e) { // an OpError already names the ranks to blame
				err = &OpError{Err: ErrTransport, Cause: err}
			}
			g.Fail(err)
		})
	}
	go g.worker()
	t.Receive(g.receive)
	return g, nil
}

func newGroup(cfg Config, t Transport) (*Group, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if t == nil {
		return nil, fmt.Errorf("%w: no transport", ErrArgument)
	}
	g := &Group{cfg: cfg.ensureDefaults(), t: t, lastClock: time.Now(), ended: make(chan struct{}), recycle: func([]byte) {}}
	g.work.L = &g.mu
	g.sendBatched = func(i int) { g.sendChunk(g.batch[i], &g.messages[i]) }
	g.st = newState(g.cfg)
	if r, ok := t.(Recycler); ok {
		g.recycle = r.Recycle
	}
	g.poller, _ = t.(Poller)
	return g, nil
}

// begin describes and starts an operation. describe returns an error text for the arguments, or
// "".
func (g *Group) begin(id OpID, done func(error), describe func(*op) string) {
	g.mu.Lock()
	o := g.st.newOp(id, done)
	if g.st.err != nil {
		g.st.finish(o, g.st.err)
	} else if why := describe(o); why != "" {
		g.st.refuse(o, why)
	} else {
		g.st.start(g.now(), o)
	}
	if g.cfg.Size == 1 {
		g.combineAll()
	}
	g.arm()
	g.unlock()
}

// receive handles one message of the transport.
func (g *Group) receive(src int, msg []byte) {
	h, payload, bad := ParseMessage(msg)
	g.mu.Lock()
	g.st.stats.MessagesReceived++
	g.st.stats.BytesReceived += uint64(len(msg))
	if bad != DropNone {
		g.st.drop(bad)
		g.mu.Unlock()
		g.recycle(msg)
		return
	}
	if h.Kind == KindPost {
		g.posted(src, h, payload)
		g.recycle(msg)
		return
	}
	g.handle(src, h, payload, msg)
	g.combineAll()
	g.unlock()
}

// handle passes one message to the state. The lock is held on entry and exit.
func (g *Group) handle(src int, h Header, payload, msg []byte) {
	l, ok, keep := g.st.message(src, h, payload, msg)
	if keep {
		return
	}
	if ok && len(payload) > 0 {
		g.mu.Unlock()
		copy(l.dst, payload)
		g.recycle(msg)
		g.mu.Lock()
	} else {
		g.recycle(msg)
	}
	if ok {
		g.now() // for Late
		g.st.landed(l)
	}
}

// combineAll computes the reductions whose operands are complete. The lock is held on entry and
// exit.
func (g *Group) combineAll() {
	for {
		o, ok := g.st.combines.pop()
		if !ok {
			return
		}
		g.mu.Unlock()
		o.reduce.run()
		g.mu.Lock()
		g.st.combined(o)
	}
}

// unlock releases the lock and performs the actions that the state returned.
func (g *Group) unlock() {
	if !g.polled && g.busy() {
		g.work.Signal()
	}
	for {
		if g.st.notice {
			g.st.notice = false
			err := g.st.err
			if g.cfg.OnFail != nil && !g.closed {
				g.mu.Unlock()
				g.cfg.OnFail(err)
				g.mu.Lock()
			}
		}
		if msg, ok := g.st.recycled.pop(); ok {
			g.recycle(msg)
			continue
		}
		c, ok := g.st.dones.pop()
		if !ok {
			break
		}
		g.mu.Unlock()
		if c.done != nil {
			c.done(c.err)
		}
		g.mu.Lock()
	}
	g.mu.Unlock()
}

// now advances the clock, by at most two timer periods a call. After a pause of this process (a
// stopped VM, a starved container) the timer fires before the messages waiting in the sockets are
// read. The limit keeps the pause from being blamed on the peers.
func (g *Group) now() int64 {
	if g.manual {
		g.st.awake = g.clock
		return g.clock
	}
	t := time.Now()
	d := t.Sub(g.lastClock)
	g.clock += int64(min(d, 2*g.period()))
	g.st.awake += int64(min(d, 2*g.tickEvery()))
	g.lastClock = t
	return g.clock
}

// tickEvery returns the timer period while operations are pending. It is short, so that Late counts only
// a little of a pause of this process.
func (g *Group) tickEvery() time.Duration { return min(g.period(), 20*time.Millisecond) }

func (g *Group) period() time.Duration {
	return min(max(g.cfg.Deadline/16, time.Millisecond), 250*time.Millisecond)
}

// arm starts the deadline timer if operations are pending; idle groups have none.
func (g *Group) arm() {
	if g.armed || g.closed || g.manual || len(g.st.ops) == 0 {
		return
	}
	g.armed = true
	if g.timer == nil {
		g.timer = time.AfterFunc(g.tickEvery(), g.tick)
		return
	}
	g.timer.Reset(g.tickEvery())
}

func (g *Group) tick() {
	g.mu.Lock()
	g.armed = false
	g.st.tick(g.now())
	g.arm()
	g.unlock()
}

// Fail ends the group as if it had failed by itself: a dead process, a lost
// connection. Only the first failure counts.
func (g *Group) Fail(err error) {
	if err == nil {
		err = &OpError{Err: ErrTransport, Detail: "failed by the owner without a reason"}
	}
	g.mu.Lock()
	g.st.fail(err)
	g.unlock()
}

// Err returns the failure of the group, or nil.
func (g *Group) Err() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.st.err
}

// Hold reserves the work of the following operations for a Poll that the same goroutine calls next.
func (g *Group) Hold() {
	if !g.polls() {
		return
	}
	g.mu.Lock()
	g.polled = true
	g.mu.Unlock()
}

// Poll sends queued messages and delivers arrived ones on the caller's goroutine; see Poller. It
// returns false if the transport cannot be polled.
func (g *Group) Poll() bool {
	if !g.polls() {
		return false
	}
	g.mu.Lock()
	g.polled = true
	g.drain()
	g.mu.Unlock()
	g.poller.Poll()
	g.mu.Lock()
	g.drain()
	g.polled = false
	if g.busy() { // the worker was busy with one message and left the rest
		g.work.Signal()
	}
	g.mu.Unlock()
	return true
}

// Rest ends polling.
func (g *Group) Rest() {
	if g.poller != nil {
		g.poller.Rest()
	}
}

func (g *Group) polls() bool { return g.poller != nil && g.poller.Polls() }

// Close ends all operations with ErrClosed and closes the transport. It may be called from done and
// OnFail, and more than once. Done is closed when the worker has ended.
func (g *Group) Close() error {
	g.mu.Lock()
	if g.closed {
		g.mu.Unlock()
		return nil
	}
	g.closed = true
	g.st.fail(ErrClosed)
	if g.timer != nil {
		g.timer.Stop()
	}
	g.work.Broadcast()
	g.unlock()
	return g.t.Close()
}

// Done is closed when the group's goroutine has ended after Close.
func (g *Group) Done() <-chan struct{} { return g.ended }

// Rank and Size return the values of the config.
func (g *Group) Rank() int { return g.cfg.Rank }
func (g *Group) Size() int { return g.cfg.Size }

// Late returns how long this rank has waited for each other rank in total: from the moment when all
// others had delivered to an operation until that rank had. A rank that was paused finds all
// messages in its sockets when it wakes, and blames no other rank.
func (g *Group) Late() []time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.st.late)
}

// Stats returns the counters so far.
func (g *Group) Stats() Stats {
	g.mu.Lock()
	defer g.mu.Unlock()
	s := g.st.stats
	s.InFlight, s.StashedOps, s.StashedBytes = len(g.st.ops), len(g.st.stash), g.st.stashBytes
	return s
}

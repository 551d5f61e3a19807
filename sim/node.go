package sim

import (
	"errors"
	"fmt"
	"time"

	"shoal/actors/batcher"
	"shoal/actors/socket"
	"shoal/topology"
)

// node is one process with one socket: the shell of actors/socket around the real
// socket.State, with the executor as a queue of jobs that take time.
type node struct {
	*process
	w      *world
	state  fence
	memory memory
	carry  carry
	share  float64

	epoch   *epoch
	step    *step
	inbox   []func() // what waits while the socket's actor hangs
	hangs   bool
	execute time.Duration // when the executor is free
	jobs    executor
	term    uint64 // of the newest coordinator that this process has followed
	highest uint32 // epoch that this process has begun: what the checker knows
}

// fence is socket.State, or a mutant of it.
type fence interface {
	Load(epoch uint32) error
	Loaded(epoch uint32, ok bool) error
	Join(epoch uint32) error
	Joined(epoch uint32, ok bool) error
	Begin(epoch uint32, step uint64) error
	End(epoch uint32, ok bool) error
	Retire(epoch uint32) bool
	Now() socket.State
}

// epoch is what a socket holds for one placement.
type epoch struct {
	of           *coordinator
	place        topology.Placement
	incarnations []uint64
	rank         int
	peers        []*process
	seqs         map[uint64]*sequence
	group        *group
	closed       bool
}

func (e *epoch) heads() topology.Range { return e.place.Slices[e.rank].KVHeads }

func (w *world) newNode(slot int, budget int64, share float64) *node {
	n := &node{process: &process{name: fmt.Sprintf("n%d", slot+1), slot: slot, incarnation: w.nextLife(), slow: 1, stirred: w.fresh(), dragged: -settled},
		w: w, memory: memory{budget: budget}, share: share}
	n.state = newFence(w.opt.Bug)
	return n
}

// take is the socket's mailbox.
func (n *node) take(message func()) {
	if n.hangs {
		n.inbox = append(n.inbox, message)
		return
	}
	message()
}

// unhang lets a hanging actor go on.
func (n *node) unhang() {
	if n.hangs {
		n.hangs, n.jobs.spoke = false, n.w.now
	}
	waiting := n.inbox
	n.inbox = nil
	for _, m := range waiting {
		m()
	}
}

var errRetired = errors.New("socket: epoch retired")

func (n *node) load(e *epoch, reply func(any, error)) {
	defer n.fenced("load", e.place.Epoch)()
	if err := n.state.Load(e.place.Epoch); err != nil {
		n.stale(err)
		reply(nil, err)
		return
	}
	n.highest = max(n.highest, e.place.Epoch)
	n.teardown(n.w.cfg.keeps)
	n.w.watch.loads(e)
	n.w.watch.follows(n, e)
	n.w.hook(OnLoad, n)
	n.read(e, 1+n.w.rng.IntN(4), reply)
}

// read brings in the weights, a piece at a time.
func (n *node) read(e *epoch, pieces int, reply func(any, error)) {
	n.exec(n.w.between(time.Millisecond, 9*time.Millisecond), func() {
		if s := n.state.Now(); pieces > 1 && s.Phase == socket.Loading && s.Epoch == e.place.Epoch {
			n.jobs.loaded++
			n.read(e, pieces-1, reply)
			return
		}
		if err := n.state.Loaded(e.place.Epoch, true); err != nil {
			n.stale(err)
			reply(nil, err)
			return
		}
		n.carry.claim(&n.memory, e.of.incarnation)
		n.epoch = e
		reply(n.carry.held(), nil)
	})
}

func (n *node) join(number uint32, reply func(any, error)) {
	defer n.fenced("join", number)()
	if err := n.state.Join(number); err != nil {
		n.stale(err)
		reply(nil, err)
		return
	}
	e := n.epoch
	n.w.hook(OnJoin, n)
	n.connect(e, func(err error) {
		if refused := n.state.Joined(number, err == nil); refused != nil || err != nil {
			if e.group != nil {
				e.group.close()
			}
			reply(nil, errors.Join(err, refused))
			return
		}
		reply(nil, nil)
	})
}

func (n *node) begin(p *batcher.Plan, reply func(any, error)) {
	defer n.fenced("step", p.Epoch)()
	if err := n.state.Begin(p.Epoch, p.Step); err != nil {
		n.stale(err)
		reply(nil, err)
		return
	}
	n.step = n.newStep(p, reply)
	n.run(n.step)
}

func (n *node) retire(number uint32) {
	defer n.fenced("retire", number)()
	if n.w.opt.Bug == IgnoreRetire {
		return
	}
	n.highest = max(n.highest, number)
	if n.state.Retire(number) {
		n.w.cover[Retired]++
		n.teardown(false)
		n.exec(0, func() { n.carry.clear(&n.memory) })
	}
}

func (n *node) release(number uint32, seqs []uint64, reply func(any, error)) {
	defer n.fenced("release", number)()
	s, e := n.state.Now(), n.epoch
	if e == nil || number != s.Epoch || s.Phase != socket.Ready {
		n.w.cover[ReleaseRefused]++
		reply(nil, fmt.Errorf("%w: release in epoch %d, at %d (%s)", socket.ErrStaleEpoch, number, s.Epoch, s.Phase))
		return
	}
	n.exec(10*time.Microsecond, func() {
		e.release(&n.memory, seqs)
		n.carry.release(&n.memory, seqs)
		reply(n.memory.used, nil)
	})
}

func (e *epoch) release(m *memory, ids []uint64) {
	for _, id := range ids {
		if q := e.seqs[id]; q != nil {
			q.release(m)
			delete(e.seqs, id)
		}
	}
}

// teardown ends what is in flight and frees the epoch, behind the executor's jobs;
// with keep, the caches of sequences that decode go to the next.
func (n *node) teardown(keep bool) {
	if s := n.step; s != nil {
		n.step = nil
		s.reply(nil, errRetired)
	}
	if e := n.epoch; e != nil {
		n.epoch = nil
		if e.group != nil {
			e.group.close()
		}
		n.exec(0, func() {
			e.closed = true
			for _, q := range e.seqs {
				if keep && q.sealed {
					n.carry.keep(&n.memory, q)
					continue
				}
				q.release(&n.memory)
			}
			e.seqs = nil
		})
	}
}

// stale counts what the fence kept out.
func (n *node) stale(err error) {
	if errors.Is(err, socket.ErrStaleEpoch) {
		n.w.cover[StaleAtSocket]++
	}
}

// fenced watches a message: if its epoch is older than this process has begun,
// nothing may have changed when it is done.
func (n *node) fenced(what string, number uint32) func() {
	if number >= n.highest {
		return func() {}
	}
	state, epoch, step, execute := n.state.Now(), n.epoch, n.step, n.execute
	return func() {
		if n.state.Now() != state || n.epoch != epoch || n.step != step || n.execute != execute {
			n.w.watch.fail("I4: a %s of epoch %d changed %s, which is at epoch %d", what, number, n.name, n.highest)
		}
	}
}

package sim

import (
	"errors"
	"fmt"
	"github.com/shoal-llm/shoal/actors/socket/machine"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/kvpolicy"
	"github.com/shoal-llm/shoal/internal/proto"
	"github.com/shoal-llm/shoal/topology"
	"time"
)

// node is one process with one socket: the real machine.Machine, whose effects act on caches of
// cells, and the executor as a queue of jobs that take time.
type node struct {
	*process
	w       *world
	machine *machine.Machine
	memory  memory
	seqs    map[uint64]*sequence // the executor's
	blocks  map[uint64]*block    // and the prefix cache
	coming  map[uint64]bool      // blocks of it that are being loaded
	share   float64

	epoch   *epoch
	step    *step
	inbox   []func() // messages that wait while the socket's actor hangs
	hangs   bool
	execute time.Duration // when the executor is free
	jobs    executor
	term    uint64 // of the newest coordinator that this process has followed
	highest uint32 // newest epoch that this process has started, for the checker
}

// epoch is a socket's state for one placement.
type epoch struct {
	of           *coordinator
	place        topology.Placement
	incarnations []uint64
	rank         int
	peers        []*process
	group        *group
	closed       bool
}

func (w *world) newNode(slot int, budget int64, share float64) *node {
	n := &node{process: &process{name: fmt.Sprintf("n%d", slot+1), slot: slot, incarnation: w.nextLife(),
		slow: 1, stirred: w.fresh(), dragged: -settled},
		w: w, machine: machine.NewMachine(), memory: memory{budget: budget}, seqs: map[uint64]*sequence{},
		blocks: map[uint64]*block{}, coming: map[uint64]bool{}, share: share}
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

// unhang ends the actor's hang.
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

// unfenced is a mutant: every epoch counts as the present one.
func (n *node) unfenced() bool { return n.w.opt.Bug == NoFence || n.w.opt.Bug == NoSocketFence }

func (n *node) load(e *epoch, reply func(any, error)) {
	defer n.fenced("load", e.place.Epoch)()
	if n.unfenced() {
		n.machine.Phase, n.machine.Epoch = machine.Idle, 0
	}
	coordinator := e.of.incarnation
	if !n.w.cfg.keeps {
		coordinator = n.w.nextLife()
	}
	effects, err := n.machine.Load(e.place.Epoch, coordinator,
		machine.Limits{Rank: e.rank, Ranks: len(e.peers), Vocab: vocab, Positions: window,
			Rows: n.w.cfg.batcher.TokenBudget, Layout: geometry.Layout, Parse: kvpolicy.Parse})
	if err != nil {
		n.stale(err)
		reply(nil, err)
		return
	}
	n.highest = max(n.highest, e.place.Epoch)
	n.teardown(effects)
	n.w.watch.loads(e)
	n.w.watch.follows(n, e)
	n.w.hook(OnLoad, n)
	n.read(e, 1+n.w.rng.IntN(4), reply)
}

// read reads the weights, one piece at a time.
func (n *node) read(e *epoch, pieces int, reply func(any, error)) {
	n.exec(n.w.between(time.Millisecond, 9*time.Millisecond), func() {
		if s := n.machine.State; pieces > 1 && s.Phase == machine.Loading && s.Epoch == e.place.Epoch {
			n.jobs.loaded++
			n.read(e, pieces-1, reply)
			return
		}
		number := e.place.Epoch
		if n.unfenced() {
			number = n.machine.Epoch
		}
		if err := n.machine.Loaded(number, true); err != nil {
			n.stale(err)
			reply(nil, err)
			return
		}
		n.epoch = e
		reply(n.machine.Held(), nil)
	})
}

func (n *node) join(number uint32, reply func(any, error)) {
	defer n.fenced("join", number)()
	if n.unfenced() {
		number = n.machine.Epoch
	}
	if err := n.machine.Join(number); err != nil {
		n.stale(err)
		reply(nil, err)
		return
	}
	e := n.epoch
	n.w.hook(OnJoin, n)
	n.connect(e, func(err error) {
		if n.unfenced() {
			number = n.machine.Epoch
		}
		if refused := n.machine.Joined(number, err == nil); refused != nil || err != nil {
			if e.group != nil {
				e.group.close()
			}
			reply(nil, errors.Join(err, refused))
			return
		}
		reply(nil, nil)
	})
}

func (n *node) begin(r *proto.StepRequest, reply func(any, error)) {
	defer n.fenced("step", r.Epoch)()
	if n.unfenced() {
		epoch, step := r.Epoch, r.Step
		r.Epoch, r.Step = n.machine.Epoch, n.machine.State.Step+1
		defer func() { r.Epoch, r.Step = epoch, step }() // other receivers read it too
	}
	work, err := n.machine.Plan(r)
	if err != nil {
		n.stale(err)
		reply(nil, err)
		return
	}
	n.step = n.newStep(work, reply)
	n.run(n.step)
}

func (n *node) retire(number uint32) {
	defer n.fenced("retire", number)()
	if n.w.opt.Bug == IgnoreRetire {
		return
	}
	n.highest = max(n.highest, number)
	if n.unfenced() {
		number = n.machine.Epoch
	}
	if effects, ok := n.machine.Retire(number); ok {
		n.w.cover[Retired]++
		n.teardown(effects)
	}
}

func (n *node) release(r *proto.ReleaseRequest, reply func(any, error)) {
	defer n.fenced("release", r.Epoch)()
	effects, err := n.machine.Release(r)
	if err != nil {
		n.w.cover[ReleaseRefused]++
		reply(nil, err)
		return
	}
	n.exec(10*time.Microsecond, func() { reply(n.memory.used, n.do(nil, effects)) })
}

// teardown ends everything in flight and frees the epoch, after the executor's jobs.
func (n *node) teardown(effects []machine.Effect) {
	if s := n.step; s != nil {
		n.step = nil
		s.reply(nil, errRetired)
	}
	e := n.epoch
	if n.epoch = nil; e != nil && e.group != nil {
		e.group.close()
	}
	if e != nil || len(effects) > 0 {
		n.exec(0, func() {
			if e != nil {
				e.closed = true
			}
			_ = n.do(e, effects) // releases only
		})
	}
}

// stale counts the messages that the fence refused.
func (n *node) stale(err error) {
	if errors.Is(err, machine.ErrStaleEpoch) {
		n.w.cover[StaleAtSocket]++
	}
}

// fenced checks a message: if its epoch is older than this process has started, it must change
// nothing.
func (n *node) fenced(what string, number uint32) func() {
	if number >= n.highest {
		return func() {}
	}
	state, epoch, step, execute := n.machine.State, n.epoch, n.step, n.execute
	return func() {
		if n.machine.State != state || n.epoch != epoch || n.step != step || n.execute != execute {
			n.w.watch.fail("I4: a %s of epoch %d changed %s, which is at epoch %d", what, number, n.name, n.highest)
		}
	}
}

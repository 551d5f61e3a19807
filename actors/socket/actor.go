package socket

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"shoal/actors/layer"
	"shoal/collective"
	"shoal/kvcache"
	"shoal/model"
	"shoal/proto"
	"shoal/tensor"
	"shoal/topology"
)

// Config is what a socket is given when its process starts.
type Config struct {
	Checkpoint *model.Checkpoint
	Pool       *tensor.Pool
	KVBudget   int64 // bytes of KV cache on this socket
	// ParsePolicy makes the cache policy of a spec; nil: kvcache.Parse.
	ParsePolicy func(spec string) (*kvcache.Policy, error)
	// WeightsCache, when set, keeps quantised matrices from one start to the next.
	WeightsCache *WeightsCache
	Logger       *slog.Logger
	// Connect joins the transport of a group: rank of size, in an epoch. It
	// returns when every pair of ranks has heard each other, or with an error
	// that names who was not heard.
	Connect func(ctx context.Context, group string, epoch uint32, rank int, incarnations []uint32) (collective.Transport, error)
	// OnProgress, when set, is told how loading goes, in bytes of the slices; often,
	// and from any goroutine.
	OnProgress func(done, total int64)
	// Stopped, when set, is closed when the socket has ended: only then may its
	// checkpoint and its pool be closed, see Stop.
	Stopped chan struct{}
}

// Stop ends the actor, a socket or its parent, and waits for the socket: for the
// leg or the matrix that it has in hand, whose work is finite. The grace of
// Proto.Actor (10 s) is not always enough, and what a leg still reads must not be
// unmapped.
func Stop(root *actor.RootContext, pid *actor.PID, stopped <-chan struct{}) {
	root.Stop(pid)
	<-stopped
}

// Commands that a socket takes. Reply is called once, from any goroutine, and
// must not block.
type (
	Load struct {
		Request *proto.LoadRequest
		Reply   func(*proto.LoadReply, error)
	}
	Join struct {
		Request *proto.JoinRequest
		Reply   func(*proto.JoinReply, error)
	}
	Step struct {
		Request *proto.StepRequest
		Reply   func(*proto.StepReply, error)
		Stages  func(Stages) // when set, told before Reply where the time went
	}
	Retire struct {
		Request *proto.RetireRequest
		Reply   func(error)
	}
	// Release drops sequences between steps.
	Release struct {
		Request *proto.ReleaseRequest
		Reply   func(*proto.ReleaseReply, error)
	}
	// Between has the executor do a job between the steps of an epoch, when nothing
	// else touches its caches.
	Between struct {
		Epoch uint32
		Do    func(*Caches) error
		Reply func(error)
	}
	Status struct{ Reply func(*proto.SocketStatus) }
)

// Events that the socket's own jobs send back.
type (
	loaded struct {
		number uint32
		epoch  *epoch
		held   []*proto.Held
		err    error
		took   time.Duration
		reply  func(*proto.LoadReply, error)
	}
	joined struct {
		number uint32
		group  *collective.Group
		err    error
		took   time.Duration
		reply  func(*proto.JoinReply, error)
	}
	legDone struct {
		step *step
		err  error
	}
	groupFailed struct {
		number uint32
		err    error
	}
)

// Actor is the shell: it fences with State, and hands every piece of work to
// the executor, the layers or the collective group.
type Actor struct {
	Config Config

	state  State
	exec   *layer.Executor
	arena  *kvcache.Arena
	carry  *carry // the executor's
	epoch  *epoch
	term   *layer.Term // of the epoch
	layers []*actor.PID
	step   *step
	cancel context.CancelFunc // of loading or joining
	read   *progress          // of the newest load
}

// progress is how far a load has come, in bytes of the slices.
type progress struct{ done, total atomic.Int64 }

// ErrRetired ends what an epoch had in flight when a newer one begins.
var ErrRetired = errors.New("socket: epoch retired")

// Receive implements actor.Actor.
func (a *Actor) Receive(c actor.Context) {
	switch m := c.Message().(type) {
	case *actor.Started:
		a.state = State{Phase: Idle}
		a.exec = layer.NewExecutor()
		a.carry = new(carry)
		a.arena = kvcache.NewArena(a.Config.KVBudget)
	case *actor.Stopping:
		a.state.Stop()
		a.teardown(c, ErrRetired, false)
		a.exec.Submit(a.carry.clear)
		a.exec.Close()
		a.arena.Close()
		select {
		case <-a.Config.Stopped: // a predecessor under the same name was restarted
		default:
			if a.Config.Stopped != nil {
				close(a.Config.Stopped)
			}
		}
	case *Load:
		a.load(c, m)
	case *loaded:
		a.loaded(c, m)
	case *Join:
		a.join(c, m)
	case *joined:
		a.joined(c, m)
	case *Step:
		a.begin(c, m)
	case *legDone:
		a.advance(c, m.step, m.err)
	case *layer.Done:
		if a.step != nil && a.epoch != nil && m.Batch == a.epoch.batch {
			a.advance(c, a.step, m.Err)
		}
	case *groupFailed:
		a.Config.Logger.Warn("collective group failed", "epoch", m.number, "error", m.err)
	case *Retire:
		if a.state.Retire(m.Request.Epoch) {
			a.teardown(c, ErrRetired, false)
			a.exec.Submit(a.carry.clear)
		}
		m.Reply(nil)
	case *Release:
		a.release(m)
	case *Between:
		a.between("job", m.Epoch, m.Reply, func(e *epoch) { m.Reply(m.Do(&Caches{e})) })
	case *Status:
		m.Reply(a.status())
	}
}

func (a *Actor) load(c actor.Context, m *Load) {
	p, rank, err := placementOf(m.Request, &a.Config.Checkpoint.Config)
	if err == nil {
		err = a.state.Load(p.Epoch)
	}
	if err != nil {
		m.Reply(nil, err)
		return
	}
	a.teardown(c, ErrRetired, true)
	ctx, cancel := context.WithCancel(context.Background())
	a.cancel = cancel
	self, root, cfg, arena, carry := c.Self(), c.ActorSystem().Root, a.Config, a.arena, a.carry
	read := &progress{}
	a.read = read
	a.exec.Submit(func() {
		began := time.Now()
		e, err := build(ctx, cfg, read, arena, p, rank, m.Request)
		carry.claim(m.Request.Keeper)
		if err == nil {
			e.carry = carry
		}
		root.Send(self, &loaded{number: p.Epoch, epoch: e, held: carry.held(), err: err, took: time.Since(began), reply: m.Reply})
	})
}

func build(ctx context.Context, cfg Config, read *progress, arena *kvcache.Arena, p topology.Placement, rank int, r *proto.LoadRequest) (*epoch, error) {
	if h := cfg.Checkpoint.Hash(); r.ModelHash != h {
		return nil, fmt.Errorf("socket: the cluster serves model %.12s, this node has %.12s in %s", r.ModelHash, h, cfg.Checkpoint.Dir)
	}
	dt, kv, err := typesOf(r, &cfg.Checkpoint.Config)
	if err != nil {
		return nil, err
	}
	w, err := LoadSlices(ctx, cfg.Checkpoint, p, rank, dt, cfg.Pool, cfg.WeightsCache, func(done, total int64) {
		read.done.Store(done)
		read.total.Store(total)
		if cfg.OnProgress != nil {
			cfg.OnProgress(done, total)
		}
	})
	if err != nil {
		return nil, err
	}
	e := newEpoch(cfg.Checkpoint, p, rank, w, dt, kv, arena, cfg.Pool, int(r.MaxStepTokens))
	if e.parse = cfg.ParsePolicy; e.parse == nil {
		e.parse = kvcache.Parse
	}
	return e, nil
}

func (a *Actor) loaded(c actor.Context, m *loaded) {
	if err := a.state.Loaded(m.number, m.err == nil); err != nil || m.err != nil {
		if m.epoch != nil {
			m.epoch.close(false)
		}
		m.reply(nil, errors.Join(m.err, err))
		return
	}
	a.epoch, a.term = m.epoch, a.exec.NewTerm()
	layers := m.epoch.weights.Layers
	a.layers = make([]*actor.PID, len(layers)+1) // the last has none to follow
	for i := len(layers) - 1; i >= 0; i-- {
		l := &layer.Actor{Weights: layers[i], Next: a.layers[i+1], Term: a.term}
		a.layers[i] = c.Spawn(actor.PropsFromProducer(func() actor.Actor { return l }, actor.WithDispatcher(layer.Dispatcher)))
	}
	a.layers = a.layers[:len(layers)]
	a.Config.Logger.Info("slices loaded", "epoch", m.number, "rank", m.epoch.rank, "sockets", len(m.epoch.place.Slices),
		"weights_bytes", m.epoch.weights.Bytes(), "took", m.took.Round(time.Millisecond))
	m.reply(&proto.LoadReply{WeightBytes: m.epoch.weights.Bytes(), KvBudgetBytes: a.arena.Budget(), Millis: uint32(m.took.Milliseconds()), Held: m.held}, nil)
}

func (a *Actor) join(c actor.Context, m *Join) {
	if err := a.state.Join(m.Request.Epoch); err != nil {
		m.Reply(nil, err)
		return
	}
	deadline := time.Duration(m.Request.DeadlineMillis) * time.Millisecond
	ctx, cancel := context.WithTimeout(context.Background(), min(max(deadline, joinLeast), joinTimeout))
	a.cancel = cancel
	e, self, root, connect := a.epoch, c.Self(), c.ActorSystem().Root, a.Config.Connect
	go func() { // owner: the context, cancelled by the next epoch or Stop
		began := time.Now()
		group, err := form(ctx, e, m.Request, deadline, connect, func(err error) {
			root.Send(self, &groupFailed{number: m.Request.Epoch, err: err})
		})
		root.Send(self, &joined{number: m.Request.Epoch, group: group, err: err, took: time.Since(began), reply: m.Reply})
	}()
}

// The hello barrier of a group has the time of a collective, within these bounds.
const (
	joinLeast   = 3 * time.Second
	joinTimeout = 15 * time.Second
)

func form(ctx context.Context, e *epoch, r *proto.JoinRequest, deadline time.Duration,
	connect func(context.Context, string, uint32, int, []uint32) (collective.Transport, error), onFail func(error)) (*collective.Group, error) {
	cfg := collective.Config{Rank: e.rank, Size: len(e.place.Slices), Epoch: e.place.Epoch, Incarnations: r.Incarnations, Deadline: deadline, OnFail: onFail}
	t, err := connect(ctx, r.Group, e.place.Epoch, e.rank, r.Incarnations)
	if err != nil {
		return nil, err
	}
	g, err := collective.NewGroup(cfg, t)
	if err != nil {
		t.Close()
	}
	return g, err
}

func (a *Actor) joined(_ actor.Context, m *joined) {
	if err := a.state.Joined(m.number, m.err == nil); err != nil || m.err != nil {
		if m.group != nil {
			m.group.Close()
		}
		var deaf interface{ Missing() []int }
		if err == nil && errors.As(m.err, &deaf) {
			r := &proto.JoinReply{Millis: uint32(m.took.Milliseconds())}
			for _, rank := range deaf.Missing() {
				r.Unheard = append(r.Unheard, uint32(rank))
			}
			a.Config.Logger.Warn("group not formed", "epoch", m.number, "error", m.err)
			m.reply(r, nil)
			return
		}
		m.reply(nil, errors.Join(m.err, err))
		return
	}
	a.epoch.group = m.group
	m.reply(&proto.JoinReply{Millis: uint32(m.took.Milliseconds())}, nil)
}

func (a *Actor) begin(c actor.Context, m *Step) {
	if err := a.state.Begin(m.Request.Epoch, m.Request.Step); err != nil {
		m.Reply(nil, err)
		return
	}
	s := &step{request: m.Request, reply: m.Reply, observe: m.Stages}
	e := a.epoch
	s.jobsBefore, _ = a.exec.Progress()
	a.step = s
	s.legs = []leg{{job: func(done func(error)) {
		s.wireBefore = wireBytes(e.group)
		s.lateBefore = lateness(e.group)
		began := time.Now()
		err := e.begin(s)
		s.stages.Begin = time.Since(began)
		if err == nil {
			s.legs = append(s.legs, e.plan(s)...)
		}
		done(err)
	}}}
	a.run(c, s)
}

// release frees sequences between steps, behind what the executor has in hand.
func (a *Actor) release(m *Release) {
	arena := a.arena
	a.between("release", m.Request.Epoch, func(err error) { m.Reply(nil, err) }, func(e *epoch) {
		e.release(m.Request.Seqs)
		m.Reply(&proto.ReleaseReply{KvUsedBytes: arena.Used()}, nil)
	})
}

// between has the executor do a job between the steps of an epoch, or refuses it.
func (a *Actor) between(what string, number uint32, refuse func(error), job func(*epoch)) {
	e := a.epoch
	if e == nil || number != a.state.Epoch || a.state.Phase != Ready {
		refuse(fmt.Errorf("%w: %s in epoch %d, at %d (%s)", ErrStaleEpoch, what, number, a.state.Epoch, a.state.Phase))
		return
	}
	a.exec.Submit(func() { job(e) })
}

// run starts the leg that the step stands at.
func (a *Actor) run(c actor.Context, s *step) {
	l := s.legs[s.at]
	if l.job == nil {
		c.Send(a.layers[0], &layer.Run{Batch: a.epoch.batch, Group: a.epoch.group, ReplyTo: c.Self()})
		return
	}
	self, root := c.Self(), c.ActorSystem().Root
	a.exec.Submit(func() { l.job(func(err error) { root.Send(self, &legDone{s, err}) }) })
}

// advance moves a step to its next leg, or ends it.
func (a *Actor) advance(c actor.Context, s *step, err error) {
	if a.step != s {
		return // of an epoch that is gone
	}
	if err == nil {
		if s.at++; s.at < len(s.legs) {
			a.run(c, s)
			return
		}
	}
	a.step = nil
	number := s.request.Epoch
	if stale := a.state.End(number, err == nil); stale != nil || err != nil {
		s.reply(nil, errors.Join(err, stale))
		return
	}
	b := a.epoch.batch
	if s.observe != nil {
		s.observe(s.stages.with(b))
	}
	s.reply(&proto.StepReply{Epoch: number, Step: s.request.Step, Sampled: s.results.order, KvUsedBytes: a.arena.Used(),
		ComputeMicros: uint32((b.Compute + s.stages.Head + s.stages.Begin).Microseconds()), WaitMicros: uint32((b.Wait + s.stages.Wait).Microseconds()),
		WireBytes: wireBytes(a.epoch.group) - s.wireBefore, ReplicaBytes: a.epoch.copied, LateMicros: micros(lateness(a.epoch.group), s.lateBefore)}, nil)
}

// teardown ends what is in flight and frees the epoch, but for the caches that
// the next one can use (keep). The executor may be in the middle of a leg, so
// freeing is the last job of the epoch's term.
func (a *Actor) teardown(c actor.Context, cause error, keep bool) {
	if a.cancel != nil {
		a.cancel()
		a.cancel = nil
	}
	if a.step != nil {
		a.step.reply(nil, cause)
		a.step = nil
	}
	for _, p := range a.layers {
		c.Stop(p)
	}
	a.layers = nil
	if e := a.epoch; e != nil {
		a.epoch = nil
		if e.group != nil {
			e.group.Close()
		}
		a.term.End(func() { e.close(keep) })
	}
}

func (a *Actor) status() *proto.SocketStatus {
	done, busy := a.exec.Progress()
	if a.step != nil {
		done -= a.step.jobsBefore
	}
	s := &proto.SocketStatus{Progress: done, Busy: busy, Epoch: a.state.Epoch, State: string(a.state.Phase), LastStep: a.state.Step,
		KvUsedBytes: a.arena.Used(), KvBudgetBytes: a.arena.Budget()}
	if a.epoch != nil {
		s.WeightBytes = a.epoch.weights.Bytes()
	}
	if a.read != nil {
		s.LoadedBytes, s.LoadBytes = a.read.done.Load(), a.read.total.Load()
	}
	return s
}

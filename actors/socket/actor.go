// Package socket is one rank of the tensor-parallel group: an actor that owns a
// slice of every weight matrix and one partition of the KV cache, and carries
// out the steps that the coordinator plans.
package socket

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/shoal-llm/shoal/actors/layer"
	"github.com/shoal-llm/shoal/actors/socket/caches"
	"github.com/shoal-llm/shoal/actors/socket/draft"
	"github.com/shoal-llm/shoal/actors/socket/machine"
	"github.com/shoal-llm/shoal/actors/socket/shard"
	"github.com/shoal-llm/shoal/actors/socket/step"
	"github.com/shoal-llm/shoal/collective"
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/tier"
	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/proto"
	"github.com/shoal-llm/shoal/internal/sys/sharedmem"
	"github.com/shoal-llm/shoal/internal/text/grammar"
	"github.com/shoal-llm/shoal/topology"
)

// Config is the configuration of a socket.
type Config struct {
	Checkpoint *model.Checkpoint
	Pool       *tensor.Pool
	Device     layer.Device     // stores weights and caches and computes; nil: a layer.Host on Pool
	Threads    topology.Threads // range of the pool's threads, from which each step picks a number; zero: all in every step
	OnThreads  func(int)        // called with the new number of threads before they compute; or nil
	KVBudget   int64            // bytes of KV cache on this socket
	// ParsePolicy parses the name of a cache policy; nil: kvcache.Parse.
	ParsePolicy func(spec string) (*kvcache.Policy, error)
	Draft       *draft.Config // drafts tokens for speculative decoding; nil: none
	// Grammars returns the grammar engine of the checkpoint's vocabulary, which it builds on the
	// first call. It may be called from any goroutine. nil: no request may have a grammar.
	Grammars func() (*grammar.Engine, error)
	// WeightsCache, if not nil, keeps quantised matrices on disk between starts.
	WeightsCache *shard.Cache
	// Shared, if not nil, is memory shared with other nodes of this machine. The caller closes it
	// after the socket has stopped.
	Shared *sharedmem.Region
	// PrefixDisk, if not nil, stores blocks of the prefix cache in files. The caller closes it after
	// the socket has stopped.
	PrefixDisk *tier.Store
	// Scratch, if not nil, stores rows of caches that do not fit in memory. The caller closes it
	// after the socket has stopped.
	Scratch *tier.Scratch
	Logger  *slog.Logger
	// Connect opens the transport of a group for one rank, in an epoch. It returns when every pair
	// of ranks has exchanged a message, or with an error that names the missing ranks.
	Connect func(ctx context.Context, group string, epoch uint32, rank int, incarnations []uint32) (collective.Transport, error)
	// OnProgress, if not nil, is called often and from any goroutine during loading. done and total
	// are bytes of the slices.
	OnProgress func(done, total int64)
	// Stopped, if not nil, is closed when the socket has ended. Only then may its checkpoint and its
	// pool be closed, see Stop.
	Stopped chan struct{}
}

// device returns the device that the socket computes with.
func (c *Config) device() layer.Device {
	if c.Device == nil {
		return layer.Host{Pool: c.Pool}
	}
	return c.Device
}

// use sets the number of the pool's working threads.
func (c *Config) use(shift int) {
	if !c.Threads.Valid() {
		return
	}
	n := c.Threads.Shifted(shift)
	had := c.Pool.Threads()
	if n == had {
		return
	}
	if n < had { // park threads before OnThreads, so that they release their CPUs first
		c.Pool.Use(n)
	}
	if c.OnThreads != nil {
		c.OnThreads(n)
	}
	c.Pool.Use(n)
}

// Stop ends an actor (a socket or its parent) and waits until the socket has ended. The socket first
// completes its current stage or matrix, which is finite work. Proto.Actor's grace period of 10 s is
// not always enough, and memory that a stage reads must not be unmapped.
func Stop(root *actor.RootContext, pid *actor.PID, stopped <-chan struct{}) {
	root.Stop(pid)
	<-stopped
}

// Commands of a socket. Reply is called exactly once, from any goroutine, and must not block.
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
		Times   func(step.Times) // if not nil, called before Reply with the times of the step
	}
	Retire struct {
		Request *proto.RetireRequest
		Reply   func(error)
	}
	// Release frees sequences between steps.
	Release struct {
		Request *proto.ReleaseRequest
		Reply   func(*proto.ReleaseReply, error)
	}
	// Between runs a job on the executor between two steps of an epoch, while no other work uses
	// the epoch's caches.
	Between struct {
		Epoch uint32
		Do    func(*step.Job) error
		Reply func(error)
	}
	// Prefix looks up or reads blocks of the prefix cache in files.
	Prefix struct {
		Request *proto.PrefixRequest
		Reply   func(*proto.PrefixReply, error)
	}
	Status struct{ Reply func(*proto.SocketStatus) }
)

// Events that the socket's jobs send to their actor.
type (
	loaded struct {
		number  uint32
		epoch   *step.Epoch
		err     error
		inFiles map[uint64]int // blocks of each sequence's cache that are in files
		took    time.Duration
		reply   func(*proto.LoadReply, error)
	}
	joined struct {
		number uint32
		group  *exchanges
		err    error
		took   time.Duration
		reply  func(*proto.JoinReply, error)
	}
	stageDone struct {
		step *flight
		err  error
	}
	jobDone struct {
		number uint32
		made   map[uint64]*machine.Kept
		err    error
		reply  func(error)
	}
	groupFailed struct {
		number uint32
		err    error
	}
)

// Actor is the shell of a socket. Machine decides; the executor, the layers and the collective actor
// do the work.
type Actor struct {
	Config Config

	machine *machine.Machine
	exec    *layer.Executor
	caches  *caches.Caches
	epoch   *step.Epoch
	link    *caches.Link // of the current epoch, from its Join on
	term    *layer.Term  // of the current epoch
	layers  []*actor.PID
	// collective actor of the epoch; nil before the epoch's Join
	collective *actor.PID
	steps      [machine.MicroBatches]*flight
	cancel     context.CancelFunc // cancels loading
	read       *progress          // of the newest load
}

// progress is the progress of a load, in bytes of the slices.
type progress struct{ done, total atomic.Int64 }

// ErrRetired is the error of the steps in flight when their epoch is retired.
var ErrRetired = errors.New("socket: epoch retired")

// Receive implements actor.Actor.
func (a *Actor) Receive(c actor.Context) {
	switch m := c.Message().(type) {
	case *actor.Started:
		a.machine = machine.NewMachine()
		a.exec = layer.NewExecutor()
		a.caches = caches.New(caches.Options{Arena: a.Config.device().Arena(a.Config.KVBudget), Executor: a.exec, PrefixDisk: a.Config.PrefixDisk, Scratch: a.Config.Scratch})
		if a.Config.ParsePolicy == nil {
			a.Config.ParsePolicy = kvcache.Parse
		}
	case *actor.Stopping:
		a.teardown(c, a.machine.Stop())
		a.caches.StopTransfers()
		a.exec.Close()
		a.caches.Close()
		select {
		case <-a.Config.Stopped: // the actor was restarted under its name
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
	case *stageDone:
		a.advance(c, m.step, m.err)
	case *layer.Done:
		for _, s := range a.steps {
			if s != nil && m.Batch == s.sent {
				a.advance(c, s, m.Err)
			}
		}
	case *groupFailed:
		a.Config.Logger.Warn("collective group failed", "epoch", m.number, "error", m.err)
	case *Retire:
		if effects, ok := a.machine.Retire(m.Request.Epoch); ok {
			a.teardown(c, effects)
		}
		m.Reply(nil)
	case *Release:
		a.release(m)
	case *Prefix:
		a.prefix(m)
	case *Between:
		a.between(c, m)
	case *jobDone:
		if effects := a.machine.JobDone(m.number, m.made); len(effects) > 0 {
			a.exec.Submit(func() { a.caches.Release(effects) })
		}
		m.reply(m.err)
	case *Status:
		m.Reply(a.status())
	}
}

func (a *Actor) load(c actor.Context, m *Load) {
	p, rank, err := placementOf(m.Request, &a.Config.Checkpoint.Config)
	var effects []machine.Effect
	if err == nil {
		effects, err = a.machine.Load(p.Epoch, m.Request.Coordinator, limitsOf(m.Request, &a.Config, rank))
	}
	if err != nil {
		m.Reply(nil, err)
		return
	}
	a.teardown(c, effects)
	ctx, cancel := context.WithCancel(context.Background())
	a.cancel = cancel
	self, root, cfg, held := c.Self(), c.ActorSystem().Root, a.Config, a.caches
	read := &progress{}
	a.read = read
	a.exec.Submit(func() {
		began := time.Now()
		e, err := build(ctx, cfg, read, held, p, rank, m.Request)
		root.Send(self, &loaded{number: p.Epoch, epoch: e, err: err, inFiles: held.BlocksInFiles(), took: time.Since(began), reply: m.Reply})
	})
}

// limitsOf returns the limits of a load whose placement has been checked.
func limitsOf(r *proto.LoadRequest, cfg *Config, rank int) machine.Limits {
	c := &cfg.Checkpoint.Config
	l := machine.Limits{Rank: rank, Ranks: len(r.Placement.Slices), Vocab: c.Vocab, Positions: c.MaxPositions, Rows: int(r.MaxStepTokens), Layers: c.CacheLayers(), Parse: cfg.ParsePolicy, Across: c.SharesCaches()}
	if kv, err := tensor.ParseDType(r.KvType); err == nil { // build reports the error
		l.Layout = c.CacheLayout(kv)
	}
	return l
}

func build(ctx context.Context, cfg Config, read *progress, held *caches.Caches, p topology.Placement, rank int, r *proto.LoadRequest) (*step.Epoch, error) {
	if h := cfg.Checkpoint.Hash(); r.ModelHash != h {
		return nil, fmt.Errorf("socket: the cluster serves model %.12s, this node has %.12s in %s", r.ModelHash, h, cfg.Checkpoint.Dir)
	}
	dt, kv, err := typesOf(r, &cfg.Checkpoint.Config)
	if err != nil {
		return nil, err
	}
	cfg.use(0)
	w, err := shard.Load(ctx, cfg.Checkpoint, p, rank, dt, shard.Options{Pool: cfg.Pool, Device: cfg.device(), Cache: cfg.WeightsCache, Shared: cfg.Shared, Progress: func(done, total int64) {
		read.done.Store(done)
		read.total.Store(total)
		if cfg.OnProgress != nil {
			cfg.OnProgress(done, total)
		}
	}})
	if err != nil {
		return nil, unusable(err)
	}
	if cfg.Shared != nil {
		huge, all := cfg.Shared.Huge()
		cfg.Logger.Debug("weights shared by the nodes of this machine", "huge_pages", huge, "of", all)
	}
	if cfg.Draft != nil && held.Drafter == nil {
		if held.Drafter, err = draft.Load(ctx, cfg.Draft, cfg.Checkpoint, dt, kv, shard.Options{Pool: cfg.Pool, Device: cfg.device()}); err != nil {
			w.Close()
			return nil, unusable(err)
		}
	}
	c := &caches.Epoch{Caches: held, Place: p, Rank: rank, Geometry: shard.GeometryOf(&cfg.Checkpoint.Config, kv), Grammars: cfg.Grammars, Parallel: cfg.Pool.Run}
	return step.NewEpoch(c, step.Options{Config: cfg.Checkpoint.Config, Weights: w, Type: dt, Device: cfg.device(), Pool: cfg.Pool, MaxRows: int(r.MaxStepTokens)}), nil
}

// unusable marks the error of a weights file that has changed. Other nodes may have an intact copy.
func unusable(err error) error {
	if errors.Is(err, model.ErrChanged) {
		return fmt.Errorf("%w: %w", topology.ErrWeights, err)
	}
	return err
}

func (a *Actor) loaded(c actor.Context, m *loaded) {
	if err := a.machine.Loaded(m.number, m.err == nil); err != nil || m.err != nil {
		if m.epoch != nil {
			m.epoch.Close(nil)
		}
		m.reply(nil, errors.Join(m.err, err))
		return
	}
	a.epoch, a.term = m.epoch, a.exec.NewTerm()
	a.epoch.Await = a.term.Await
	a.caches.Begin(m.epoch.Epoch)
	layers := m.epoch.Weights.Layers
	a.layers = make([]*actor.PID, len(layers))
	for i := len(layers) - 1; i >= 0; i-- {
		l := &layer.Actor{Layers: layers[i:], Next: a.layers[i+1:], Term: a.term}
		a.layers[i] = c.Spawn(actor.PropsFromProducer(func() actor.Actor { return l }, actor.WithDispatcher(layer.Dispatcher)))
	}
	a.Config.Logger.Info("slices loaded", "epoch", m.number, "rank", m.epoch.Rank, "sockets", len(m.epoch.Place.Slices),
		"weights_bytes", m.epoch.Weights.Bytes(), "took", m.took.Round(time.Millisecond))
	kept := a.machine.Held()
	for _, h := range kept {
		if !h.Replica {
			h.Spilled = uint32(m.inFiles[h.Seq])
		}
	}
	m.reply(&proto.LoadReply{WeightBytes: m.epoch.Weights.Bytes() + m.epoch.Drafter.Bytes(), KvBudgetBytes: a.caches.Arena.Budget(), Millis: uint32(m.took.Milliseconds()), Held: kept,
		PrefixDisk: a.caches.HasPrefixDisk(), ScratchBytes: a.caches.ScratchLimit()}, nil)
}

func (a *Actor) join(c actor.Context, m *Join) {
	if err := a.machine.Join(m.Request.Epoch); err != nil {
		m.Reply(nil, err)
		return
	}
	deadline := time.Duration(m.Request.DeadlineMillis) * time.Millisecond
	e, r, self, root, connect := a.epoch, m.Request, c.Self(), c.ActorSystem().Root, a.Config.Connect
	link, onPost := e.OpenLink()
	a.link = link
	cfg := collective.Config{OnPost: onPost, Rank: e.Rank, Size: len(e.Place.Slices), Epoch: e.Place.Epoch, Incarnations: r.Incarnations, Deadline: deadline, Parallel: a.Config.Pool.Run,
		OnFail: func(err error) { root.Send(self, &groupFailed{number: r.Epoch, err: err}) }}
	child := &collectiveActor{
		timeout: min(max(deadline, minJoinTimeout), maxJoinTimeout),
		form: func(ctx context.Context) (*collective.Group, error) {
			t, err := connect(ctx, r.Group, cfg.Epoch, cfg.Rank, r.Incarnations)
			if err != nil {
				return nil, err
			}
			g, err := collective.NewGroup(cfg, t)
			if err != nil {
				t.Close()
			}
			return g, err
		},
		formed: func(x *exchanges, err error, took time.Duration) {
			root.Send(self, &joined{number: r.Epoch, group: x, err: err, took: took, reply: m.Reply})
		},
	}
	a.collective = c.Spawn(actor.PropsFromProducer(func() actor.Actor { return child }, actor.WithDispatcher(layer.Dispatcher)))
}

// Bounds of the time in which a group must form. Between them it is the timeout of a collective.
const (
	minJoinTimeout = 3 * time.Second
	maxJoinTimeout = 15 * time.Second
)

func (a *Actor) joined(_ actor.Context, m *joined) {
	if err := a.machine.Joined(m.number, m.err == nil); err != nil || m.err != nil {
		var cut interface{ Missing() []int }
		if err == nil && errors.As(m.err, &cut) {
			r := &proto.JoinReply{Millis: uint32(m.took.Milliseconds())}
			for _, rank := range cut.Missing() {
				r.Unreachable = append(r.Unreachable, uint32(rank))
			}
			a.Config.Logger.Warn("group not formed", "epoch", m.number, "error", m.err)
			m.reply(r, nil)
			return
		}
		m.reply(nil, errors.Join(m.err, err))
		return
	}
	a.epoch.Group = m.group
	a.link.Connect(m.group.group)
	m.reply(&proto.JoinReply{Millis: uint32(m.took.Milliseconds())}, nil)
}

func (a *Actor) begin(c actor.Context, m *Step) {
	w, err := a.machine.Plan(m.Request)
	if err != nil {
		m.Reply(nil, err)
		a.failSteps(err)
		return
	}
	s := &flight{Step: a.epoch.NewStep(w, a.Config.use), reply: m.Reply, observe: m.Times}
	s.jobsBefore, _ = a.exec.Progress()
	a.steps[w.MicroBatch] = s
	a.run(c, s)
}

// failSteps fails the steps in flight if the epoch has failed.
func (a *Actor) failSteps(cause error) {
	if a.machine.Phase == machine.Stepping || a.machine.Phase == machine.Ready {
		return
	}
	for i, s := range a.steps {
		if s != nil {
			a.steps[i] = nil
			s.reply(nil, cause)
		}
	}
}

// release frees sequences between steps, after the executor's queued jobs.
func (a *Actor) release(m *Release) {
	effects, err := a.machine.Release(m.Request)
	if err != nil {
		m.Reply(nil, err)
		return
	}
	held := a.caches
	a.exec.Submit(func() {
		held.Release(effects)
		m.Reply(&proto.ReleaseReply{KvUsedBytes: held.Arena.Used()}, nil)
	})
}

// between runs a job on the executor between two steps of an epoch, or refuses it.
func (a *Actor) between(c actor.Context, m *Between) {
	if err := a.machine.Job(m.Epoch); err != nil {
		m.Reply(err)
		return
	}
	e, self, root := a.epoch, c.Self(), c.ActorSystem().Root
	a.exec.Submit(func() {
		made, err := e.Run(m.Do)
		root.Send(self, &jobDone{number: m.Epoch, made: made, err: err, reply: m.Reply})
	})
}

// flight is a step in flight.
type flight struct {
	*step.Step
	reply      func(*proto.StepReply, error)
	observe    func(step.Times)
	sent       *layer.Batch // batch in the layers
	jobsBefore uint64       // jobs of the executor before the step
}

// run starts the current stage of a step.
func (a *Actor) run(c actor.Context, s *flight) {
	job, batch := s.Job()
	if job == nil {
		s.sent = batch
		c.Send(a.layers[0], &layer.Run{Batch: batch, Group: a.epoch.Group, ReplyTo: c.Self()})
		return
	}
	self, root := c.Self(), c.ActorSystem().Root
	a.exec.Submit(func() { job(func(err error) { root.Send(self, &stageDone{s, err}) }) })
}

// advance starts a step's next stage or ends the step.
func (a *Actor) advance(c actor.Context, s *flight, err error) {
	w := s.Work
	if a.steps[w.MicroBatch] != s {
		return // the step's epoch is over
	}
	if err == nil && s.Advance() {
		a.run(c, s)
		return
	}
	a.steps[w.MicroBatch] = nil
	if stale := a.machine.End(w, err == nil); stale != nil || err != nil {
		err = errors.Join(err, stale)
		a.Config.Logger.Warn("step failed", "epoch", w.Epoch, "step", w.Step, "error", err)
		s.reply(nil, err)
		a.failSteps(err)
		return
	}
	times, reply := s.Finish()
	if s.observe != nil {
		s.observe(times)
	}
	s.reply(reply, nil)
}

// teardown ends all work in flight and frees the epoch, except for the caches that a later epoch can
// use. The executor may be running a stage, so freeing is the last job of the epoch's term.
func (a *Actor) teardown(c actor.Context, effects []machine.Effect) {
	if a.cancel != nil {
		a.cancel()
		a.cancel = nil
	}
	a.failSteps(ErrRetired)
	for _, p := range a.layers {
		c.Stop(p)
	}
	a.layers = nil
	held := a.caches
	if e := a.epoch; e != nil {
		a.epoch = nil
		a.link.Close()
		a.link = nil
		if a.collective != nil {
			c.Stop(a.collective)
			a.collective = nil
		}
		a.term.End(func() { e.Close(effects) })
		return
	}
	if len(effects) > 0 {
		a.exec.Submit(func() { held.Release(effects) })
	}
}

func (a *Actor) status() *proto.SocketStatus {
	done, busy := a.exec.Progress()
	before := uint64(0)
	for _, f := range a.steps {
		if f != nil && (before == 0 || f.jobsBefore < before) {
			before = f.jobsBefore
		}
	}
	s := &proto.SocketStatus{Progress: done - before, Busy: busy, Epoch: a.machine.Epoch, State: string(a.machine.Phase), LastStep: a.machine.Step,
		KvUsedBytes: a.caches.Arena.Used(), KvBudgetBytes: a.caches.Arena.Budget(), PrefixDisk: a.caches.PrefixDisk(), Scratch: a.caches.Scratch()}
	if a.epoch != nil {
		s.WeightBytes = a.epoch.Weights.Bytes() + a.epoch.Drafter.Bytes()
	}
	if a.read != nil {
		s.LoadedBytes, s.LoadBytes = a.read.done.Load(), a.read.total.Load()
	}
	return s
}

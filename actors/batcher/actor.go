package batcher

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/shoal-llm/shoal/actors/batcher/adapters"
	"github.com/shoal-llm/shoal/actors/batcher/prefillgroup"
	"github.com/shoal-llm/shoal/actors/batcher/saved"
	"github.com/shoal-llm/shoal/actors/batcher/stream"
	"github.com/shoal-llm/shoal/internal/engine/plan"
)

var (
	// ErrBusy means that requests arrive faster than the batcher accepts them.
	ErrBusy = errors.New("batcher: busy, try again in a moment")
	// ErrStopped means that the batcher has stopped.
	ErrStopped = errors.New("batcher: stopped")
)

// Stepper executes the batcher's decisions. The batcher's goroutine calls its methods, one at a time.
// They must not block.
type Stepper interface {
	// StartStep runs a step. done is called exactly once, from any goroutine, also before StartStep
	// returns: with an error, or with a result for every row with samples or prompt log-probabilities
	// and the measured cache bytes by rank (nil: not measured). Neither side may change the plan.
	StartStep(p *plan.Plan, done func(d StepDone, err error))
	// Release applies Keep, Release and Evict of Effects on all sockets of the epoch. It may be
	// lost, or arrive after the next step has begun: that step repeats it.
	Release(epoch uint32, keep []plan.Keep, seqs, blocks []uint64)
	// Disk sends a request to the disks of all sockets of the epoch. done is called exactly once, from
	// any goroutine, within about d.Millis.
	Disk(epoch uint32, d Disk, done func(blocks int))
	// Adapt makes all sockets of the epoch load a LoRA adapter. done is called exactly once, from any
	// goroutine.
	Adapt(epoch uint32, l adapters.Load, done func(error))
	// Saved sends an order for caches of idle sessions to its sockets. done is called exactly once,
	// from any goroutine.
	Saved(o saved.Order, done func(saved.Done))
	// Broken reports to the placement authority that an epoch is over. The authority answers with
	// Place.
	Broken(b Broken)
}

// NewStream returns an empty stream.
func NewStream() *Stream { return stream.New() }

// Prefiller connects the batchers of two groups. Like a Stepper's, its methods must not block.
type Prefiller interface {
	// Prefill makes the prefill group compute the cache of a prompt. The answer is a PrefillDone.
	Prefill(spec Spec)
	// Drop ends a read, whether or not it is complete.
	Drop(number uint64)
	// Take makes an owner take the cache of a prompt. The answer is a TakeDone.
	Take(t prefillgroup.Take)
	// Exported reports the end of a read, from the batcher of the prefill group.
	Exported(d prefillgroup.Done)
}

type Options struct {
	Prefill Prefiller     // nil: the cluster has no roles
	Logger  *slog.Logger  // nil: slog.Default()
	Tick    time.Duration // interval of the state's Ticks; 100 ms
	Intake  int           // maximum new requests in the mailbox; 256
	OnFault func(Fault)   // called for every broken invariant, in addition to the log; must not block
}

// Batcher is the actor around a State. Its mailbox is bounded by credits: Intake
// requests, one cancellation for each request that was taken, one result for each
// step in flight, one tick. All methods may be called concurrently.
type Batcher struct {
	root    *actor.RootContext
	pid     *actor.PID
	stepper Stepper
	opts    Options
	started time.Time
	intake  chan struct{} // a credit is a place in the mailbox
	ticking atomic.Bool   // a tick is in the mailbox
	done    chan struct{} // closed when the actor has stopped
	idle    chan struct{} // closed when a drain is complete
	stop    sync.Once
	err     atomic.Pointer[error]

	// Only the actor's goroutine uses the following fields.
	state    *State
	tickets  map[string]*ticket
	quit     chan struct{} // ends the ticker
	ticker   sync.WaitGroup
	draining bool
}

// ticket distinguishes a request from a later one with the same ID.
type ticket struct{ sink Sink }

// Messages of the mailbox; Placed and Unplaced are sent unchanged.
type (
	submission struct {
		spec   Spec
		ticket *ticket
		reply  chan error // buffered
	}
	cancellation struct {
		id     string
		ticket *ticket
	}
	stepEnded     struct{ input Input }
	clock         struct{}
	drain         struct{}
	snapshotQuery struct{ reply chan Snapshot } // buffered
	roomQuery     struct {
		spec  Spec
		reply chan int // buffered
	}
)

// Start spawns the actor. Stop ends it.
func Start(root *actor.RootContext, cfg Config, stepper Stepper, opts Options) (*Batcher, error) {
	state, err := New(cfg)
	if err != nil {
		return nil, err
	}
	if opts.Logger == nil {
		opts.Logger = slog.Default()
	}
	if opts.Tick <= 0 {
		opts.Tick = 100 * time.Millisecond
	}
	if opts.Intake <= 0 {
		opts.Intake = 256
	}
	b := &Batcher{root: root, stepper: stepper, opts: opts, started: time.Now(), intake: make(chan struct{}, opts.Intake),
		done: make(chan struct{}), idle: make(chan struct{}), state: state, tickets: map[string]*ticket{}, quit: make(chan struct{})}
	b.pid = root.Spawn(actor.PropsFromFunc(b.receive))
	b.ticker.Go(b.tick)
	return b, nil
}

// Millis returns a moment on the state's clock, for Spec.Arrival and Spec.Deadline.
func (b *Batcher) Millis(t time.Time) int64 { return t.Sub(b.started).Milliseconds() }

// Submit sends a request to the actor and returns when it is accepted. From then on sink gets its
// tokens, and exactly one Finish. cancel ends the request early. It may be called any number of times
// and after the end, and does not wait. Spec.Arrival 0 means now.
//
// Errors are *Reject, ErrBusy, ErrStopped, or the context's; then sink is not called.
func (b *Batcher) Submit(ctx context.Context, spec Spec, sink Sink) (cancel func(), err error) {
	select {
	case b.intake <- struct{}{}:
	default:
		return nil, ErrBusy
	}
	gate := &stream.Gate{Sink: sink}
	t := &ticket{sink: gate}
	m := &submission{spec: spec, ticket: t, reply: make(chan error, 1)}
	var once sync.Once
	cancel = func() {
		once.Do(func() { b.send(&cancellation{id: spec.ID, ticket: t}) })
	}
	b.send(m)
	select {
	case err := <-m.reply:
		if err != nil {
			return nil, err
		}
		return cancel, nil
	case <-ctx.Done():
		gate.Close()
		cancel()
		return nil, ctx.Err()
	case <-b.done:
		gate.Close()
		return nil, b.stopped()
	}
}

// Unread reports whether the client of a request has stopped reading its tokens. If so, other requests
// get its place. The caller must limit the rate of calls.
func (b *Batcher) Unread(id string, yes bool) { b.send(Unread{ID: id, Yes: yes}) }

// ResetPrefixCache empties the prefix cache.
func (b *Batcher) ResetPrefixCache() { b.send(ResetPrefixCache{}) }

// EndSession frees the cache of a session that waits for its next turn.
func (b *Batcher) EndSession(session string) { b.send(EndSession{session}) }

// Place announces a working placement.
func (b *Batcher) Place(p Placed) { b.send(p) }

// PrefillDone reports the end of a read of the prefill group.
func (b *Batcher) PrefillDone(d prefillgroup.Done) { b.send(d) }

// TakeDone reports the end of a Take; err is nil if the owner has the cache.
func (b *Batcher) TakeDone(number uint64, err error) {
	t := TakeDone{Number: number}
	if err != nil {
		t.Err = err.Error()
	}
	b.send(t)
}

// Unplace reports that there is no working placement. All running requests return to the queue.
func (b *Batcher) Unplace(reason string) { b.send(Unplaced{Reason: reason}) }

// Snapshot describes the current state.
func (b *Batcher) Snapshot(ctx context.Context) (Snapshot, error) {
	m := &snapshotQuery{reply: make(chan Snapshot, 1)}
	b.send(m)
	select {
	case s := <-m.reply:
		return s, nil
	case <-ctx.Done():
		return Snapshot{}, ctx.Err()
	case <-b.done:
		return Snapshot{}, b.stopped()
	}
}

// PromptRoom returns how many of the last tokens of a prompt fit the sockets together with MaxTokens of output; all of
// them without a placement.
func (b *Batcher) PromptRoom(ctx context.Context, spec Spec) int {
	m := &roomQuery{spec: spec, reply: make(chan int, 1)}
	b.send(m)
	select {
	case n := <-m.reply:
		return n
	case <-ctx.Done():
	case <-b.done:
	}
	return len(spec.Prompt)
}

// Drain refuses new requests and returns when the last one has ended.
func (b *Batcher) Drain(ctx context.Context) error {
	b.send(&drain{})
	select {
	case <-b.idle:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("batcher: not drained: %w", ctx.Err())
	case <-b.done:
		return b.stopped()
	}
}

// Stop ends the actor and waits until the actor and its ticker have ended. Remaining requests finish
// with an error. Stop may be called more than once.
func (b *Batcher) Stop(ctx context.Context) error {
	b.stop.Do(func() { b.root.Stop(b.pid) })
	select {
	case <-b.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("batcher: stopping: %w", ctx.Err())
	}
}

// Done is closed when the actor has stopped. Err then returns the reason, nil after Stop.
func (b *Batcher) Done() <-chan struct{} { return b.done }

// Err returns the broken invariant that stopped the actor, if one did.
func (b *Batcher) Err() error {
	if p := b.err.Load(); p != nil {
		return *p
	}
	return nil
}

func (b *Batcher) stopped() error {
	if err := b.Err(); err != nil {
		return fmt.Errorf("%w: %w", ErrStopped, err)
	}
	return ErrStopped
}

func (b *Batcher) send(message any) {
	select {
	case <-b.done: // the mailbox no longer exists
	default:
		b.root.Send(b.pid, message)
	}
}

func (b *Batcher) receive(c actor.Context) {
	defer b.survive(c)
	if b.Err() != nil && b.ignore(c.Message()) {
		return
	}
	switch m := c.Message().(type) {
	case *actor.Stopping:
		close(b.quit)
		b.finishAll(Finish{Reason: ReasonError, Code: CodeDraining, Message: "the server stopped"})
	case *actor.Stopped:
		b.ticker.Wait()
		close(b.done)
	case *submission:
		<-b.intake
		b.submit(m)
	case *cancellation:
		if b.tickets[m.id] == m.ticket {
			b.step(Cancel{ID: m.id})
		}
	case *stepEnded:
		b.step(m.input)
	case Placed, Unplaced, Unread, AdapterDone, PrefillDone, TakeDone, SavedDone, DiskDone, ResetPrefixCache, EndSession:
		b.step(m)
	case *clock:
		b.ticking.Store(false)
		b.perform(b.state.Step(Tick{Now: b.Millis(time.Now())}))
	case *drain:
		b.draining = true
		b.step(Drain{})
	case *snapshotQuery:
		m.reply <- b.state.Snapshot()
	case *roomQuery:
		m.reply <- b.state.ledger.promptRoom(m.spec)
	}
	if b.draining && b.state.Idle() {
		b.draining = false
		close(b.idle)
	}
}

// survive ends all requests with a reason after a panic of the state. A restarted actor would not have
// the requests.
func (b *Batcher) survive(c actor.Context) {
	cause := recover()
	if cause == nil {
		return
	}
	err := fmt.Errorf("batcher: broken invariant: %v", cause)
	b.err.CompareAndSwap(nil, &err)
	b.opts.Logger.Error("batcher stops", "error", err, "stack", string(debug.Stack()))
	b.finishAll(Finish{Reason: ReasonError, Code: CodeFailed, Message: err.Error()})
	c.Stop(c.Self())
}

// ignore drops the remaining messages of a batcher that is about to stop.
func (b *Batcher) ignore(message any) bool {
	switch message.(type) {
	case *actor.Stopping, *actor.Stopped:
		return false
	}
	return true
}

func (b *Batcher) finishAll(f Finish) {
	for id, t := range b.tickets {
		delete(b.tickets, id)
		f.ID = id
		t.sink.Finish(f)
	}
}

func (b *Batcher) tick() {
	t := time.NewTicker(b.opts.Tick)
	defer t.Stop()
	for {
		select {
		case <-b.quit:
			return
		case <-t.C:
			if b.ticking.CompareAndSwap(false, true) {
				b.send(&clock{})
			}
		}
	}
}

package batcher

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"go.uber.org/goleak"

	"github.com/shoal-llm/shoal/actors/batcher/adapters"
	"github.com/shoal-llm/shoal/actors/batcher/saved"
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/plan"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

var quiet = slog.New(slog.DiscardHandler)

func system() *actor.ActorSystem {
	return actor.NewActorSystem(actor.WithLoggerFactory(func(*actor.ActorSystem) *slog.Logger { return quiet }))
}

// fakeStepper runs plans on the simulated cluster, in its own goroutine, and
// places a new epoch when one broke.
type fakeStepper struct {
	t       *testing.T
	batcher *Batcher
	mu      sync.Mutex
	specs   map[string]*Spec
	at      *cluster
	wg      sync.WaitGroup
	fail    func(p *plan.Plan) (err error, hang bool)
}

var oneSocket = []Socket{{ID: "n1", Budget: 64 * block, Heads: tensor.Span{Lo: 0, Hi: 4}}}

func (f *fakeStepper) place(epoch uint32) {
	f.mu.Lock()
	if f.at != nil {
		f.at.close()
	}
	f.at = newCluster(f.t, epoch, oneSocket)
	f.mu.Unlock()
	f.batcher.Place(Placed{Epoch: epoch, Sockets: oneSocket})
}

func (f *fakeStepper) Disk(_ uint32, _ Disk, done func(int)) { done(0) }

func (f *fakeStepper) Adapt(_ uint32, _ adapters.Load, done func(error)) { done(nil) }

func (f *fakeStepper) StartStep(p *plan.Plan, done func(StepDone, error)) {
	f.wg.Go(func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.fail != nil {
			if err, hang := f.fail(p); hang {
				return
			} else if err != nil {
				done(StepDone{}, err)
				return
			}
		}
		if p.Epoch != f.at.epoch {
			done(StepDone{}, errors.New("stale epoch"))
			return
		}
		done(f.at.run(p, f.specs), nil)
	})
}

func (f *fakeStepper) Release(epoch uint32, _ []plan.Keep, seqs, _ []uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if epoch == f.at.epoch {
		f.at.release(seqs)
	}
}

func (f *fakeStepper) Saved(o saved.Order, done func(saved.Done)) { done(saved.Done{Number: o.Number}) }

func (f *fakeStepper) Broken(b Broken) { f.wg.Go(func() { f.place(b.Epoch + 1) }) }

func start(t *testing.T, cfg Config, opts Options) (*fakeStepper, *Batcher) {
	t.Helper()
	cfg.Geometry, cfg.ContextLimit = geometry, 1000
	opts.Logger = quiet
	opts.OnFault = func(x Fault) { t.Errorf("fault %+v", x) }
	f := &fakeStepper{t: t, specs: map[string]*Spec{}}
	b, err := Start(system().Root, cfg, f, opts)
	if err != nil {
		t.Fatal(err)
	}
	f.batcher = b
	return f, b
}

// deadLetterTimer is a goroutine of Proto.Actor that counts dead letters for a second. It ends by
// itself, after the test.
var deadLetterTimer = goleak.IgnoreTopFunction("github.com/asynkron/protoactor-go/actor.NewDeadLetter.NewThrottle.func4.1")

func (f *fakeStepper) submit(ctx context.Context, id string, promptLen, tokens int) (*Stream, func(), error) {
	spec := Spec{ID: id, Prompt: prompt(id, promptLen), MaxTokens: tokens, Sampling: greedy, Policy: kvcache.Full(), PromptLogprobs: 0}
	f.mu.Lock()
	f.specs[id] = &spec
	f.mu.Unlock()
	s := NewStream()
	cancel, err := f.batcher.Submit(ctx, spec, s)
	return s, cancel, err
}

// drainStream reads a stream to its end and checks every token.
func drainStream(ctx context.Context, id string, s *Stream) (Finish, error) {
	next, scores := 0, 0
	var end Finish
	for {
		e, err := s.Next(ctx)
		switch {
		case errors.Is(err, io.EOF):
			return end, nil
		case err != nil:
			return end, err
		case e.Finish != nil:
			end = *e.Finish
		case e.Emit != nil:
			if e.Emit.Index != next || e.Emit.Token != modelToken(id, next) {
				return end, fmt.Errorf("%s: token %d at %d, expected index %d", id, e.Emit.Token, e.Emit.Index, next)
			}
			next++
		default:
			scores += len(e.Scores)
		}
	}
}

func TestActorServes(t *testing.T) {
	defer goleak.VerifyNone(t, deadLetterTimer)
	ctx, done := context.WithTimeout(t.Context(), 2*time.Minute)
	defer done()
	f, b := start(t, Config{MaxRunning: 6, TokenBudget: 40, Chunk: 16}, Options{Tick: 5 * time.Millisecond})
	steps := 0
	f.fail = func(*plan.Plan) (error, bool) { // every 17th step fails
		if steps++; steps%17 == 0 {
			return errStep, false
		}
		return nil, false
	}
	f.place(1)
	var wg sync.WaitGroup
	for i := range 24 {
		wg.Go(func() {
			id := fmt.Sprint("r", i)
			s, cancel, err := f.submit(ctx, id, 1+i*7, 20)
			if err != nil {
				t.Error(err)
				return
			}
			if i%5 == 4 {
				cancel()
				cancel()
			}
			end, err := drainStream(ctx, id, s)
			if err != nil {
				t.Error(err)
			}
			if end.Reason != ReasonLength && !(i%5 == 4 && end.Reason == ReasonCancelled) {
				t.Errorf("%s ended with %+v", id, end)
			}
			cancel()
		})
	}
	wg.Wait()
	v, err := b.Snapshot(ctx)
	if err != nil || !v.Placed || len(v.Waiting) > 0 {
		t.Errorf("snapshot %+v, %v", v, err)
	}
	if err := b.Drain(ctx); err != nil {
		t.Error(err)
	}
	var reject *Reject
	if _, _, err := f.submit(ctx, "late", 1, 1); !errors.As(err, &reject) || reject.Code != CodeDraining {
		t.Errorf("after a drain: %v", err)
	}
	for range 2 {
		if err := b.Stop(ctx); err != nil {
			t.Error(err)
		}
	}
	if _, _, err := f.submit(ctx, "later", 1, 1); !errors.Is(err, ErrStopped) {
		t.Errorf("after Stop: %v", err)
	}
	if _, err := b.Snapshot(ctx); !errors.Is(err, ErrStopped) || b.Err() != nil {
		t.Errorf("after Stop: %v", err)
	}
	f.wg.Wait()
	f.at.close()
}

// A step that hangs breaks its epoch after the deadline, and no request loses a token.
func TestActorStepDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, b := start(t, Config{StepMillis: 30_000}, Options{})
		steps := 0
		f.fail = func(*plan.Plan) (error, bool) { steps++; return nil, steps == 4 }
		f.place(1)
		begin := time.Now()
		s, _, err := f.submit(t.Context(), "a", 10, 8)
		if err != nil {
			t.Fatal(err)
		}
		end, err := drainStream(t.Context(), "a", s)
		if err != nil || end.Reason != ReasonLength || end.Output != 8 {
			t.Errorf("ended %+v, %v", end, err)
		}
		if took := time.Since(begin); took < 30*time.Second || took > 31*time.Second {
			t.Errorf("took %v", took)
		}
		if err := b.Stop(t.Context()); err != nil {
			t.Error(err)
		}
		f.wg.Wait()
		f.at.close()
	})
}

// Stop ends the remaining requests with a reason.
func TestActorStopEndsRequests(t *testing.T) {
	defer goleak.VerifyNone(t, deadLetterTimer)
	f, b := start(t, Config{}, Options{})
	s, _, err := f.submit(t.Context(), "a", 10, 8)
	if err != nil {
		t.Fatal(err)
	}
	ctx, done := context.WithTimeout(t.Context(), 10*time.Millisecond)
	if err := b.Drain(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("drain: %v", err)
	}
	done()
	if err := b.Stop(t.Context()); err != nil {
		t.Error(err)
	}
	if end, err := drainStream(t.Context(), "a", s); err != nil || end.Reason != ReasonError || end.Code != CodeDraining {
		t.Errorf("ended %+v, %v", end, err)
	}
}

// A broken invariant ends everything with a reason instead of a silent restart.
func TestActorSurvivesPanic(t *testing.T) {
	defer goleak.VerifyNone(t, deadLetterTimer)
	f, b := start(t, Config{}, Options{})
	s, _, err := f.submit(t.Context(), "a", 10, 8)
	if err != nil {
		t.Fatal(err)
	}
	b.send(&stepEnded{nil}) // an invalid input
	if end, err := drainStream(t.Context(), "a", s); err != nil || end.Code != CodeFailed {
		t.Errorf("ended %+v, %v", end, err)
	}
	<-b.Done()
	if _, _, err := f.submit(t.Context(), "b", 1, 1); b.Err() == nil || !errors.Is(err, ErrStopped) {
		t.Errorf("%v, %v", b.Err(), err)
	}
}

type blockedSink struct {
	*Stream
	in, out chan struct{}
}

func (s *blockedSink) Finish(f Finish) { s.in <- struct{}{}; <-s.out; s.Stream.Finish(f) }

// The mailbox is bounded: a request without a credit gets ErrBusy.
func TestActorIntakeIsBounded(t *testing.T) {
	defer goleak.VerifyNone(t, deadLetterTimer)
	f, b := start(t, Config{}, Options{Intake: 2})
	spec := Spec{ID: "slow", Prompt: []int32{1}, MaxTokens: 1, Sampling: greedy, Policy: kvcache.Full(), PromptLogprobs: -1}
	sink := &blockedSink{NewStream(), make(chan struct{}), make(chan struct{})}
	cancel, err := b.Submit(t.Context(), spec, sink)
	if err != nil {
		t.Fatal(err)
	}
	go cancel()
	<-sink.in // the sink breaks its contract and blocks the actor
	short, done := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer done()
	var given []*Stream
	for i := range 2 {
		s, _, err := f.submit(short, fmt.Sprint("w", i), 1, 1)
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("submission %d: %v", i, err)
		}
		given = append(given, s)
	}
	if _, _, err := f.submit(t.Context(), "x", 1, 1); !errors.Is(err, ErrBusy) {
		t.Errorf("without a credit: %v", err)
	}
	close(sink.out)
	for { // the requests that timed out were cancelled
		v, err := b.Snapshot(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if len(v.Waiting) == 0 {
			break
		}
	}
	if _, _, err := f.submit(t.Context(), "y", 1, 1); err != nil {
		t.Error(err)
	}
	for _, s := range given {
		if e, err := s.Next(short); err == nil {
			t.Errorf("a cancelled request got %+v", e)
		}
	}
	if err := b.Stop(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestConfigIsChecked(t *testing.T) {
	good := Config{Geometry: geometry, ContextLimit: 10}
	if _, err := New(good); err != nil {
		t.Error(err)
	}
	for name, edit := range map[string]func(*Config){
		"layers":  func(c *Config) { c.Geometry.Layers = 0 },
		"context": func(c *Config) { c.ContextLimit = 0 },
		"budget":  func(c *Config) { c.TokenBudget = 1 },
		"chunk":   func(c *Config) { c.Chunk = 513 },
		"running": func(c *Config) { c.MaxRunning = 512 },
		"waiting": func(c *Config) { c.MaxWaiting = -1 },
		"millis":  func(c *Config) { c.StepMillis = -1 },
	} {
		c := good
		edit(&c)
		if _, err := New(c); !errors.Is(err, ErrConfig) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

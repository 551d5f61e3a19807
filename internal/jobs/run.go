package jobs

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/shoal-llm/shoal/internal/jobs/journal"
	"github.com/shoal-llm/shoal/internal/jobs/routes"
	"github.com/shoal-llm/shoal/internal/server/apierr"
	"github.com/shoal-llm/shoal/internal/server/engine"
	"github.com/shoal-llm/shoal/internal/server/generate"
)

// errStop: the attempt must end without writing a record. The state determines which process
// continues.
var errStop = errors.New("jobs: attempt ends")

// attempt runs a job from the end of its log until its result, its failure or the end of this
// process.
func (v *Service) attempt(ctx context.Context, j *job) {
	l := &attemptRun{Service: v, job: j}
	err := l.try(ctx)
	begun := l.attempt
	if j.snapshot().state.Phase == Cancelled {
		l.abandon("abort")
	}
	if err != nil { // back off, even if the journal allows an attempt
		j.mu.Lock()
		j.pause = time.Now().Add(v.cfg.Rules.Backoff)
		j.mu.Unlock()
	}
	var fail *Failure
	var f failed
	switch {
	case err == nil, errors.Is(err, errStop), Superseded(err):
		return
	case v.ctx.Err() != nil:
		fail = &Failure{Code: "interrupted", Message: "The coordinator was stopped.", Forgiven: true}
	case errors.As(err, &f):
		fail = &f.Failure
	case errors.Is(err, journal.ErrDamaged):
		v.store.deactivate(j)
		j.markDamaged(err.Error(), v.store.Now())
		v.cfg.Logger.Error("jobs: damaged record", "job", j.id, "error", err)
		return
	default:
		fail = failureOf(err)
	}
	st := j.snapshot().state
	n, ok := st.Fail(begun, v.store.Now(), *fail, v.cfg.Rules)
	if !ok {
		return
	}
	e := endRecord{Code: n.Code, Message: n.Message, NotBefore: n.NotBefore, Forgiven: n.Forgiven}
	if n.Kind == KindDead {
		e.Status, e.Body = f.status, f.body
		if e.Status == 0 {
			e.Status, e.Body = apierr.ErrorStatus(err)
		}
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopGrace)
	defer cancel()
	v.cfg.Logger.Info("jobs: attempt failed", "job", j.id, "attempt", n.Attempt, "code", e.Code,
		"error", e.Message, "dead", n.Kind == KindDead)
	if err := v.write(last, j, journal.Record{Kind: n.Kind, Attempt: n.Attempt, At: n.At}, e); err != nil {
		// The next attempt finds the job running and takes over.
		v.cfg.Logger.Warn("jobs: the end of an attempt was not written", "job", j.id, "error", err)
	} else if n.Kind == KindDead {
		l.abandon("error")
	}
}

// failed is a failure with the response that the endpoint itself would have sent.
type failed struct {
	Failure
	status int
	body   json.RawMessage
}

func (f failed) Error() string { return f.Code + ": " + f.Message }

func failureOf(err error) *Failure {
	var (
		eng  apierr.ErrFailed
		inv  apierr.ErrInvalid
		long apierr.ErrTooLong
		not  apierr.ErrNotReady
		over apierr.ErrOverloaded
	)
	f := &Failure{Code: "engine_error", Message: err.Error()}
	switch {
	case errors.As(err, &eng):
		*f = EngineFailure(eng.Code, eng.Message)
	case errors.As(err, &inv):
		f.Code, f.Permanent = cmp.Or(inv.Code, "invalid_request"), true
	case errors.As(err, &long):
		f.Code, f.Permanent = "context_length_exceeded", true
	case errors.As(err, &not):
		f.Code, f.Forgiven = "not_ready", true
	case errors.As(err, &over):
		f.Code, f.Forgiven = "overloaded", true
	case errors.Is(err, journal.ErrFull):
		f.Code, f.Forgiven = "store_full", true
	case errors.Is(err, journal.ErrNoAnswer):
		f.Code, f.Forgiven = "store_unavailable", true
	}
	return f
}

// write appends a record with a JSON payload. Final records also end the job in the store.
func (v *Service) write(ctx context.Context, j *job, r journal.Record, payload any) error {
	if payload != nil {
		b, err := json.Marshal(payload)
		if err != nil {
			return fmt.Errorf("jobs: %w", err)
		}
		r.Payload = b
	}
	if r.Kind == KindDone || r.Kind == KindDead || r.Kind == KindCancel {
		return v.store.end(ctx, j, r)
	}
	return v.store.append(ctx, j, r)
}

// attemptRun is one running attempt.
type attemptRun struct {
	*Service
	job      *job
	attempt  uint32 // 0: not started
	task     *generate.Task
	replay   *generate.Replay
	progress []Progress // per choice
	next     int        // index of the next event

	submitted bool // the engine has accepted a choice
}

// try runs one attempt, if the state allows it.
func (l *attemptRun) try(ctx context.Context) error {
	st := l.job.snapshot().state
	n, ok := st.Begin(l.store.Now(), l.cfg.Rules)
	if !ok {
		return errStop
	}
	if n.Kind == KindDead {
		return l.write(ctx, l.job, journal.Record{Kind: KindDead, Attempt: n.Attempt, At: n.At},
			endRecord{Code: n.Code, Message: n.Message, Status: http.StatusInternalServerError})
	}
	if err := l.write(ctx, l.job, NewRecord(n, nil), nil); err != nil {
		return err
	}
	l.attempt = n.Attempt
	if err := l.resume(ctx); err != nil {
		return err
	}
	if err := l.generate(ctx); err != nil {
		return err
	}
	return l.commit(ctx)
}

// abandon counts the unfinished choices of a job in the metrics.
func (l *attemptRun) abandon(reason string) {
	if l.submitted {
		l.replay.Abandon(reason)
	}
}

// task builds the engine task of a job's request.
func (v *Service) task(ctx context.Context, id string, accepted int64, spec Spec) (*generate.Task, error) {
	return v.api.NewTask(ctx, spec.Endpoint, spec.Body, taskOptions(id, accepted, spec))
}

func taskOptions(id string, accepted int64, spec Spec) generate.TaskOptions {
	return generate.TaskOptions{ID: strings.ReplaceAll(id, "-", ""), Created: accepted / 1000,
		Seed: spec.Seed, Drawn: spec.Drawn, Fingerprint: spec.Fingerprint, Renamed: spec.Adapter == ""}
}

// replay builds the task of a job whose events are read.
func (v *Service) replay(ctx context.Context, j *job) (*generate.Replay, error) {
	spec, err := v.store.spec(ctx, j.id)
	if err != nil {
		return nil, routes.Unreadable("The request of the job", err)
	}
	o := taskOptions(j.id, j.snapshot().state.Accepted, spec)
	o.Replay = true
	task, err := v.api.NewTask(ctx, spec.Endpoint, spec.Body, o)
	if err != nil {
		return nil, err
	}
	return task.Replay(), nil
}

// resume restores the request and the events of earlier attempts.
func (l *attemptRun) resume(ctx context.Context) error {
	spec, err := l.store.spec(ctx, l.job.id)
	if err != nil {
		return err
	}
	if now := l.api.Fingerprint(spec.Endpoint, spec.Body, spec.Fingerprint); spec.Fingerprint != now {
		return failed{Failure: Failure{Code: "model_changed", Permanent: true,
			Message: fmt.Sprintf("The job was accepted for %s, this coordinator serves %s.", spec.Fingerprint, now)}, status: http.StatusConflict}
	}
	if l.task, err = l.Service.task(ctx, l.job.id, l.job.snapshot().state.Accepted, spec); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if e := apierr.Of(err); Away(e.Status) {
			return failed{Failure: Failure{Code: e.Code, Message: e.Message, Forgiven: true}}
		}
		status, body := apierr.ErrorStatus(err)
		return failed{Failure: Failure{Code: "invalid_request", Message: err.Error(), Permanent: true}, status: status, body: body}
	}
	if now := l.task.Adapter(); spec.Adapter != "" && spec.Adapter != now {
		return failed{Failure: Failure{Code: "adapter_changed", Permanent: true,
			Message: fmt.Sprintf("The job was accepted for the LoRA adapter %.12s; its name now has the adapter %.12s.", spec.Adapter, now)},
			status: http.StatusConflict}
	}
	l.replay = l.task.Replay()
	l.progress = make([]Progress, l.task.Choices())
	return l.store.read(ctx, l.job.id, func(r *journal.Record) error {
		if r.Kind != KindTokens {
			return nil
		}
		_, events, err := DecodeTokens(r.Payload)
		if err != nil {
			return err
		}
		for _, e := range events {
			if _, err := l.replay.Accept(e.Choice, e.Event); err != nil {
				return fmt.Errorf("%w: event %d of %s: %v", journal.ErrDamaged, l.next, l.job.id, err)
			}
			l.apply(e)
		}
		return nil
	})
}

// Away reports whether a request could not be read or accepted for a reason outside of it, by the status of the error: the
// store or another part of the server is not available at the moment, or has too many jobs.
func Away(status int) bool {
	return status == http.StatusServiceUnavailable || status == http.StatusGatewayTimeout || status == http.StatusTooManyRequests
}

func (l *attemptRun) apply(e Logged) {
	l.progress[e.Choice].Take(e.Event)
	l.next++
}

// generate runs every unfinished choice and logs its events.
func (l *attemptRun) generate(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var readers sync.WaitGroup
	defer readers.Wait()
	defer cancel()
	arrivals := make(chan arrival, 64)
	l.replay.Begin()
	open := 0
	stop := make([]context.CancelFunc, l.task.Choices())
	for i := range stop {
		if l.replay.Done(i) {
			continue
		}
		req := l.task.Request(i)
		req.ID = fmt.Sprintf("%s/%d/%d", l.job.id, l.attempt, i)
		req.Emitted, req.Accepted = l.progress[i].Emitted, true
		if l.progress[i].Scored {
			req.PromptLogprobs = -1
		}
		var cctx context.Context
		cctx, stop[i] = context.WithCancel(ctx)
		events, err := l.engine.Submit(cctx, req)
		if err != nil {
			return err
		}
		l.submitted = true
		open++
		timer := l.replay.Timer(i)
		readers.Go(func() {
			forward(cctx, i, events, timer, arrivals)
		})
	}
	for open > 0 {
		batch, err := l.gather(ctx, arrivals)
		if err != nil {
			return err
		}
		ended, err := l.log(ctx, batch)
		for _, i := range ended {
			stop[i]()
			open--
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// arrival is an event of a choice. closed means that the choice has no further event.
type arrival struct {
	Logged
	closed bool
}

func forward(ctx context.Context, choice int, events <-chan engine.Event, timer *generate.SequenceTimer, to chan<- arrival) {
	for {
		a := arrival{Logged: Logged{Choice: choice}}
		select {
		case e, ok := <-events:
			if ok {
				timer.Event(&e)
			}
			a.Event, a.closed = e, !ok
		case <-ctx.Done():
			return
		}
		select {
		case to <- a:
		case <-ctx.Done():
			return
		}
		if a.closed {
			return
		}
	}
}

// gather waits for an event and collects those that follow within Linger.
func (l *attemptRun) gather(ctx context.Context, arrivals <-chan arrival) ([]arrival, error) {
	var out []arrival
	select {
	case a := <-arrivals:
		out = append(out, a)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	t := time.NewTimer(l.cfg.Linger)
	defer t.Stop()
	for len(out) < 1024 {
		select {
		case a := <-arrivals:
			out = append(out, a)
		case <-t.C:
			return out, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return out, nil
}

// log applies a batch of events, writes them, and returns the choices that are done. Events before
// a failure are written too, so they need not be computed again.
func (l *attemptRun) log(ctx context.Context, batch []arrival) (ended []int, err error) {
	var events []Logged
	for _, a := range batch {
		if l.replay.Done(a.Choice) {
			continue // the engine still sends events after a stop string
		}
		if a.closed {
			err = errors.New("jobs: the engine closed the stream without a finish reason")
			break
		}
		if a.Event.Finish == engine.FinishError || a.Event.Finish == engine.FinishCancelled {
			if err = a.Event.Err; err == nil {
				err = errors.New("jobs: the engine cancelled the sequence")
			}
			break
		}
		if _, err = l.replay.Accept(a.Choice, a.Event); err != nil {
			break
		}
		events = append(events, a.Logged)
		if l.replay.Done(a.Choice) {
			ended = append(ended, a.Choice)
		}
	}
	if len(events) == 0 {
		return ended, err
	}
	payload := EncodeTokens(l.next, events)
	if e := l.store.append(ctx, l.job, journal.Record{Kind: KindTokens, Attempt: l.attempt, At: l.store.Now(), Payload: payload}); e != nil {
		return ended, e
	}
	l.replay.Count()
	for _, e := range events {
		l.apply(e)
	}
	return ended, err
}

// partBytes is the maximum size of a Part record.
const partBytes = 4 << 20

// commit writes the result of the job.
func (l *attemptRun) commit(ctx context.Context) error {
	result, err := l.replay.Result()
	if err != nil {
		return err
	}
	return l.Service.commit(ctx, l.job, l.attempt, result)
}

// commit writes a result in parts, then Done. Only Done makes the result valid.
func (v *Service) commit(ctx context.Context, j *job, attempt uint32, result []byte) error {
	for at := 0; at < len(result); at += partBytes {
		part := result[at:min(at+partBytes, len(result))]
		if err := v.store.append(ctx, j, journal.Record{Kind: KindPart, Attempt: attempt, At: v.store.Now(), Payload: part}); err != nil {
			return err
		}
	}
	sum := sha256.Sum256(result)
	done := committed{Bytes: len(result), Sum: sum[:]}
	var u struct {
		Usage struct {
			Prompt     int `json:"prompt_tokens"`
			Completion int `json:"completion_tokens"`
			Input      int `json:"input_tokens"`
			Output     int `json:"output_tokens"`
		} `json:"usage"`
	}
	if err := json.Unmarshal(result, &u); err != nil {
		return fmt.Errorf("jobs: %w", err)
	}
	done.Usage.Prompt, done.Usage.Completion = u.Usage.Prompt+u.Usage.Input, u.Usage.Completion+u.Usage.Output
	return v.write(ctx, j, journal.Record{Kind: KindDone, Attempt: attempt, At: v.store.Now()}, done)
}

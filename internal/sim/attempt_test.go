package sim

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/shoal-llm/shoal/actors/batcher"
	"github.com/shoal-llm/shoal/internal/jobs"
	"github.com/shoal-llm/shoal/internal/jobs/journal"
	"github.com/shoal-llm/shoal/internal/server/engine"
)

// attempt is one run of a job, as in internal/jobs/run.go.
type attempt struct {
	c       *coordinator
	e       *entry
	number  uint32 // 0: not started
	ticket  *ticket
	name    string // of its request
	scores  []engine.PromptLogprob
	next    int // index of the next event to write
	pending []jobs.Logged
	writing bool
	failed  *jobs.Failure
	over    bool
}

type failed struct{ jobs.Failure }

func (f failed) Error() string { return f.Code + ": " + f.Message }

// resume continues where the log ends.
func (a *attempt) resume() {
	c, e := a.c, a.e
	if a.over { // cancelled meanwhile
		return
	}
	spec := e.k.spec
	var progress jobs.Progress
	for _, l := range e.events {
		progress.Take(l.Event)
	}
	a.next = len(e.events)
	if n := len(e.events); n > 0 && e.events[n-1].Event.Finish != "" {
		a.commit()
		return
	}
	if c.w.opt.Bug != ForgetsTokens {
		spec.Emitted = progress.Emitted
	}
	if len(spec.Emitted) > 0 {
		c.w.cover[JobResumed]++
	}
	spec.ID, spec.Accepted, spec.Deadline = fmt.Sprintf("%s/%d", e.id, a.number), true, 0
	if progress.Scored {
		spec.PromptLogprobs = -1
	}
	a.name, a.ticket = spec.ID, &ticket{k: e.k, run: a, got: len(spec.Emitted)}
	if no := c.submit(spec, a.ticket); no != nil {
		f := jobs.EngineFailure(no.Code, no.Message)
		f.Forgiven = f.Forgiven || no.Code == batcher.CodeOverloaded
		a.end(failed{f})
	}
}

// emit and finish handle the batcher's results.
func (a *attempt) emit(m batcher.Emit) {
	want := a.e.k.truth().tokens
	if m.Index != a.ticket.got || m.Index >= len(want) || want[m.Index] != m.Token {
		a.c.w.watch.fail("I3: %s: token %d is %d after %d tokens, the undisturbed run has %v", a.name, m.Index, m.Token, a.ticket.got, want)
	}
	a.ticket.got++
	a.add(engine.Event{Token: m.Token})
}

func (a *attempt) finish(f batcher.Finish) {
	switch f.Reason {
	case batcher.ReasonStop:
		a.add(engine.Event{Token: engine.NoToken, Finish: engine.FinishStop})
	case batcher.ReasonLength:
		a.add(engine.Event{Token: engine.NoToken, Finish: engine.FinishLength})
	case batcher.ReasonError:
		failure := jobs.EngineFailure(f.Code, f.Message)
		a.failed = &failure
		a.flush()
	}
}

func (a *attempt) score(prompt []batcher.PromptLogprob) {
	for _, p := range prompt {
		a.scores = append(a.scores, engine.PromptLogprob{Logprob: p.Logprob})
	}
}

func (a *attempt) add(e engine.Event) {
	e.PromptLogprobs, a.scores = a.scores, nil
	a.pending = append(a.pending, jobs.Logged{Event: e})
	a.flush()
}

// flush writes the pending events, a little later and one record at a time. Events before a failure
// are written as well.
func (a *attempt) flush() {
	if a.writing || a.over {
		return
	}
	a.writing = true
	a.c.w.after(a.c.process, time.Millisecond, func() {
		events := a.pending
		a.pending = nil
		if a.over {
			return
		}
		if len(events) == 0 {
			a.end(failed{*a.failed})
			return
		}
		n := jobs.Update{Kind: jobs.KindTokens, Attempt: a.number, At: a.c.w.wall(), First: a.next, Count: len(events)}
		a.write(n, jobs.EncodeTokens(a.next, events), func(err error) {
			a.writing = false
			a.next += len(events)
			switch {
			case err != nil:
				a.end(err)
			case events[len(events)-1].Event.Finish != "":
				a.commit()
			case len(a.pending) > 0 || a.failed != nil:
				a.flush()
			}
		})
	})
}

// write appends a record of the attempt if it is still running.
func (a *attempt) write(n jobs.Update, payload []byte, done func(error)) {
	over := func() bool { return a.over }
	a.c.append(a.e, n, payload, over, func(err error) {
		if a.usurps(err) {
			n.Attempt = a.e.state.Attempt
			a.c.append(a.e, n, payload, over, done)
			return
		}
		done(err)
	})
}

// committed is the payload of Done, as jobs writes it.
type committed struct {
	Bytes int    `json:"bytes"`
	Sum   []byte `json:"sha256"`
}

// result is the body of a job's result.
func result(events []jobs.Logged) []byte {
	var tokens []int32
	for _, l := range events {
		tokens = append(tokens, l.Event.Token)
	}
	out, _ := json.Marshal(tokens)
	return out
}

func (a *attempt) commit() {
	body := result(a.e.events)
	a.write(jobs.Update{Kind: jobs.KindPart, Attempt: a.number, At: a.c.w.wall()}, body, func(err error) {
		if err != nil {
			a.end(err)
			return
		}
		sum := sha256.Sum256(body)
		payload, _ := json.Marshal(committed{len(body), sum[:]})
		a.write(jobs.Update{Kind: jobs.KindDone, Attempt: a.number, At: a.c.w.wall()}, payload, a.end)
	})
}

// end is jobs.Service.attempt after its try.
func (a *attempt) end(err error) {
	c, e := a.c, a.e
	if a.over {
		return
	}
	a.over = true
	if a.ticket != nil && c.tickets[a.name] != nil {
		delete(c.tickets, a.name)
		c.post(func() { c.step(batcher.Cancel{ID: a.name}) })
	}
	free := func(error) { e.run = nil }
	if err != nil {
		e.pause = c.w.wall() + rules.Backoff.Milliseconds()
	}
	var f failed
	switch {
	case err == nil:
		free(nil)
		return
	case jobs.Superseded(err):
		c.w.cover[StaleWrite]++
		free(nil)
		return
	case errors.Is(err, journal.ErrDamaged):
		free(nil)
		return
	case errors.Is(err, journal.ErrFull):
		f.Failure = jobs.Failure{Code: "store_full", Forgiven: true}
	case !errors.As(err, &f):
		f.Failure = jobs.Failure{Code: "engine_error", Message: err.Error()}
	}
	n, ok := e.state.Fail(a.number, c.w.wall(), f.Failure, rules)
	if !ok {
		free(nil)
		return
	}
	if n.Kind == jobs.KindRetry {
		c.w.cover[JobRetried]++
	} else {
		c.w.cover[DeadLetter]++
	}
	until := c.w.now + 4*c.w.cfg.store
	c.append(e, n, nil, func() bool { return c.w.now > until }, free)
}

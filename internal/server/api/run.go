package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/shoal-llm/shoal/internal/text/toolcall"
	"github.com/shoal-llm/shoal/internal/tracing"
)

// run is a generation under way. Each choice has a goroutine that moves events
// from the engine into one queue, so that neither a slow client nor another
// choice ever holds up the engine; the queue is bounded by max_tokens. run owns
// the goroutines: close cancels and waits for them.
type run struct {
	*generation
	service    *Service
	choices    []*choice
	cancel     []context.CancelFunc
	open       int // choices without a finish
	queue      queue
	readers    sync.WaitGroup
	began      time.Time
	promptOnly bool   // the prompts are the answer: the engine has no work
	failure    string // what became of unfinished choices: abort, error
	tally      tally
	span       *tracing.Request
}

// arrival is an event of one choice; closed says that none follows.
type arrival struct {
	choice int
	event  Event
	closed bool
}

// queue is a list that notifies its reader; max_tokens bounds it.
type queue struct {
	mu     sync.Mutex
	items  []arrival
	notify chan struct{}
}

func (q *queue) enqueue(a arrival) {
	q.mu.Lock()
	q.items = append(q.items, a)
	q.mu.Unlock()
	select {
	case q.notify <- struct{}{}:
	default:
	}
}

// dequeue returns all that has arrived.
func (q *queue) dequeue(into []arrival) []arrival {
	q.mu.Lock()
	defer q.mu.Unlock()
	into = append(into[:0], q.items...)
	clear(q.items)
	q.items = q.items[:0]
	return into
}

// start submits every choice of every prompt. If one is refused, none stays.
func (s *Service) start(ctx context.Context, r *http.Request, g *generation) (*run, error) {
	run := &run{generation: g, service: s, queue: queue{notify: make(chan struct{}, 1)}, began: time.Now(), failure: "abort", span: scopeOf(r).span}
	for i, p := range g.prompts {
		for k := range g.n {
			index := i*g.n + k
			cctx, cancel := context.WithCancel(ctx)
			run.cancel = append(run.cancel, cancel)
			req := g.request(index)
			req.ClientID, req.IdempotencyKey = scopeOf(r).id, r.Header.Get("Idempotency-Key")
			run.span.Begins(req.ID)
			events, err := s.engine.Submit(cctx, req)
			if err != nil {
				run.span.Forget(req.ID)
				run.close()
				return nil, err
			}
			run.choices = append(run.choices, s.newChoice(g, index))
			run.open++
			run.readers.Add(1)
			go run.read(cctx, index, len(p.ids), events)
		}
	}
	return run, nil
}

func (g *generation) sequenceID(index int) string { return g.head.ID + "-" + strconv.Itoa(index) }

// request is what the engine is asked for one choice.
func (g *generation) request(index int) *Request {
	req := &Request{
		ID: g.sequenceID(index), Prompt: g.prompts[index/g.n].ids,
		MaxTokens: max(g.maxTokens, 1), Sampling: g.sampling,
		IgnoreEOS: g.ignoreEOS, StopTokens: g.stopTokens,
		PromptLogprobs: g.promptLogprobs, Policy: g.policy, Priority: g.priority,
		NoCache: g.noCache, Salt: g.salt, Tenant: g.tenant, Speculate: g.speculate,
	}
	if p := g.prompts[index/g.n]; p.context > 0 {
		req.Context, req.Policy = p.context, p.policy
	}
	req.Sampling.Seed += uint64(index % g.n)
	if g.keep > 0 {
		req.Sampling.Logprobs = max(req.Sampling.Logprobs, 0) // to rank by
	}
	return req
}

func (s *Service) newChoice(g *generation, index int) *choice {
	text := s.tok.NewStream(!g.keepSpecial)
	if g.continues {
		text = continueText(s.tok, g.prompts[index/g.n].ids, !g.keepSpecial)
	}
	var gate *stopGate
	if g.stopsInAnswer && g.thinking.on && len(g.stop) > 0 {
		gate = &stopGate{think: toolcall.NewThinker(g.thinking.inside, false)}
	}
	return &choice{
		gate: gate, parts: s.newParts(g, index), index: index, text: text, stop: stopper{stops: g.stop},
		maxTokens: max(g.maxTokens, 1), minTokens: g.sampling.MinTokens, includeStop: g.includeStop,
		logprobs: g.sampling.Logprobs >= 0, stopTokens: g.stopTokens, discard: g.discard,
	}
}

// read moves the events of one choice into the queue until the channel closes
// or the choice is cancelled, and times them.
func (r *run) read(ctx context.Context, index, promptTokens int, events <-chan Event) {
	defer r.readers.Done()
	timer := r.timer(false)
	told := tracing.Sequence{ID: r.sequenceID(index), Began: r.began, Prompt: promptTokens}
	defer r.span.Forget(told.ID)
	limit := max(r.maxTokens, 1) + 2 // tokens, one event more at each end
	for n := 0; ; n++ {
		select {
		case ev, ok := <-events:
			if !ok || n > limit {
				r.queue.enqueue(arrival{choice: index, closed: true})
				return
			}
			timer.Event(&ev)
			r.trace(&told, ev)
			r.queue.enqueue(arrival{choice: index, event: ev})
		case <-ctx.Done():
			return
		}
	}
}

// trace follows the events of one sequence, and tells its phases with the last.
func (r *run) trace(s *tracing.Sequence, ev Event) {
	if r.span == nil {
		return
	}
	s.Cached = max(s.Cached, ev.Cached)
	if ev.Token != NoToken {
		s.Output++
	}
	if x := ev.Timings; x != nil {
		s.Queue, s.Prefill, s.Decode, s.Steps, s.Finish = x.Queue, x.Prefill, x.Decode, x.Steps, ev.Finish
		r.span.Sequence(*s)
	}
}

// errIdle: nothing arrived for a while; the caller may say so and wait on.
var errIdle = errors.New("api: idle")

// wait fills into with at least one arrival, or says why not.
func (r *run) wait(ctx context.Context, into []arrival, idle time.Duration) ([]arrival, error) {
	timer := time.NewTimer(idle)
	defer timer.Stop()
	for {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if into = r.queue.dequeue(into); len(into) > 0 {
			return into, nil
		}
		select {
		case <-r.queue.notify:
		case <-ctx.Done():
		case <-timer.C:
			return nil, errIdle
		}
	}
}

// accept applies an arrival. A choice that is finished is cancelled at once, so
// that a stop string frees its sequence.
func (r *run) accept(a arrival) (d delta, show bool, err error) {
	was := r.choices[a.choice].finish
	if d, show, err = r.apply(a); err != nil {
		return d, false, err
	}
	if c := r.choices[a.choice]; was == "" && c.finish != "" {
		r.open--
		r.cancel[a.choice]()
	}
	r.count()
	return d, show, nil
}

// apply is the part of accept that depends on the events alone.
func (r *run) apply(a arrival) (d delta, show bool, err error) {
	c := r.choices[a.choice]
	if a.closed {
		if c.finish == "" {
			return d, false, errEngineClosed
		}
		return d, false, nil
	}
	if r.echo && !c.started && c.echo == nil {
		if c.echo, c.text, err = r.makeEcho(a.choice/r.n, a.event, c.text); err != nil {
			return d, false, err
		}
		c.runes = utf8.RuneCountInString(c.echo.text)
	}
	before, was := c.tokens, c.finish
	if d, show, err = c.accept(a.event); err == nil {
		r.tallied(a.event, a.choice, before, was == "" && c.finish != "")
	}
	return d, show, err
}

// makeEcho prepares the prompt as the beginning of the output, and the stream that decodes
// what follows. A prompt of ids may end inside a character: prompt and output are one byte
// string, so the stream continues with the bytes that the prompt has of it.
func (r *run) makeEcho(i int, first Event, after TextStream) (*echo, TextStream, error) {
	p, scores := r.prompts[i], first.PromptLogprobs
	switch {
	case r.promptLogprobs < 0 && p.text != "":
		return &echo{text: p.text}, after, nil
	case r.promptLogprobs < 0:
		scores = nil
	case len(p.ids) == 1 && len(scores) == 0: // the engine scores what has a token before it
		scores = make([]PromptLogprob, 1)
	case len(scores) != len(p.ids):
		return nil, after, fmt.Errorf("api: the engine sent logprobs of %d prompt tokens, not of %d", len(scores), len(p.ids))
	}
	e, text, runes := &echo{}, r.service.tok.NewStream(!r.keepSpecial), 0
	var all strings.Builder
	for k, id := range p.ids {
		if scores != nil {
			e.tokens = append(e.tokens, tokenRecord{id: id, logprob: scores[k].Logprob, top: scores[k].Top, first: k == 0, offset: runes})
		}
		t := text.Push(id)
		all.WriteString(t)
		runes += utf8.RuneCountInString(t)
	}
	e.text = all.String()
	return e, text, nil
}

func (r *run) usage() usage {
	var u usage
	for _, p := range r.prompts {
		u.PromptTokens += len(p.ids)
	}
	for i, c := range r.choices {
		u.CompletionTokens += c.tokens
		if i%r.n == 0 && c.cached > 0 {
			if u.Details == nil {
				u.Details = &promptDetails{}
			}
			u.Details.Cached += c.cached
		}
		if d := c.drafts; d.Rows > 0 {
			if u.Completion == nil {
				u.Completion = &completionDetails{}
			}
			u.Completion.Accepted += d.Accepted
			u.Completion.Rejected += d.Drafted - d.Accepted
			u.Completion.Steps += d.Rows
		}
		if len(r.choices) == 1 && !r.promptOnly {
			u.figures = r.draftMetrics(&c.drafts)
		}
		if f := r.service.cfg.CacheBytes; f != nil && !r.promptOnly {
			bytes, full := f(r.policy, len(r.prompts[i/r.n].ids), c.tokens)
			u.KVBytes, u.KVBytesFull = u.KVBytes+bytes, u.KVBytesFull+full
		}
	}
	u.TotalTokens = u.PromptTokens + u.CompletionTokens
	return u
}

// close ends what still runs and waits for the readers.
func (r *run) close() {
	for _, cancel := range r.cancel {
		cancel()
	}
	r.readers.Wait()
	r.unfinished(r.failure)
}

// collect answers with one body.
func (s *Service) collect(ctx context.Context, w http.ResponseWriter, run *run) {
	enc := run.newEncoder(run, nil)
	err := run.play(ctx, enc, nil, time.Hour)
	switch {
	case errors.Is(err, context.Canceled): // nobody is there to read
		s.log.Info("api: client left", "id", run.head.ID)
	case err != nil:
		run.failure = "error"
		s.log.Warn("api: request failed", "id", run.head.ID, "err", err)
		s.http.writeError(w, asAPIError(err), true)
	default:
		s.http.writeJSON(w, http.StatusOK, enc.body())
	}
}

// play passes the deltas of every choice to an encoder until all have ended. out is the
// encoder's stream; idle is how long it may be silent.
func (r *run) play(ctx context.Context, enc encoder, out *Stream, idle time.Duration) error {
	var batch []arrival
	for r.open > 0 {
		var err error
		batch, err = r.wait(ctx, batch, idle)
		if errors.Is(err, errIdle) {
			enc.keepAlive()
			if err := out.failure(); err != nil {
				return err
			}
			continue
		}
		if err != nil {
			return err
		}
		out.hold()
		err = r.encode(enc, out, batch)
		if out.release(); err != nil {
			return err
		}
	}
	enc.end()
	return out.failure()
}

// encode passes on what has arrived.
func (r *run) encode(enc encoder, out *Stream, batch []arrival) error {
	for _, a := range batch {
		d, show, err := r.accept(a)
		if err != nil {
			return err
		}
		if !show {
			continue
		}
		if enc.delta(d); out.failure() != nil {
			return out.failure()
		}
	}
	return nil
}

// unread tells the engine that the client does not read (yes) or reads again, for every sequence
// that has not ended.
func (r *run) unread(yes bool) {
	for i, c := range r.choices {
		if c.finish == "" || !yes {
			r.service.engine.Unread(r.sequenceID(i), yes)
		}
	}
}

package generate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/shoal-llm/shoal/internal/engine/pooling"
	"github.com/shoal-llm/shoal/internal/server/apierr"
	"github.com/shoal-llm/shoal/internal/server/engine"
	"github.com/shoal-llm/shoal/internal/server/httpserver"
	"github.com/shoal-llm/shoal/internal/tracing"
)

// Run is a request that runs. Each choice has a goroutine that moves events
// from the engine into one queue, so that neither a slow client nor another
// choice ever holds up the engine; the queue is bounded by max_tokens. Run owns
// the goroutines: close cancels and waits for them.
type Run struct {
	*Request
	Service    *Service
	Choices    []*Choice
	cancel     []context.CancelFunc
	open       int // choices without a finish
	queue      queue
	readers    sync.WaitGroup
	Began      time.Time
	PromptOnly bool   // the prompts are the answer: the engine has no work
	failure    string // finish reason of unfinished choices: abort, error
	tally      tally
	span       *tracing.Request
}

// arrival is an event of one choice. closed: it was the last.
type arrival struct {
	choice int
	event  engine.Event
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
func (s *Service) start(ctx context.Context, r *http.Request, g *Request) (*Run, error) {
	run := &Run{Request: g, Service: s, queue: queue{notify: make(chan struct{}, 1)}, Began: time.Now(),
		failure: "abort", span: httpserver.ScopeOf(r).Span}
	places := make(chan struct{}, maxTogether)
	for i, p := range g.Prompts {
		for k := range g.N {
			if g.Pool != pooling.None {
				select {
				case places <- struct{}{}:
				case <-ctx.Done():
					run.close()
					return nil, context.Cause(ctx)
				}
			}
			index := i*g.N + k
			cctx, cancel := context.WithCancel(ctx)
			run.cancel = append(run.cancel, cancel)
			req := g.request(index)
			req.ClientID, req.IdempotencyKey = httpserver.ScopeOf(r).Id, r.Header.Get("Idempotency-Key")
			run.span.Begins(req.ID)
			events, err := s.submit(cctx, req, index > 0)
			if err != nil {
				run.span.Discard(req.ID)
				run.close()
				return nil, err
			}
			run.Choices = append(run.Choices, s.newChoice(g, index))
			run.open++
			run.readers.Add(1)
			go func() {
				run.read(cctx, index, len(p.Ids), events)
				if g.Pool != pooling.None {
					<-places
				}
			}()
		}
	}
	return run, nil
}

// maxTogether is the maximum number of texts of one request for vectors that the engine has at once,
// so that a long list leaves places in the queue to others.
const maxTogether = 256

// fullQueuePause is the time before a text is submitted again that found the queue full.
const fullQueuePause = 50 * time.Millisecond

// submit hands a sequence to the engine. A text for a vector whose request has begun waits for a
// place in the queue.
func (s *Service) submit(ctx context.Context, r *engine.Request, begun bool) (<-chan engine.Event, error) {
	for {
		events, err := s.engine.Submit(ctx, r)
		var full apierr.ErrOverloaded
		if err == nil || r.Pool == pooling.None || !begun || !errors.As(err, &full) {
			return events, err
		}
		select {
		case <-time.After(fullQueuePause):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

func (g *Request) sequenceID(index int) string { return g.Head.ID + "-" + strconv.Itoa(index) }

// request returns the engine's request for one choice.
func (g *Request) request(index int) *engine.Request {
	req := &engine.Request{
		ID: g.sequenceID(index), Prompt: g.Prompts[index/g.N].Ids,
		MaxTokens: max(g.MaxTokens, 1), Open: g.open, Sampling: g.Sampling,
		IgnoreEOS: g.ignoreEOS, StopTokens: g.stopTokens,
		PromptLogprobs: g.PromptLogprobs, Policy: g.policy, Priority: g.priority,
		NoCache: g.noCache, Salt: g.salt, Tenant: g.tenant, Speculate: g.speculate, Adapter: g.adapter,
	}
	if req.Pool = g.Pool; g.Pool != pooling.None {
		req.MaxTokens = 0
	}
	if g.turn != nil {
		g.turn.apply(req)
	}
	if p := g.Prompts[index/g.N]; p.context > 0 {
		req.Context, req.Policy = p.context, p.policy
	}
	req.Sampling.Seed += uint64(index % g.N)
	if g.Keep > 0 {
		req.Sampling.Logprobs = max(req.Sampling.Logprobs, 0) // to rank by
	}
	return req
}

func (s *Service) newChoice(g *Request, index int) *Choice {
	text := s.Tokenizer.NewStream(!g.KeepSpecial)
	if g.Continues {
		text = continueText(s.Tokenizer, g.Prompts[index/g.N].Ids, !g.KeepSpecial)
	}
	return &Choice{
		spans: s.answerSpans(g), parts: s.newParts(g, index), index: index, text: text, stop: stopper{stops: g.stop},
		maxTokens: max(g.MaxTokens, 1), minTokens: g.Sampling.MinTokens, includeStop: g.includeStop,
		logprobs: g.Sampling.Logprobs >= 0, stopTokens: g.stopTokens, discard: g.Discard,
	}
}

// read moves the events of one choice into the queue until the channel closes
// or the choice is cancelled, and times them.
func (r *Run) read(ctx context.Context, index, promptTokens int, events <-chan engine.Event) {
	defer r.readers.Done()
	timer := r.timer(false)
	sequence := tracing.Sequence{ID: r.sequenceID(index), Began: r.Began, Prompt: promptTokens}
	defer r.span.Discard(sequence.ID)
	limit := max(r.MaxTokens, 1) + 2 // tokens, one event more at each end
	for n := 0; ; n++ {
		select {
		case ev, ok := <-events:
			if !ok || n > limit {
				r.queue.enqueue(arrival{choice: index, closed: true})
				return
			}
			timer.Event(&ev)
			r.trace(&sequence, ev)
			r.queue.enqueue(arrival{choice: index, event: ev})
		case <-ctx.Done():
			return
		}
	}
}

// trace follows the events of one sequence, and reports its phases with the last.
func (r *Run) trace(s *tracing.Sequence, ev engine.Event) {
	if r.span == nil {
		return
	}
	if ev.Token != engine.NoToken {
		s.Output++
		s.Cached = ev.Cached
	}
	if x := ev.Timings; x != nil {
		s.Queue, s.Prefill, s.Decode, s.Steps, s.Finish = x.Queue, x.Prefill, x.Decode, x.Steps, ev.Finish
		r.span.Sequence(*s)
	}
}

// errIdle means that nothing arrived for a while; the caller may send a keep-alive and wait on.
var errIdle = errors.New("generate: idle")

// wait fills into with at least one arrival, or returns an error.
func (r *Run) wait(ctx context.Context, into []arrival, idle time.Duration) ([]arrival, error) {
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
func (r *Run) accept(a arrival) (d Delta, show bool, err error) {
	was := r.Choices[a.choice].Finish
	if d, show, err = r.apply(a); err != nil {
		return d, false, err
	}
	if c := r.Choices[a.choice]; was == "" && c.Finish != "" {
		r.open--
		r.cancel[a.choice]()
	}
	r.Count()
	return d, show, nil
}

// apply does the part of accept that depends on the events alone.
func (r *Run) apply(a arrival) (d Delta, show bool, err error) {
	c := r.Choices[a.choice]
	if a.closed {
		if c.Finish == "" {
			return d, false, errEngineClosed
		}
		return d, false, nil
	}
	if r.Echo && !c.started && c.echo == nil {
		if c.echo, c.text, err = r.makeEcho(a.choice/r.N, a.event, c.text); err != nil {
			return d, false, err
		}
		c.runes = utf8.RuneCountInString(c.echo.text)
	}
	before, was := c.tokens, c.Finish
	if d, show, err = c.accept(a.event); err == nil {
		r.CountEvent(a.event, a.choice, before, was == "" && c.Finish != "")
	}
	return d, show, err
}

// makeEcho prepares the prompt as the beginning of the output, and the stream that decodes the tokens
// after it. A prompt of ids may end inside a character. The stream then continues with the bytes of
// this character in the prompt.
func (r *Run) makeEcho(i int, first engine.Event, after engine.TextStream) (*echo, engine.TextStream, error) {
	p, scores := r.Prompts[i], first.PromptLogprobs
	switch {
	case r.PromptLogprobs < 0 && p.Text != "":
		return &echo{text: p.Text}, after, nil
	case r.PromptLogprobs < 0:
		scores = nil
	case len(p.Ids) == 1 && len(scores) == 0: // the engine scores tokens with a token before them
		scores = make([]engine.PromptLogprob, 1)
	case len(scores) != len(p.Ids):
		return nil, after, fmt.Errorf("generate: the engine sent logprobs of %d prompt tokens, but the prompt has %d", len(scores), len(p.Ids))
	}
	e, text, runes := &echo{}, r.Service.Tokenizer.NewStream(!r.KeepSpecial), 0
	var all strings.Builder
	for k, id := range p.Ids {
		if scores != nil {
			e.tokens = append(e.tokens, TokenRecord{Id: id, Logprob: scores[k].Logprob, Top: scores[k].Top, First: k == 0, Offset: runes})
		}
		t := text.Push(id)
		all.WriteString(t)
		runes += utf8.RuneCountInString(t)
	}
	e.text = all.String()
	return e, text, nil
}

func (r *Run) Usage() Usage {
	var u Usage
	for _, p := range r.Prompts {
		u.PromptTokens += len(p.Ids)
	}
	for i, c := range r.Choices {
		u.CompletionTokens += c.tokens
		if i%r.N == 0 && c.cached > 0 {
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
		if len(r.Choices) == 1 && !r.PromptOnly {
			u.Figures = r.draftMetrics(&c.drafts)
		}
		if f := r.Service.Config.CacheBytes; f != nil && !r.PromptOnly && r.Pool == pooling.None {
			p := &r.Prompts[i/r.N]
			read := cmp.Or(p.context, r.turn.read(len(p.Ids)))
			bytes, full := f(cmp.Or(p.policy, r.policy), read, len(p.Ids)-read+c.tokens)
			u.KVBytes, u.KVBytesFull = u.KVBytes+bytes, u.KVBytesFull+full
		}
	}
	u.TotalTokens = u.PromptTokens + u.CompletionTokens
	return u
}

// close cancels the running sequences and waits for the readers.
func (r *Run) close() {
	for _, cancel := range r.cancel {
		cancel()
	}
	r.readers.Wait()
	r.unfinished(r.failure)
}

// collect answers with one body.
func (s *Service) collect(ctx context.Context, w http.ResponseWriter, run *Run) {
	enc := run.NewEncoder(run, nil)
	err := run.play(ctx, enc, nil, time.Hour)
	switch {
	case errors.Is(err, context.Canceled): // no client reads
		s.Log.Info("generate: client left", "id", run.Head.ID)
	case err != nil:
		run.failure = "error"
		s.Log.Warn("generate: request failed", "id", run.Head.ID, "error", err)
		s.HTTP.Fail(w, apierr.Of(err), true)
	default:
		s.HTTP.WriteJSON(w, http.StatusOK, enc.Body())
	}
}

// play passes the deltas of every choice to an encoder until all have ended. out is the
// encoder's stream; idle is how long it may be silent.
func (r *Run) play(ctx context.Context, enc Encoder, out *httpserver.Stream, idle time.Duration) error {
	defer r.turn.end()
	var batch []arrival
	for r.open > 0 {
		var err error
		batch, err = r.wait(ctx, batch, idle)
		if errors.Is(err, errIdle) {
			enc.KeepAlive()
			if err := out.Failure(); err != nil {
				return err
			}
			continue
		}
		if err != nil {
			return err
		}
		out.Hold()
		err = r.encode(enc, out, batch)
		if out.Release(); err != nil {
			return err
		}
	}
	enc.End()
	return out.Failure()
}

// encode passes a batch of events to the encoder.
func (r *Run) encode(enc Encoder, out *httpserver.Stream, batch []arrival) error {
	for _, a := range batch {
		d, show, err := r.accept(a)
		if err == nil && !a.closed {
			err = r.turn.take(a.event, d, r.Choices[a.choice].Finish)
		}
		if err != nil {
			return err
		}
		if !show {
			continue
		}
		if enc.Delta(d); out.Failure() != nil {
			return out.Failure()
		}
	}
	return nil
}

// unread reports to the engine that the client does not read (yes) or reads again, for every sequence
// that has not ended.
func (r *Run) unread(yes bool) {
	for i, c := range r.Choices {
		if c.Finish == "" || !yes {
			r.Service.engine.Unread(r.sequenceID(i), yes)
		}
	}
}

// continueText returns a stream for the tokens that follow ids. It has decoded the last
// of ids, so that a decoder which strips a leading space keeps it. If ids end inside a
// character, the stream is new: the output never has bytes of the prompt.
func continueText(t engine.Tokenizer, ids []int32, skipSpecial bool) engine.TextStream {
	tail := ids[max(0, len(ids)-16):]
	s, n := t.NewStream(skipSpecial), 0
	for _, id := range tail {
		n += len(s.Push(id))
	}
	if n != len(t.Decode(tail, skipSpecial)) {
		return t.NewStream(skipSpecial)
	}
	return s
}

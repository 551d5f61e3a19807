package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/shoal-llm/shoal/internal/strictjson"
)

// Task is a completion request that runs apart from the connection it came by.
// It depends on the body, the options and the model only: the same body gives
// the same Task in a later process.
type Task struct {
	server *Server
	gen    *generation
}

// TaskOptions fix what a request leaves to the server.
type TaskOptions struct {
	ID      string // of the response, without a prefix
	Created int64  // Unix seconds
	Seed    uint64 // when the body has none
	// Drawn: Seed also replaces a seed of -1. Older builds took -1 as a seed, and a
	// task that they accepted keeps it.
	Drawn bool
}

// Endpoints that a Task can be of.
const (
	EndpointCompletions = "/v1/completions"
	EndpointChat        = "/v1/chat/completions"
	EndpointResponses   = "/v1/responses"
)

// NewTask decodes a body of an endpoint, as the endpoint itself would; the
// error is what its client would get. "stream" has no effect.
func (s *Server) NewTask(ctx context.Context, endpoint string, body []byte, o TaskOptions) (*Task, error) {
	if int64(len(body)) > s.cfg.Limits.BodyBytes {
		return nil, &apiError{status: http.StatusRequestEntityTooLarge, typ: typeInvalid, code: "request_too_large", message: "The request body is larger than this server accepts."}
	}
	if e := s.cfg.Limits.checkShape(body, false); e != nil {
		return nil, e
	}
	var decode func(context.Context, []byte) (*generation, *apiError)
	prefix, object := "cmpl-", "text_completion"
	switch endpoint {
	case EndpointCompletions:
		decode = s.decodeCompletions
	case EndpointChat:
		prefix, object = "chatcmpl-", "chat.completion"
		decode = s.decodeChat
	case EndpointResponses:
		prefix, object = "resp_", "response"
		decode = s.decodeResponses
	default:
		return nil, invalid("endpoint", "'endpoint' is %.60q; known are %s, %s and %s.", endpoint, EndpointCompletions, EndpointChat, EndpointResponses)
	}
	g, e := decode(ctx, body)
	if e != nil {
		return nil, e
	}
	if g.discard && g.promptLogprobs < 0 {
		return nil, invalid("max_tokens", "'max_tokens' 0 without 'logprobs' leaves nothing to compute; send it to %s.", endpoint)
	}
	if g.context != "" {
		return nil, invalid("context", "A job has no 'context': it must give the same answer when the context is gone.")
	}
	g.sampling.Seed = o.seed(body)
	g.stream, g.includeUsage, g.eachUsage = false, false, false
	g.head.ID, g.head.Object, g.head.Created = prefix+strings.TrimPrefix(o.ID, prefix), object, o.Created
	if q := g.response; q != nil {
		q.background, q.echo.Background, q.echo.Store = true, true, true // a task is kept by whoever runs it
		q.echo.ID, q.echo.CreatedAt = g.head.ID, g.head.Created
	}
	return &Task{s, g}, nil
}

// seed is that of a body.
func (o *TaskOptions) seed(body []byte) uint64 {
	f, _ := parseFields(body) // it was decoded before
	x, given := strictjson.Int(f.get("seed"))
	if !given || x == randomSeed && o.Drawn {
		return o.Seed
	}
	return uint64(x)
}

// Choices is the number of sequences of the task.
func (t *Task) Choices() int { return len(t.gen.prompts) * t.gen.n }

// MaxTokens bounds the events with a token of one choice.
func (t *Task) MaxTokens() int { return max(t.gen.maxTokens, 1) }

// Ignored names the parts of the body that have no effect.
func (t *Task) Ignored() []string { return t.gen.ignored }

// Request is what the engine is asked for a choice. The caller owns it, but for
// Prompt, which is shared.
func (t *Task) Request(choice int) *Request {
	r := t.gen.request(choice)
	if len(*t.server.keys.Load()) > 0 {
		r.Tenant = "task " + t.gen.head.ID // whose key it came by is not written down: it shares with nobody
	}
	return r
}

// TaskDelta is what one event of the engine adds to a choice: text may lag
// behind the tokens (unfinished characters, the beginning of a stop string).
type TaskDelta struct {
	Text   string
	Finish string // "", stop, length
	// Emitted: the event's token is part of the answer. Those behind a stop string, and the one
	// that max_tokens 0 generates, are not.
	Emitted bool
}

// Replay turns the events of all choices into text. It is a pure function of
// the events it has accepted, so every replay of a log yields the same. It
// belongs to one goroutine.
type Replay struct {
	run    *run
	enc    encoder
	events resumable // enc, where a client reads the events of a response
	out    *Stream
}

// Replay starts from nothing.
func (t *Task) Replay() *Replay {
	r := &Replay{run: &run{generation: t.gen, server: t.server}}
	for i := range t.Choices() {
		r.run.choices = append(r.run.choices, t.server.newChoice(t.gen, i))
	}
	r.enc = t.gen.newEncoder(r.run, nil)
	return r
}

// Stream writes the events of a response to out, those after a number. Call it before the
// first Accept.
func (r *Replay) Stream(out *EventStream, after int) error {
	if r.run.resume == nil {
		return errors.New("api: the events of this endpoint have no numbers; only those of responses have")
	}
	r.out = out.out.Stream
	r.events = r.run.resume(r.run, r.out, after)
	r.enc = r.events
	return r.out.failure()
}

// End writes the last event of a response, after Stream: how it is kept.
func (r *Replay) End(k KeptResponse) error {
	if r.events == nil {
		return errors.New("api: End without Stream")
	}
	r.events.endAs(k)
	return r.out.failure()
}

// Accept applies an event of a choice. An error means that the choice failed.
func (r *Replay) Accept(choice int, e Event) (TaskDelta, error) {
	if choice < 0 || choice >= len(r.run.choices) {
		return TaskDelta{}, fmt.Errorf("api: an event of choice %d, there are %d", choice, len(r.run.choices))
	}
	c := r.run.choices[choice]
	before := c.tokens
	d, show, err := r.run.apply(arrival{choice: choice, event: e})
	if err != nil {
		return TaskDelta{}, err
	}
	if show {
		if r.enc.delta(d); r.out.failure() != nil {
			return TaskDelta{}, r.out.failure()
		}
	}
	return TaskDelta{Text: d.text, Finish: c.finish, Emitted: c.tokens > before}, nil
}

// Begin starts an attempt: the events accepted before it come from a log, those after it from
// the engine.
func (r *Replay) Begin() {
	r.run.began = time.Now()
	r.run.forget()
}

// Timer times what the engine sends for a choice in this attempt.
func (r *Replay) Timer(choice int) *SequenceTimer { return r.run.timer(r.Tokens(choice) > 0) }

// Count adds to the metrics what was accepted since Begin and the last Count. An event that is
// never counted is computed again by the next attempt.
func (r *Replay) Count() { r.run.count() }

// Abandon counts the choices that will never have an end. The reason is "error" or "abort".
func (r *Replay) Abandon(reason string) { r.run.unfinished(reason) }

// Done tells whether a choice has finished; what follows of it has no effect.
func (r *Replay) Done(choice int) bool { return r.run.choices[choice].finish != "" }

// Tokens is how many tokens a choice has.
func (r *Replay) Tokens(choice int) int { return r.run.choices[choice].tokens }

// Result is the body of the response, once every choice is done.
func (r *Replay) Result() (json.RawMessage, error) {
	for i := range r.run.choices {
		if !r.Done(i) {
			return nil, fmt.Errorf("api: choice %d of a task is not done", i)
		}
	}
	r.enc.end()
	b, err := marshal(r.enc.body())
	if err != nil {
		return nil, err
	}
	return json.RawMessage(strings.TrimSuffix(string(b), "\n")), nil
}

// Text is that of tokens that a model wrote: without control tokens and without the bytes of an
// unfinished character at the end.
func (s *Server) Text(ids []int32) string {
	stream, text := s.tok.NewStream(true), strings.Builder{}
	for _, id := range ids {
		text.WriteString(stream.Push(id))
	}
	return text.String()
}

// Fingerprint names what decides the bits besides a request (Config.SystemFingerprint).
func (s *Server) Fingerprint() string { return s.cfg.SystemFingerprint }

// Limits are those in force, for routes of other packages.
func (s *Server) Limits() Limits { return s.cfg.Limits }

// KeepAlive is how long a stream may be silent.
func (s *Server) KeepAlive() time.Duration { return s.cfg.KeepAlive }

// ReadJSON reads a JSON body under the server's limits.
func (s *Server) ReadJSON(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	body, e := s.readBody(w, r)
	if e != nil {
		return nil, e
	}
	return body, nil
}

// WriteError answers with err as every route does.
func (s *Server) WriteError(w http.ResponseWriter, err error) {
	s.writeError(w, asAPIError(err), false)
}

// WriteJSON answers with v.
func (s *Server) WriteJSON(w http.ResponseWriter, status int, v any) { s.writeJSON(w, status, v) }

// ErrorStatus is the status and the body a client would get for err.
func ErrorStatus(err error) (status int, body json.RawMessage) {
	e := asAPIError(err)
	b, err := json.Marshal(e)
	if err != nil {
		return http.StatusInternalServerError, json.RawMessage(`{}`)
	}
	return e.status, b
}

// EventStream writes server-sent events, each under the server's write deadline.
type EventStream struct{ out sse }

// NewEventStream begins with the first event or comment.
func (s *Server) NewEventStream(w http.ResponseWriter) *EventStream {
	return &EventStream{newSSE(NewStream(w, s.cfg.Limits.WriteTimeout))}
}

// Data sends v as one event with an id, which a browser's EventSource sends back
// as Last-Event-ID; an empty id sends none.
func (e *EventStream) Data(id string, v any) error {
	e.out.event(id, v)
	return e.out.failure()
}

// Comment keeps proxies quiet.
func (e *EventStream) Comment(text string) error {
	e.out.comment(text)
	return e.out.failure()
}

// Done ends the stream.
func (e *EventStream) Done() error {
	e.out.done()
	return e.out.failure()
}

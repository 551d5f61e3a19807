package generate

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/shoal-llm/shoal/internal/server/engine"
	"github.com/shoal-llm/shoal/internal/server/httpserver"
	"github.com/shoal-llm/shoal/internal/server/jsonbody"
	"github.com/shoal-llm/shoal/internal/strictjson"
)

// Task is a completion request that runs apart from the connection it came by.
// It depends on the body, the options and the model only: the same body gives
// the same Task in a later process.
type Task struct {
	service *Service
	gen     *Request
}

// TaskOptions fix the options that a request does not set.
type TaskOptions struct {
	ID      string // of the response, without a prefix
	Created int64  // Unix seconds
	Seed    uint64 // when the body has none
	// Drawn: Seed also replaces a seed of -1. Older builds took -1 as a seed, and a
	// task that they accepted keeps it.
	Drawn bool
	// Fingerprint identifies the model that accepted the task; "" for a new task.
	Fingerprint string
	// Renamed: if no model has the name in the body, the model of the fingerprint has another name now.
	Renamed bool
	Replay  bool // no sequence will run: what the prompt refers to may be gone
}

// StoredResponse is a response in a store.
type StoredResponse struct {
	ID      string
	Created int64           // Unix seconds
	Holder  string          // the name of the key that it belongs to, or ""
	Body    json.RawMessage // the request
	Status  string          // queued, in_progress, completed, failed or cancelled
	Result  json.RawMessage // the response, when it is completed or incomplete
	Code    string          // of a failure
	Message string
}

// TaskOf makes a task of a decoded body.
func (s *Service) TaskOf(g *Request, body []byte, o TaskOptions) *Task {
	g.Sampling.Seed = o.seed(body)
	g.Stream, g.IncludeUsage, g.EachUsage = false, false, false
	return &Task{s, g}
}

// Charge takes the tokens that the task may use from the key of the request that brings it.
func (t *Task) Charge(r *http.Request) error {
	key, now := httpserver.ScopeOf(r).Principal(), time.Now()
	if e := key.CheckTokens(now); e != nil {
		return e
	}
	tokens := t.Choices() * t.MaxTokens()
	for _, p := range t.gen.Prompts {
		tokens += len(p.Ids)
	}
	key.Charge(tokens, now)
	return nil
}

// seed returns the seed in a body.
func (o *TaskOptions) seed(body []byte) uint64 {
	f, _ := jsonbody.Parse(body, nil) // it was decoded before
	x, given := strictjson.Int(f.Get("seed"))
	if !given || x == randomSeed && o.Drawn {
		return o.Seed
	}
	return uint64(x)
}

// Choices returns the number of sequences of the task.
func (t *Task) Choices() int { return len(t.gen.Prompts) * t.gen.N }

// MaxTokens bounds the events with a token of one choice.
func (t *Task) MaxTokens() int { return max(t.gen.MaxTokens, 1) }

// Ignored names the parts of the body that have no effect.
func (t *Task) Ignored() []string { return t.gen.Ignored }

// Request returns the engine's request for a choice. The caller owns it, except
// Prompt, which is shared.
func (t *Task) Request(choice int) *engine.Request {
	r := t.gen.request(choice)
	r.Model = t.service.Config.Models[0]
	if t.service.HTTP.HasKeys() {
		r.Tenant = "task " + t.gen.Head.ID // its key is not recorded, so it shares with no other request
	}
	return r
}

// TaskDelta is the addition of one event of the engine to a choice: text may lag
// after the tokens (unfinished characters, the beginning of a stop string).
type TaskDelta struct {
	Text   string
	Finish string // "", stop, length
	// Emitted: the event's token is part of the answer. Those after a stop string, and the one
	// that max_tokens 0 generates, are not.
	Emitted bool
}

// Replay turns the events of all choices into text. It is a pure function of
// the events it has accepted, so every replay of a log yields the same. It
// belongs to one goroutine.
type Replay struct {
	run    *Run
	enc    Encoder
	events Resumable // enc, where a client reads the events of a response
	out    *httpserver.Stream
}

// Replay starts from nothing.
func (t *Task) Replay() *Replay {
	r := &Replay{run: &Run{Request: t.gen, Service: t.service}}
	for i := range t.Choices() {
		r.run.Choices = append(r.run.Choices, t.service.newChoice(t.gen, i))
	}
	r.enc = t.gen.NewEncoder(r.run, nil)
	return r
}

// Stream writes the events of a response to out, those after a number. Call it before the
// first Accept.
func (r *Replay) Stream(out *httpserver.EventStream, after int) error {
	if r.run.Resume == nil {
		return errors.New("generate: the events of this endpoint have no numbers; only those of responses have")
	}
	r.out = out.Out.Stream
	r.events = r.run.Resume(r.run, r.out, after)
	r.enc = r.events
	return r.out.Failure()
}

// End writes the last event of a response, after Stream: how it is kept.
func (r *Replay) End(k StoredResponse) error {
	if r.events == nil {
		return errors.New("generate: Replay.End was called before Replay.Stream")
	}
	r.events.EndAs(k)
	return r.out.Failure()
}

// Accept applies an event of a choice. An error means that the choice failed.
func (r *Replay) Accept(choice int, e engine.Event) (TaskDelta, error) {
	if choice < 0 || choice >= len(r.run.Choices) {
		return TaskDelta{}, fmt.Errorf("generate: an event names choice %d, but the task has %d choices", choice, len(r.run.Choices))
	}
	c := r.run.Choices[choice]
	before := c.tokens
	d, show, err := r.run.apply(arrival{choice: choice, event: e})
	if err != nil {
		return TaskDelta{}, err
	}
	if show {
		if r.enc.Delta(d); r.out.Failure() != nil {
			return TaskDelta{}, r.out.Failure()
		}
	}
	return TaskDelta{Text: d.Text, Finish: c.Finish, Emitted: c.tokens > before}, nil
}

// Begin starts an attempt: the events accepted before it come from a log, those after it from
// the engine.
func (r *Replay) Begin() {
	r.run.Began = time.Now()
	r.run.resetTally()
}

// Timer returns the timer of the events of a choice in this attempt.
func (r *Replay) Timer(choice int) *SequenceTimer { return r.run.timer(r.Tokens(choice) > 0) }

// Count adds to the metrics the events that were accepted since Begin and the last Count. An event that is
// never counted is computed again by the next attempt.
func (r *Replay) Count() { r.run.Count() }

// Abandon counts the choices that will never have an end. The reason is "error" or "abort".
func (r *Replay) Abandon(reason string) { r.run.unfinished(reason) }

// Done reports whether a choice has finished. Later events of a finished choice have no effect.
func (r *Replay) Done(choice int) bool { return r.run.Choices[choice].Finish != "" }

// Tokens returns how many tokens a choice has.
func (r *Replay) Tokens(choice int) int { return r.run.Choices[choice].tokens }

// Result returns the body of the response, once every choice is done.
func (r *Replay) Result() (json.RawMessage, error) {
	for i := range r.run.Choices {
		if !r.Done(i) {
			return nil, fmt.Errorf("generate: Result was called before choice %d of the task was complete", i)
		}
	}
	r.enc.End()
	b, err := jsonbody.Marshal(r.enc.Body())
	if err != nil {
		return nil, err
	}
	return json.RawMessage(strings.TrimSuffix(string(b), "\n")), nil
}

// Text decodes the tokens that a model wrote, without control tokens and without the bytes of an
// unfinished character at the end.
func (s *Service) Text(ids []int32) string {
	stream, text := s.Tokenizer.NewStream(true), strings.Builder{}
	for _, id := range ids {
		text.WriteString(stream.Push(id))
	}
	return text.String()
}

package servertest

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/shoal-llm/shoal/client/wire"
	"github.com/shoal-llm/shoal/internal/engine/pooling"
	"github.com/shoal-llm/shoal/internal/engine/sampler"
	"github.com/shoal-llm/shoal/internal/server/engine"
	"github.com/shoal-llm/shoal/internal/testutil"
)

// Tokenizer has the 256 bytes, some specials and some words.
type Tokenizer struct{}

var fakeWords = []string{"<bos>", "<eos>", "<|user|>", "<|assistant|>", "<|end|>", "Hello", " world",
	"!", " one", " two", " three", "STOP", "日本"}

const (
	TokBOS       = 256
	TokEOS       = 257
	TokUser      = 258
	TokAssistant = 259
	TokEnd       = 260
	TokHello     = 261
	TokWorld     = 262
	TokOne       = 264
	TokTwo       = 265
	TokThree     = 266
)

func (Tokenizer) Encode(_ context.Context, segments []engine.Segment, special bool) ([]int32, error) {
	var ids []int32
	if special {
		ids = append(ids, TokBOS)
	}
	for _, seg := range segments {
		if strings.Contains(seg.Text, "unencodable") {
			return nil, errors.New("tokenizer: gave up")
		}
		ids = append(ids, FakeEncode(seg)...)
	}
	return ids, nil
}

func FakeEncode(seg engine.Segment) (ids []int32) {
	text := seg.Text
next:
	for text != "" {
		for i, w := range fakeWords {
			if !seg.Literal && strings.HasPrefix(text, w) {
				ids, text = append(ids, int32(256+i)), text[len(w):]
				continue next
			}
		}
		ids, text = append(ids, int32(text[0])), text[1:]
	}
	return ids
}

func (Tokenizer) TokenBytes(id int32) []byte {
	if id < 256 {
		return []byte{byte(id)}
	}
	return []byte(fakeWords[id-256])
}
func (t Tokenizer) Token(id int32) string { return string(t.TokenBytes(id)) }
func (Tokenizer) VocabSize() int          { return 256 + len(fakeWords) }
func (Tokenizer) IsSpecial(id int32) bool { return id >= 256 && id <= TokEnd }
func (t Tokenizer) Decode(ids []int32, skip bool) string {
	s := t.NewStream(skip)
	var b strings.Builder
	for _, id := range ids {
		b.WriteString(s.Push(id))
	}
	return b.String() + s.Flush()
}
func (t Tokenizer) NewStream(skip bool) engine.TextStream { return &fakeStream{skip: skip} }

type fakeStream struct {
	skip bool
	held []byte
}

func (s *fakeStream) Push(id int32) string {
	if s.skip && (Tokenizer{}).IsSpecial(id) {
		return ""
	}
	return s.Show(id)
}

func (s *fakeStream) Show(id int32) string {
	s.held = append(s.held, Tokenizer{}.TokenBytes(id)...)
	n := len(s.held)
	for k := 1; k <= 3 && k <= n; k++ {
		if b := s.held[n-k]; utf8.RuneStart(b) {
			if b >= 0x80 && !utf8.FullRune(s.held[n-k:]) {
				n -= k
			}
			break
		}
	}
	out := strings.ToValidUTF8(string(s.held[:n]), "\uFFFD")
	s.held = append([]byte(nil), s.held[n:]...)
	return out
}

func (s *fakeStream) Flush() string {
	if len(s.held) == 0 {
		return ""
	}
	s.held = nil
	return "\uFFFD"
}

// Template is the chat template of fry: <bos> then role tokens, literal content, <|end|>.
type Template struct{}

func (Template) Render(c engine.Conversation) ([]engine.Segment, error) {
	out := []engine.Segment{{Text: "<bos>"}}
	for i, m := range c.Messages {
		if m.Role == "system" && i > 0 {
			return nil, errors.New("the system message must come first")
		}
		role := "<|user|>"
		if m.Role == "assistant" {
			role = "<|assistant|>"
		}
		out = append(out, engine.Segment{Text: role}, engine.Segment{Text: m.Content, Literal: true}, engine.Segment{Text: "<|end|>"})
	}
	if c.AddGenerationPrompt {
		out = append(out, engine.Segment{Text: "<|assistant|>"})
	}
	return out, nil
}

// Engine plays a script and obeys the contract of Engine.
type Engine struct {
	Script    func(r *engine.Request) []engine.Event // played until its end; then length
	Delay     time.Duration                          // between events
	Gate      chan struct{}                          // when set, the first event waits for it
	Hold      func(*engine.Request) bool             // its last event never comes: it only ends when cancelled
	Refuse    func(r *engine.Request) error
	HealthErr error
	ReadyErr  error
	State     wire.ClusterState
	Kept      engine.ContextState         // of all contexts; "": it does not know them
	Room      func(r *engine.Request) int // nil: all prompts fit

	Mu        sync.Mutex
	Requests  []*engine.Request
	UnreadNow map[string]bool
	Cancelled []string
	Live      sync.WaitGroup
}

func (e *Engine) Submit(ctx context.Context, r *engine.Request) (<-chan engine.Event, error) {
	if e.Refuse != nil {
		if err := e.Refuse(r); err != nil {
			return nil, err
		}
	}
	e.Mu.Lock()
	e.Requests = append(e.Requests, r)
	e.Mu.Unlock()
	ch := make(chan engine.Event)
	e.Live.Add(1)
	go func() {
		defer e.Live.Done()
		defer close(ch)
		if !e.play(ctx, r, ch) {
			e.Mu.Lock()
			e.Cancelled = append(e.Cancelled, r.ID)
			e.Mu.Unlock()
		}
	}()
	return ch, nil
}

func (e *Engine) play(ctx context.Context, r *engine.Request, ch chan<- engine.Event) bool {
	if e.Gate != nil {
		select {
		case <-e.Gate:
		case <-ctx.Done():
			return false
		}
	}
	tokens, cached := 0, 0
	for i, ev := range e.events(r) {
		if i == 0 && r.PromptLogprobs >= 0 {
			ev.PromptLogprobs = fakePromptLogprobs(r)
		}
		if e.Delay > 0 {
			select {
			case <-time.After(e.Delay):
			case <-ctx.Done():
				return false
			}
		}
		if ev.Token != engine.NoToken {
			cached = max(cached, ev.Cached)
			ev.Cached = cached // every token has the number
			tokens++
			if r.Sampling.Logprobs >= 0 && ev.Logprob == 0 {
				ev.Logprob, ev.Top = fakeLogprobs(ev.Token, r.Sampling.Logprobs)
			}
			if tokens == r.MaxTokens && ev.Finish == "" && !r.Hold {
				ev.Finish = engine.FinishLength
			}
		}
		if ev.Finish != "" && e.Hold != nil && e.Hold(r) {
			<-ctx.Done()
			return false
		}
		if ev.Finish != "" {
			ev.Timings = &engine.Timings{Queue: time.Millisecond, Prefill: 2 * time.Millisecond, Decode: 3 * time.Millisecond}
		}
		select {
		case ch <- ev:
		case <-ctx.Done():
			return false
		}
		if ev.Finish != "" {
			return true
		}
	}
	return true
}

// events are endless " one" unless there is a script.
func (e *Engine) events(r *engine.Request) func(func(int, engine.Event) bool) {
	if r.Pool != pooling.None { // a vector of the prompt's first token, its last and its length
		n := len(r.Prompt)
		return slices.All([]engine.Event{{Token: engine.NoToken, Finish: engine.FinishStop,
			Pooled: []float32{float32(r.Prompt[0]), float32(r.Prompt[n-1]), float32(n), 1}}})
	}
	if e.Script != nil {
		return slices.All(e.Script(r))
	}
	return func(yield func(int, engine.Event) bool) {
		for i := 0; yield(i, engine.Event{Token: TokOne}); i++ {
		}
	}
}

// fakeLogprobs: the token has -0.5 when even, else -1.5 with a better one before it.
func fakeLogprobs(id int32, k int) (float32, []sampler.TokenLogprob) {
	lp := float32(-0.5)
	top := []sampler.TokenLogprob{{Token: id, Logprob: -0.5}, {Token: 'x', Logprob: -2}, {Token: 'y', Logprob: -3},
		{Token: 'z', Logprob: -4}, {Token: 'w', Logprob: -5}}
	if id%2 == 1 {
		lp = -1.5
		top[0] = sampler.TokenLogprob{Token: 'q', Logprob: -0.25}
		top = slices.Insert(top, 1, sampler.TokenLogprob{Token: id, Logprob: -1.5})
	}
	return lp, top[:min(k, len(top))]
}

func fakePromptLogprobs(r *engine.Request) []engine.PromptLogprob {
	out := make([]engine.PromptLogprob, len(r.Prompt))
	for i, id := range r.Prompt {
		out[i].Logprob, out[i].Top = fakeLogprobs(id, r.PromptLogprobs)
	}
	return out
}

// PromptRoom implements engine.Sizer.
func (e *Engine) PromptRoom(r *engine.Request) int {
	if e.Room == nil {
		return len(r.Prompt)
	}
	return e.Room(r)
}

// Contexts implements engine.Contexts.
func (e *Engine) Contexts() map[string]engine.ContextState {
	e.Mu.Lock()
	defer e.Mu.Unlock()
	states := map[string]engine.ContextState{}
	for _, r := range e.Requests {
		if r.Hold && e.Kept != "" {
			states[r.ID] = e.Kept
		}
	}
	return states
}

func (e *Engine) Unread(id string, yes bool) {
	e.Mu.Lock()
	defer e.Mu.Unlock()
	if e.UnreadNow == nil {
		e.UnreadNow = map[string]bool{}
	}
	e.UnreadNow[id] = yes
}

func (e *Engine) Cluster() wire.ClusterState { return e.State }
func (e *Engine) Ready() error               { return e.ReadyErr }
func (e *Engine) Health() error              { return e.HealthErr }

func (e *Engine) Last(t *testing.T) *engine.Request {
	t.Helper()
	e.Mu.Lock()
	defer e.Mu.Unlock()
	if len(e.Requests) == 0 {
		t.Fatal("the engine got no request")
	}
	return e.Requests[len(e.Requests)-1]
}

// WaitCancelled fails unless n sequences are cancelled.
func (e *Engine) WaitCancelled(t *testing.T, n int) {
	t.Helper()
	Eventually(t, "the engine gets the cancellation", func() bool {
		e.Mu.Lock()
		defer e.Mu.Unlock()
		return len(e.Cancelled) >= n
	})
}

// Always holds every request.
func Always(*engine.Request) bool { return true }

// Timeout is the longest wait for an expected event, also on a busy machine.
const Timeout = 2 * time.Minute

// Eventually waits until ok returns true, and fails the test after Timeout.
func Eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	testutil.Eventually(t, Timeout, what, func() (bool, string) { return ok(), "not yet" })
}

// Tokens makes a script of tokens that ends with finish on the last one.
func Tokens(finish string, ids ...int32) func(*engine.Request) []engine.Event {
	return func(*engine.Request) []engine.Event {
		out := make([]engine.Event, len(ids))
		for i, id := range ids {
			out[i].Token = id
		}
		out[len(out)-1].Finish = finish
		return out
	}
}

var Hello = Tokens(engine.FinishStop, TokHello, TokWorld, '!', TokEOS)

// Adapters, Adapter, LoadAdapter and UnloadAdapter implement engine.Adapters: every request succeeds, and
// no adapter is served.
func (e *Engine) Adapters() []engine.Adapter { return nil }

func (e *Engine) Adapter(string) (engine.Adapter, bool) { return engine.Adapter{}, false }

func (e *Engine) LoadAdapter(string, string) error { return nil }

func (e *Engine) UnloadAdapter(string) error { return nil }

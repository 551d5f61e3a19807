package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/shoal-llm/shoal/internal/engine/sampler"
)

// fakeTok has the 256 bytes, some specials and some words.
type fakeTok struct{}

var fakeWords = []string{"<bos>", "<eos>", "<|user|>", "<|assistant|>", "<|end|>", "Hello", " world", "!", " one", " two", " three", "STOP", "日本"}

const (
	tokBOS       = 256
	tokEOS       = 257
	tokUser      = 258
	tokAssistant = 259
	tokEnd       = 260
	tokHello     = 261
	tokWorld     = 262
	tokOne       = 264
	tokTwo       = 265
	tokThree     = 266
)

func (fakeTok) Encode(_ context.Context, segments []Segment, special bool) ([]int32, error) {
	var ids []int32
	if special {
		ids = append(ids, tokBOS)
	}
	for _, seg := range segments {
		if strings.Contains(seg.Text, "unencodable") {
			return nil, errors.New("tokenizer: gave up")
		}
		ids = append(ids, fakeEncode(seg)...)
	}
	return ids, nil
}

func fakeEncode(seg Segment) (ids []int32) {
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

func (fakeTok) TokenBytes(id int32) []byte {
	if id < 256 {
		return []byte{byte(id)}
	}
	return []byte(fakeWords[id-256])
}
func (t fakeTok) Token(id int32) string { return string(t.TokenBytes(id)) }
func (fakeTok) VocabSize() int          { return 256 + len(fakeWords) }
func (fakeTok) IsSpecial(id int32) bool { return id >= 256 && id <= tokEnd }
func (t fakeTok) Decode(ids []int32, skip bool) string {
	s := t.NewStream(skip)
	var b strings.Builder
	for _, id := range ids {
		b.WriteString(s.Push(id))
	}
	return b.String() + s.Flush()
}
func (t fakeTok) NewStream(skip bool) TextStream { return &fakeStream{skip: skip} }

type fakeStream struct {
	skip bool
	held []byte
}

func (s *fakeStream) Push(id int32) string {
	if s.skip && (fakeTok{}).IsSpecial(id) {
		return ""
	}
	s.held = append(s.held, fakeTok{}.TokenBytes(id)...)
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

// fakeTemplate is fry's: <bos> then role tokens, literal content, <|end|>.
type fakeTemplate struct{}

func (fakeTemplate) Render(c Conversation) ([]Segment, error) {
	out := []Segment{{Text: "<bos>"}}
	for i, m := range c.Messages {
		if m.Role == "system" && i > 0 {
			return nil, errors.New("the system message must come first")
		}
		role := "<|user|>"
		if m.Role == "assistant" {
			role = "<|assistant|>"
		}
		out = append(out, Segment{Text: role}, Segment{Text: m.Content, Literal: true}, Segment{Text: "<|end|>"})
	}
	if c.AddGenerationPrompt {
		out = append(out, Segment{Text: "<|assistant|>"})
	}
	return out, nil
}

// fakeEngine plays a script and obeys the contract of Engine.
type fakeEngine struct {
	script func(r *Request) []Event // played until its end; then length
	delay  time.Duration            // between events
	gate   chan struct{}            // when set, the first event waits for it
	hold   func(*Request) bool      // its last event never comes: it only ends when cancelled
	submit func(r *Request) error
	health error
	ready  error
	state  ClusterState

	mu        sync.Mutex
	requests  []*Request
	unread    map[string]bool
	cancelled []string
	live      sync.WaitGroup
}

func (e *fakeEngine) Submit(ctx context.Context, r *Request) (<-chan Event, error) {
	if e.submit != nil {
		if err := e.submit(r); err != nil {
			return nil, err
		}
	}
	e.mu.Lock()
	e.requests = append(e.requests, r)
	e.mu.Unlock()
	ch := make(chan Event)
	e.live.Add(1)
	go func() {
		defer e.live.Done()
		defer close(ch)
		if !e.play(ctx, r, ch) {
			e.mu.Lock()
			e.cancelled = append(e.cancelled, r.ID)
			e.mu.Unlock()
		}
	}()
	return ch, nil
}

func (e *fakeEngine) play(ctx context.Context, r *Request, ch chan<- Event) bool {
	if e.gate != nil {
		select {
		case <-e.gate:
		case <-ctx.Done():
			return false
		}
	}
	tokens := 0
	for i, ev := range e.events(r) {
		if i == 0 && r.PromptLogprobs >= 0 {
			ev.PromptLogprobs = fakePromptLogprobs(r)
		}
		if e.delay > 0 {
			select {
			case <-time.After(e.delay):
			case <-ctx.Done():
				return false
			}
		}
		if ev.Token != NoToken {
			tokens++
			if r.Sampling.Logprobs >= 0 && ev.Logprob == 0 {
				ev.Logprob, ev.Top = fakeLogprobs(ev.Token, r.Sampling.Logprobs)
			}
			if tokens == r.MaxTokens && ev.Finish == "" && !r.Hold {
				ev.Finish = FinishLength
			}
		}
		if ev.Finish != "" && e.hold != nil && e.hold(r) {
			<-ctx.Done()
			return false
		}
		if ev.Finish != "" {
			ev.Timings = &Timings{Queue: time.Millisecond, Prefill: 2 * time.Millisecond, Decode: 3 * time.Millisecond}
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
func (e *fakeEngine) events(r *Request) func(func(int, Event) bool) {
	if e.script != nil {
		return slices.All(e.script(r))
	}
	return func(yield func(int, Event) bool) {
		for i := 0; yield(i, Event{Token: tokOne}); i++ {
		}
	}
}

// fakeLogprobs: the token has -0.5 when even, else -1.5 with a better one before it.
func fakeLogprobs(id int32, k int) (float32, []sampler.TokenLogprob) {
	lp := float32(-0.5)
	top := []sampler.TokenLogprob{{Token: id, Logprob: -0.5}, {Token: 'x', Logprob: -2}, {Token: 'y', Logprob: -3}, {Token: 'z', Logprob: -4}, {Token: 'w', Logprob: -5}}
	if id%2 == 1 {
		lp = -1.5
		top[0] = sampler.TokenLogprob{Token: 'q', Logprob: -0.25}
		top = slices.Insert(top, 1, sampler.TokenLogprob{Token: id, Logprob: -1.5})
	}
	return lp, top[:min(k, len(top))]
}

func fakePromptLogprobs(r *Request) []PromptLogprob {
	out := make([]PromptLogprob, len(r.Prompt))
	for i, id := range r.Prompt {
		out[i].Logprob, out[i].Top = fakeLogprobs(id, r.PromptLogprobs)
	}
	return out
}

func (e *fakeEngine) Unread(id string, yes bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.unread == nil {
		e.unread = map[string]bool{}
	}
	e.unread[id] = yes
}

func (e *fakeEngine) Cluster() ClusterState { return e.state }
func (e *fakeEngine) Ready() error          { return e.ready }
func (e *fakeEngine) Health() error         { return e.health }

func (e *fakeEngine) last(t *testing.T) *Request {
	t.Helper()
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.requests) == 0 {
		t.Fatal("the engine saw no request")
	}
	return e.requests[len(e.requests)-1]
}

// waitCancelled fails unless n sequences are cancelled.
func (e *fakeEngine) waitCancelled(t *testing.T, n int) {
	t.Helper()
	eventually(t, "the engine sees the cancellation", func() bool {
		e.mu.Lock()
		defer e.mu.Unlock()
		return len(e.cancelled) >= n
	})
}

// always holds every request.
func always(*Request) bool { return true }

// patience bounds every wait for what must come, on a machine however busy.
const patience = 2 * time.Minute

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatalf("not within %v: %s", patience, what)
}

// tokens makes a script of tokens that ends with finish on the last one.
func tokens(finish string, ids ...int32) func(*Request) []Event {
	return func(*Request) []Event {
		out := make([]Event, len(ids))
		for i, id := range ids {
			out[i].Token = id
		}
		out[len(out)-1].Finish = finish
		return out
	}
}

var hello = tokens(FinishStop, tokHello, tokWorld, '!', tokEOS)

func testConfig() Config {
	return Config{Models: []string{"fake/model", "alias"}, ModelRoot: "weights/fake", MaxModelLen: 512, EOSTokens: []int32{tokEOS},
		KeepAlive: 5 * time.Second, Version: "1.2.3", Logger: slog.New(slog.NewTextHandler(io.Discard, nil))}
}

func newServer(t testing.TB, e *fakeEngine, change ...func(*Config)) *Server {
	t.Helper()
	cfg := testConfig()
	for _, f := range change {
		f(&cfg)
	}
	s, err := New(cfg, e, fakeTok{}, fakeTemplate{})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// serve runs a server until the test ends.
func serve(t testing.TB, e *fakeEngine, change ...func(*Config)) string {
	t.Helper()
	t.Cleanup(e.live.Wait)
	return serveIt(t, newServer(t, e, change...))
}

func serveIt(t testing.TB, s *Server) string {
	t.Helper()
	h := httptest.NewServer(described(t, s.Handler()))
	t.Cleanup(h.Close)
	return h.URL
}

// M is a JSON object.
type M = map[string]any

type answer struct {
	status int
	header http.Header
	raw    string
	body   M
}

func post(t testing.TB, url string, body any) answer {
	t.Helper()
	raw, ok := body.(string)
	if !ok {
		b, err := json.Marshal(body)
		if err != nil {
			t.Fatal(err)
		}
		raw = string(b)
	}
	resp, err := http.Post(url, "application/json", strings.NewReader(raw))
	return read(t, resp, err)
}

func get(t testing.TB, url string) answer {
	t.Helper()
	resp, err := http.Get(url)
	return read(t, resp, err)
}

func read(t testing.TB, resp *http.Response, err error) answer {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	a := answer{status: resp.StatusCode, header: resp.Header, raw: string(b)}
	if strings.HasPrefix(resp.Header.Get("Content-Type"), "application/json") && len(b) > 0 {
		dec := json.NewDecoder(bytes.NewReader(b))
		if err := dec.Decode(&a.body); err != nil {
			t.Fatalf("%v in %s", err, b)
		}
	}
	return a
}

// at walks a decoded JSON value: names and indices.
func at(t testing.TB, v any, path ...any) any {
	t.Helper()
	for _, p := range path {
		switch p := p.(type) {
		case string:
			m, ok := v.(M)
			if !ok {
				t.Fatalf("no object for %q in %v", p, v)
			}
			if v, ok = m[p]; !ok {
				t.Fatalf("no member %q in %v", p, m)
			}
		case int:
			l, ok := v.([]any)
			if !ok || p >= len(l) {
				t.Fatalf("no element %d in %v", p, v)
			}
			v = l[p]
		}
	}
	return v
}

func chat(more M) M {
	m := M{"model": "fake/model", "messages": []M{{"role": "user", "content": "Hi"}}}
	for k, v := range more {
		m[k] = v
	}
	return m
}

func completion(more M) M {
	m := M{"model": "fake/model", "prompt": "Hi"}
	for k, v := range more {
		m[k] = v
	}
	return m
}

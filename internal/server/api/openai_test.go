package api

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"

	"github.com/shoal-llm/shoal/internal/server/apierr"
	"github.com/shoal-llm/shoal/internal/server/engine"
	"github.com/shoal-llm/shoal/internal/server/httpserver"
	"github.com/shoal-llm/shoal/internal/server/servertest"
)

func client(url string, opts ...option.RequestOption) openai.Client {
	return openai.NewClient(append([]option.RequestOption{option.WithBaseURL(url + "/v1"), option.WithAPIKey("key")}, opts...)...)
}

func hi(more ...func(*openai.ChatCompletionNewParams)) openai.ChatCompletionNewParams {
	p := openai.ChatCompletionNewParams{Model: "fake/model", Messages: []openai.ChatCompletionMessageParamUnion{
		openai.SystemMessage("Be brief."), openai.UserMessage("Hi"),
	}}
	for _, f := range more {
		f(&p)
	}
	return p
}

func TestClientChat(t *testing.T) {
	c := client(serve(t, &servertest.Engine{Script: servertest.Hello}, func(c *Config) { c.Keys = httpserver.OperatorKeys("key") }))
	got, err := c.Chat.Completions.New(context.Background(), hi(func(p *openai.ChatCompletionNewParams) {
		p.Logprobs, p.TopLogprobs, p.Seed, p.MaxCompletionTokens = openai.Bool(true), openai.Int(2), openai.Int(3), openai.Int(50)
	}))
	if err != nil {
		t.Fatal(err)
	}
	if m := got.Choices[0].Message; m.Content != "Hello world!" || m.Role != "assistant" || got.Choices[0].FinishReason != "stop" {
		t.Errorf("%+v", got)
	}
	if lp := got.Choices[0].Logprobs.Content; len(lp) != 4 || string(bytesOf(lp[0].Bytes)) != "Hello" || len(lp[0].TopLogprobs) != 2 {
		t.Errorf("%+v", lp)
	}
	if got.Usage.CompletionTokens != 4 || got.Usage.TotalTokens != got.Usage.PromptTokens+4 {
		t.Errorf("%+v", got.Usage)
	}
}

func bytesOf(x []int64) (b []byte) {
	for _, c := range x {
		b = append(b, byte(c))
	}
	return b
}

func TestClientChatStream(t *testing.T) {
	// keep-alive comments between the chunks do not confuse it
	c := client(serve(t, &servertest.Engine{Script: servertest.Hello, Delay: 20 * time.Millisecond},
		func(c *Config) { c.KeepAlive = 4 * time.Millisecond }))
	s := c.Chat.Completions.NewStreaming(context.Background(), hi(func(p *openai.ChatCompletionNewParams) {
		p.StreamOptions.IncludeUsage = openai.Bool(true)
	}))
	var acc openai.ChatCompletionAccumulator
	for s.Next() {
		if !acc.AddChunk(s.Current()) {
			t.Fatal("the accumulator refuses a chunk")
		}
	}
	if s.Err() != nil {
		t.Fatal(s.Err())
	}
	if m := acc.Choices[0].Message; m.Content != "Hello world!" || m.Role != "assistant" ||
		acc.Choices[0].FinishReason != "stop" || acc.Usage.CompletionTokens != 4 {
		t.Errorf("%+v", acc)
	}
}

func TestClientLateFailure(t *testing.T) {
	script := func(*engine.Request) []engine.Event {
		return []engine.Event{
			{Token: servertest.TokOne},
			{Token: engine.NoToken, Finish: engine.FinishError, Err: errors.New("cluster: node 3 died")},
		}
	}
	c := client(serve(t, &servertest.Engine{Script: script}))
	s := c.Chat.Completions.NewStreaming(context.Background(), hi())
	for s.Next() {
	}
	if s.Err() == nil || !strings.Contains(s.Err().Error(), "node 3 died") {
		t.Errorf("the client got %v", s.Err())
	}
}

func TestClientCompletions(t *testing.T) {
	c := client(serve(t, &servertest.Engine{Script: servertest.Hello}))
	params := openai.CompletionNewParams{Model: "fake/model", Logprobs: openai.Int(1), Echo: openai.Bool(true),
		Prompt: openai.CompletionNewParamsPromptUnion{OfArrayOfTokens: []int64{'H', 'i', ' '}}}
	got, err := c.Completions.New(context.Background(), params)
	if err != nil {
		t.Fatal(err)
	}
	if got.Choices[0].Text != "Hi Hello world!" || len(got.Choices[0].Logprobs.Tokens) != 7 {
		t.Errorf("%+v", got)
	}
	s := c.Completions.NewStreaming(context.Background(), params)
	text := ""
	for s.Next() {
		text += s.Current().Choices[0].Text
	}
	if s.Err() != nil || text != "Hi Hello world!" {
		t.Errorf("%q %v", text, s.Err())
	}
}

func TestClientModels(t *testing.T) {
	c := client(serve(t, &servertest.Engine{}))
	list, err := c.Models.List(context.Background())
	if err != nil || len(list.Data) != 2 || list.Data[0].ID != "fake/model" {
		t.Fatalf("%v %v", list, err)
	}
	m, err := c.Models.Get(context.Background(), "fake/model")
	if err != nil || m.ID != "fake/model" {
		t.Errorf("%v %v", m, err)
	}
}

func TestClientErrors(t *testing.T) {
	url := serve(t, &servertest.Engine{Script: servertest.Hello}, func(c *Config) { c.Keys = httpserver.OperatorKeys("key") })
	fails := func(c openai.Client, p openai.ChatCompletionNewParams, status int, code, param string) {
		t.Helper()
		_, err := c.Chat.Completions.New(context.Background(), p)
		var e *openai.Error
		if !errors.As(err, &e) || e.StatusCode != status || e.Code != code || e.Param != param || e.Message == "" {
			t.Errorf("%v", err)
		}
	}
	c := client(url)
	fails(c, hi(func(p *openai.ChatCompletionNewParams) { p.Model = "gpt-9" }), 404, "model_not_found", "model")
	fails(c, hi(func(p *openai.ChatCompletionNewParams) {
		p.Messages = []openai.ChatCompletionMessageParamUnion{openai.UserMessage(strings.Repeat("a", 600))}
	}), 400, "context_length_exceeded", "messages")
	fails(c, hi(func(p *openai.ChatCompletionNewParams) { p.Temperature = openai.Float(3) }), 400, "", "temperature")
	fails(client(url, option.WithAPIKey("wrong")), hi(), 401, "invalid_api_key", "")
}

// The client retries a full queue after the time in Retry-After, and does not retry accepted requests.
func TestClientRetries(t *testing.T) {
	var n atomic.Int32
	e := &servertest.Engine{Script: servertest.Hello, Refuse: func(*engine.Request) error {
		if n.Add(1) < 3 {
			return apierr.ErrOverloaded{RetryAfter: time.Millisecond}
		}
		return nil
	}}
	c := client(serve(t, e))
	got, err := c.Chat.Completions.New(context.Background(), hi())
	if err != nil || got.Choices[0].Message.Content != "Hello world!" || n.Load() != 3 {
		t.Errorf("%v after %d requests", err, n.Load())
	}
	n.Store(0)
	failing := &servertest.Engine{Refuse: func(*engine.Request) error { n.Add(1); return nil },
		Script: func(*engine.Request) []engine.Event {
			return []engine.Event{{Token: engine.NoToken, Finish: engine.FinishError, Err: errors.New("x")}}
		}}
	c = client(serve(t, failing))
	if _, err := c.Chat.Completions.New(context.Background(), hi()); err == nil || n.Load() != 1 {
		t.Errorf("%v after %d requests", err, n.Load())
	}
}

func TestClientCancels(t *testing.T) {
	e := &servertest.Engine{Delay: time.Millisecond, Hold: servertest.Always}
	c := client(serve(t, e), option.WithHTTPClient(http.DefaultClient))
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	s := c.Chat.Completions.NewStreaming(ctx, hi())
	for i := 0; i < 3 && s.Next(); i++ {
	}
	cancel()
	s.Close()
	e.WaitCancelled(t, 1)
}

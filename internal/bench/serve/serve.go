// Package serve loads a server of the OpenAI API and measures the service of its users: time to first token,
// time per token, throughput and goodput. It measures any such server. Package workload draws the requests,
// package stats computes the result; both are pure.
package serve

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/shoal-llm/shoal/client"
	"github.com/shoal-llm/shoal/internal/bench/serve/stats"
	"github.com/shoal-llm/shoal/internal/bench/serve/workload"
)

// API is a kind of request.
type API string

// The kinds of requests.
const (
	Chat        API = "chat"        // /v1/chat/completions
	Completions API = "completions" // /v1/completions
)

// Options describe a measurement.
type Options struct {
	Client      *client.Client
	API         API
	Model       string // "": the first that the server lists
	Load        workload.Spec
	Warmup      int // requests before the load, which do not count
	Concurrency int // requests in flight at most; 0: unlimited
	Tokens      workload.Tokens
	EndOfText   bool           // answers may end early; otherwise requests set ignore_eos
	Extra       map[string]any // further members of each request
	Temperature float64
	Timeout     time.Duration // of one request
	Limits      stats.Limits
}

// Result is the measurements of one run.
type Result struct {
	Server      string        `json:"server"`
	Model       string        `json:"model"`
	API         API           `json:"api"`
	Rate        float64       `json:"rate"` // requests per second that arrive; 0: closed loop
	Concurrency int           `json:"concurrency,omitempty"`
	Seed        uint64        `json:"seed"`
	PerWord     float64       `json:"tokens_per_word"`
	Summary     stats.Summary `json:"summary"`
}

// Prepare checks options, chooses the model and counts the tokens of the server's words.
func (o *Options) Prepare(ctx context.Context) error {
	if err := o.Load.Validate(); err != nil {
		return err
	}
	if o.API != Chat && o.API != Completions {
		return fmt.Errorf("API %q: want chat or completions", o.API)
	}
	if o.Load.Arrivals.Rate == 0 && o.Concurrency == 0 {
		return errors.New("want a rate, a concurrency or both: without them all requests would be sent at once")
	}
	if o.Model == "" {
		if err := o.findModel(ctx); err != nil {
			return err
		}
	}
	if o.Tokens.PerWord != 0 {
		return nil
	}
	words, tokens := [2]int{32, 160}, [2]int{}
	for i, n := range words {
		s := o.request(ctx, workload.Words(n, uint64(i)), 1)
		if s.Err != "" {
			return fmt.Errorf("a first request failed: %s", s.Err)
		}
		tokens[i] = s.Input
	}
	var err error
	o.Tokens, err = workload.FitTokens(words, tokens)
	return err
}

func (o *Options) findModel(ctx context.Context) error {
	resp, err := o.Client.Do(ctx, http.MethodGet, "/v1/models", nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	var list struct {
		Data []struct {
			ID string `json:"id"`
		} `json:"data"`
	}
	if err := json.NewDecoder(http.MaxBytesReader(nil, resp.Body, 1<<20)).Decode(&list); err != nil || len(list.Data) == 0 {
		return errors.New("the server lists no model in /v1/models: name one")
	}
	o.Model = list.Data[0].ID
	return nil
}

// Run measures a load. Call Prepare first. Run calls progress with the number of requests that have
// ended.
func Run(ctx context.Context, o Options, progress func(ended int)) (*Result, error) {
	for i := range o.Warmup {
		if s := o.request(ctx, workload.Words(32, 1<<20+uint64(i)), 8); s.Err != "" {
			return nil, fmt.Errorf("a request before the load failed: %s", s.Err)
		}
	}
	samples := o.send(ctx, o.Load.Draw(), progress)
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	r := &Result{Server: o.Client.URL(), Model: o.Model, API: o.API, Rate: o.Load.Arrivals.Rate, Concurrency: o.Concurrency,
		Seed: o.Load.Seed, PerWord: o.Tokens.PerWord,
		Summary: stats.Summarize(samples, o.Limits)}
	if r.Summary.Completed == 0 {
		return nil, fmt.Errorf("all %d requests failed: %s", len(samples), r.Summary.Failures[0].Reason)
	}
	return r, nil
}

// send sends all requests, each at its time or as soon as the concurrency permits, and waits for
// them.
func (o *Options) send(ctx context.Context, requests []workload.Request, progress func(int)) []stats.Sample {
	samples := make([]stats.Sample, len(requests))
	var room chan struct{}
	if o.Concurrency > 0 {
		room = make(chan struct{}, o.Concurrency)
	}
	var running sync.WaitGroup
	var mu sync.Mutex
	ended := 0
	began := time.Now()
	for i, r := range requests {
		select {
		case <-ctx.Done():
		case <-time.After(time.Until(began.Add(r.At))):
		}
		if room != nil {
			select {
			case <-ctx.Done():
			case room <- struct{}{}:
			}
		}
		if ctx.Err() != nil {
			break
		}
		running.Go(func() {
			sent := time.Since(began)
			s := o.request(ctx, o.Tokens.Text(r), r.Output)
			s.Sent, s.Late = sent, sent-r.At
			samples[i] = s
			if room != nil {
				<-room
			}
			mu.Lock()
			defer mu.Unlock()
			ended++
			progress(ended)
		})
	}
	running.Wait()
	if o.Load.Arrivals.Rate == 0 { // a closed loop has no times of arrival
		for i := range samples {
			samples[i].Late = 0
		}
	}
	return samples
}

// chunk holds the fields that are read of a piece of a stream, of chats and of completions.
type chunk struct {
	Choices []struct {
		Text  string `json:"text"`
		Delta struct {
			Content          string          `json:"content"`
			Reasoning        string          `json:"reasoning"`
			ReasoningContent string          `json:"reasoning_content"`
			Calls            json.RawMessage `json:"tool_calls"`
		} `json:"delta"`
	} `json:"choices"`
	Usage *struct {
		Prompt     int `json:"prompt_tokens"`
		Completion int `json:"completion_tokens"`
		Details    *struct {
			Cached int `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
	} `json:"usage"`
	Error *struct {
		Message string `json:"message"`
	} `json:"error"`
}

func (c *chunk) text() bool {
	for i := range c.Choices {
		x := &c.Choices[i]
		// longer than null
		if x.Text != "" || x.Delta.Content != "" || x.Delta.Reasoning != "" || x.Delta.ReasoningContent != "" || len(x.Delta.Calls) > 4 {
			return true
		}
	}
	return false
}

// body is one request.
func (o *Options) body(prompt string, output int) (path string, body map[string]any) {
	body = map[string]any{"model": o.Model, "stream": true, "stream_options": map[string]any{"include_usage": true},
		"max_tokens": output, "temperature": o.Temperature}
	if !o.EndOfText {
		body["ignore_eos"] = true
	}
	for k, v := range o.Extra {
		body[k] = v
	}
	if o.API == Chat {
		body["messages"] = []map[string]string{{"role": "user", "content": prompt}}
		return "/v1/chat/completions", body
	}
	body["prompt"] = prompt
	return "/v1/completions", body
}

// errEnd ends the reading of a stream.
var errEnd = errors.New("end of stream")

// request sends one request and times its answer.
func (o *Options) request(ctx context.Context, prompt string, output int) (s stats.Sample) {
	ctx, cancel := context.WithTimeoutCause(ctx, o.Timeout, fmt.Errorf("no whole answer in %v", o.Timeout))
	defer cancel()
	path, body := o.body(prompt, output)
	began := time.Now()
	fail := func(err error) stats.Sample {
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		s.Total, s.Err = time.Since(began), reason(err)
		return s
	}
	resp, err := o.Client.Do(ctx, http.MethodPost, path, body)
	if err != nil {
		return fail(err)
	}
	defer resp.Body.Close()
	var last time.Duration
	pieces := 0
	err = client.Data(resp.Body, func(data []byte) error {
		now := time.Since(began)
		if string(data) == "[DONE]" {
			return errEnd
		}
		var c chunk
		if err := json.Unmarshal(data, &c); err != nil {
			return fmt.Errorf("the server sent a piece that is not JSON: %w", err)
		}
		if c.Error != nil {
			return errors.New(c.Error.Message)
		}
		if u := c.Usage; u != nil {
			s.Input, s.Output = u.Prompt, u.Completion
			if u.Details != nil {
				s.Cached = u.Details.Cached
			}
		}
		if c.text() {
			if pieces++; pieces == 1 {
				s.First = now
			} else {
				s.Gaps = append(s.Gaps, now-last)
			}
			last = now
		}
		return nil
	})
	switch {
	case err == nil:
		return fail(errors.New("the stream ended without [DONE]"))
	case !errors.Is(err, errEnd):
		return fail(err)
	case pieces == 0:
		return fail(errors.New("an answer without text"))
	}
	s.Total = last
	if s.Output == 0 {
		s.Output = pieces // a server without usage: one token a piece
	}
	return s
}

// reason shortens an error, so that equal failures of several requests are counted together. It leaves out the
// addresses of a connection: each request has another port.
func reason(err error) string {
	var refused *client.Error
	var unreachable *client.Unreachable
	var network *net.OpError
	switch {
	case errors.As(err, &refused):
		err = refused
	case errors.As(err, &unreachable): // it leaves them out as well
	case errors.As(err, &network):
		err = network.Err
	}
	const most = 200
	text := strings.Join(strings.Fields(err.Error()), " ")
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + "..."
	}
	return text
}

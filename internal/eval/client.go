package eval

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// ErrServer: the server did not answer like an OpenAI-compatible one.
var ErrServer = errors.New("eval: server")

const (
	maxAnswer = 256 << 20 // bytes of one response; echoed logprobs are the largest
	attempts  = 8         // per request, while the server is full or starting
)

// Client sends requests to one model of an OpenAI-compatible server. It is safe for concurrent use.
type Client struct {
	base, key   string
	http        *http.Client
	timeout     time.Duration
	model       string
	fingerprint string
}

// NewClient connects to server (host:port, or a URL with or without /v1) and selects its first
// model if model is "". It then completes a single token, so that a wrong address or key is
// detected immediately. timeout is the deadline of each request.
func NewClient(ctx context.Context, server, key, model string, timeout time.Duration) (*Client, error) {
	if !strings.Contains(server, "://") {
		server = "http://" + server
	}
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.MaxIdleConnsPerHost = 64
	c := &Client{base: strings.TrimSuffix(strings.TrimSuffix(server, "/"), "/v1"), key: key, model: model,
		timeout: timeout, http: &http.Client{Transport: t}}
	if c.model == "" {
		var list struct {
			Data []struct {
				ID string `json:"id"`
			} `json:"data"`
		}
		if err := c.call(ctx, http.MethodGet, "/v1/models", nil, &list); err != nil {
			return nil, err
		}
		if len(list.Data) == 0 {
			return nil, fmt.Errorf("%w: %s serves no model", ErrServer, c.base)
		}
		c.model = list.Data[0].ID
	}
	probe, err := c.complete(ctx, map[string]any{"prompt": "a", "max_tokens": 1, "temperature": 0})
	if err != nil {
		return nil, err
	}
	c.fingerprint = probe.Fingerprint
	return c, nil
}

// Model returns the model's name and the server's system fingerprint, which may be empty.
func (c *Client) Model() (name, fingerprint string) { return c.model, c.fingerprint }

func (c *Client) Close() { c.http.CloseIdleConnections() }

type Completion struct {
	Text   string
	Finish string
}

// Drawing is the sampling of a completion.
type Drawing struct {
	MaxTokens   int
	Policy      string  // sent as "kv_policy", unless it is "" or "default", which leave the choice to the server
	Temperature float64 // 0: greedy
	Seed        uint64  // with a temperature
}

// Complete continues prompt greedily under a policy.
func (c *Client) Complete(ctx context.Context, prompt []int32, maxTokens int, policy string) (Completion, error) {
	return c.Draw(ctx, prompt, Drawing{MaxTokens: maxTokens, Policy: policy})
}

// Draw continues prompt.
func (c *Client) Draw(ctx context.Context, prompt []int32, d Drawing) (Completion, error) {
	body := map[string]any{"prompt": prompt, "max_tokens": d.MaxTokens, "temperature": d.Temperature}
	if d.Temperature > 0 {
		body["seed"] = d.Seed
	}
	if d.Policy != "" && d.Policy != DefaultPolicy {
		body["kv_policy"] = d.Policy
	}
	a, err := c.complete(ctx, body)
	if err != nil {
		return Completion{}, err
	}
	return Completion{Text: a.Choices[0].Text, Finish: a.Choices[0].Finish}, nil
}

// DefaultPolicy selects the server's own policy.
const DefaultPolicy = "default"

// Logprobs returns the natural log probabilities of the prompt's tokens, each given the previous
// ones. It omits the first token, which has none.
func (c *Client) Logprobs(ctx context.Context, prompt []int32) ([]float64, error) {
	// OpenAI allows max_tokens 0. A server that requires 1 sends an additional token, which is
	// dropped.
	a, err := c.complete(ctx, map[string]any{"prompt": prompt, "max_tokens": 0, "temperature": 0, "echo": true, "logprobs": 0})
	if err != nil {
		return nil, err
	}
	lp := a.Choices[0].Logprobs
	if lp == nil || len(lp.TokenLogprobs) < len(prompt) {
		return nil, fmt.Errorf("%w: %s does not send the prompt's logprobs (echo with logprobs)", ErrServer, c.base)
	}
	out := make([]float64, 0, len(prompt)-1)
	for i, x := range lp.TokenLogprobs[1:len(prompt)] {
		if x == nil {
			return nil, fmt.Errorf("%w: no logprob for token %d of the prompt", ErrServer, i+1)
		}
		out = append(out, *x)
	}
	return out, nil
}

// SameTokens asks the server to tokenize text, and reports whether the ids equal want. known is
// false if the server has no such endpoint.
func (c *Client) SameTokens(ctx context.Context, text string, want []int32) (same, known bool) {
	var out struct {
		Tokens []int32 `json:"tokens"`
	}
	err := c.call(ctx, http.MethodPost, "/tokenize", map[string]any{"model": c.model, "prompt": text, "add_special_tokens": false}, &out)
	if err != nil || len(out.Tokens) == 0 {
		return false, false
	}
	if len(out.Tokens) != len(want) {
		return false, true
	}
	for i, id := range want {
		if out.Tokens[i] != id {
			return false, true
		}
	}
	return true, true
}

type answer struct {
	Fingerprint string `json:"system_fingerprint"`
	Choices     []struct {
		Text     string `json:"text"`
		Finish   string `json:"finish_reason"`
		Logprobs *struct {
			TokenLogprobs []*float64 `json:"token_logprobs"`
		} `json:"logprobs"`
	} `json:"choices"`
}

func (c *Client) complete(ctx context.Context, body map[string]any) (*answer, error) {
	body["model"] = c.model
	a := new(answer)
	if err := c.call(ctx, http.MethodPost, "/v1/completions", body, a); err != nil {
		return nil, err
	}
	if len(a.Choices) == 0 {
		return nil, fmt.Errorf("%w: an answer without choices", ErrServer)
	}
	return a, nil
}

// call sends one request and retries while the server is full or starting.
func (c *Client) call(ctx context.Context, method, path string, body, into any) error {
	var in []byte
	if body != nil {
		var err error
		if in, err = json.Marshal(body); err != nil {
			return err
		}
	}
	for try := 1; ; try++ {
		wait, err := c.once(ctx, method, path, in, into)
		if wait <= 0 || try == attempts {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(wait):
		}
	}
}

// once sends one request. It returns how long to wait before a retry, or 0 if a retry would not
// help.
func (c *Client) once(ctx context.Context, method, path string, in []byte, into any) (time.Duration, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, c.timeout, fmt.Errorf("%w: no answer to %s within %s", ErrServer, path, c.timeout))
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, bytes.NewReader(in))
	if err != nil {
		return 0, fmt.Errorf("eval: server address: %w", err)
	}
	req.Header.Set("Content-Type", "application/json")
	if c.key != "" {
		req.Header.Set("Authorization", "Bearer "+c.key)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		if ctx.Err() != nil {
			return 0, context.Cause(ctx)
		}
		return 0, fmt.Errorf("%w: no answer from %s: %w", ErrServer, c.base, err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return 0, fmt.Errorf("%w: the answer ended early: %w", ErrServer, err)
	}
	if resp.StatusCode == http.StatusOK {
		if err := json.Unmarshal(text, into); err != nil {
			return 0, fmt.Errorf("%w: the answer to %s is not the expected JSON: %w", ErrServer, path, err)
		}
		return 0, nil
	}
	err = fmt.Errorf("%w: %s answered %s: %s", ErrServer, path, resp.Status, message(text))
	if resp.StatusCode != http.StatusTooManyRequests && resp.StatusCode != http.StatusServiceUnavailable {
		return 0, err
	}
	seconds, bad := strconv.Atoi(resp.Header.Get("Retry-After"))
	if bad != nil {
		seconds = 1
	}
	return time.Duration(min(max(seconds, 1), 30)) * time.Second, err
}

// message returns the text of an OpenAI error body, or the start of the body.
func message(body []byte) string {
	var e struct {
		Error struct {
			Message string `json:"message"`
		} `json:"error"`
	}
	if json.Unmarshal(body, &e) == nil && e.Error.Message != "" {
		return e.Error.Message
	}
	return string(bytes.TrimSpace(body[:min(len(body), 300)]))
}

// Package client is the client of a running cluster, for its jobs, its state, its events and its nodes.
// For chats and completions any OpenAI client works. [Client.Do] sends the other requests of
// docs/http.md.
package client

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"
)

// Client calls one server. Its methods may be called concurrently. Set its fields before the first
// call.
type Client struct {
	Server string // http://host:port, https://host:port, or host:port
	Key    string // of the API; "": the server requires none
	HTTP   http.Client
	Header http.Header // sent with every request, besides the client's own
	// RetryTimeout is the time for which a call is repeated while the server answers that it is not ready:
	// it loads a model, or has lost all of its nodes. If a second request cannot do the work twice, the
	// call is also repeated while no server answers, for example when a coordinator restarts. 0: the
	// first answer counts.
	RetryTimeout time.Duration
	// OnRetry, if set, is called once per repeated call with the reason.
	OnRetry func(why error)
}

// New returns a client that waits half a minute for a server that is not ready.
func New(server, key string) *Client {
	return &Client{Server: server, Key: key, RetryTimeout: 30 * time.Second}
}

// Error is an error response of the server.
type Error struct {
	Status  int    // of HTTP; 200 if the error came within a stream
	Code    string // stable; "" where it has none
	Param   string // the member that is wrong, if one is
	Message string
	// RetryAfter is the pause before a retry; 0: the server sent none, or a retry could do the work twice.
	RetryAfter time.Duration
}

func (e *Error) Error() string {
	if e.Status == http.StatusOK { // within a stream
		return e.Message
	}
	return fmt.Sprintf("%d %s: %s", e.Status, http.StatusText(e.Status), e.Message)
}

// Unreachable is the error when no server answers.
type Unreachable struct {
	Server string
	Err    error
}

func (e *Unreachable) Error() string {
	return fmt.Sprintf("no answer from %s: %v (is the cluster up? `shoal up` starts one)", e.Server, reason(e.Err))
}

// reason returns an error of a request without the address and the method, which the caller adds.
func reason(err error) error {
	var request *url.Error
	if errors.As(err, &request) {
		err = request.Err
	}
	var network *net.OpError
	if errors.As(err, &network) {
		err = network.Err
	}
	var call *os.SyscallError
	if errors.As(err, &call) {
		err = call.Err
	}
	return err
}

func (e *Unreachable) Unwrap() error { return e.Err }

// URL returns the server's address, with which the URL of every request begins.
func (c *Client) URL() string {
	server := c.Server
	if !strings.Contains(server, "://") {
		server = "http://" + server
	}
	return strings.TrimSuffix(strings.TrimSuffix(server, "/"), "/v1")
}

// Do sends a request with a value as JSON in its body; nil: no body. An answer with another status than
// 2xx is an [Error]. Otherwise the caller closes the body of the answer.
func (c *Client) Do(ctx context.Context, method, path string, body any) (*http.Response, error) {
	return c.do(ctx, method, path, nil, body)
}

func (c *Client) do(ctx context.Context, method, path string, header http.Header, body any) (*http.Response, error) {
	var text []byte
	if body != nil {
		var err error
		if text, err = json.Marshal(body); err != nil {
			return nil, fmt.Errorf("client: encoding the request: %w", err)
		}
	}
	repeatable := method == http.MethodGet || header.Get("Idempotency-Key") != ""
	for began, notified := time.Now(), false; ; {
		resp, err := c.once(ctx, method, path, header, text)
		var refused *Error
		var unreachable *Unreachable
		pause := time.Duration(0)
		switch {
		case errors.As(err, &refused) && refused.Status == http.StatusServiceUnavailable:
			pause = min(refused.RetryAfter, 10*time.Second)
		case errors.As(err, &unreachable) && repeatable:
			pause = time.Second / 2
		}
		if pause == 0 || time.Since(began)+pause > c.RetryTimeout {
			return resp, err
		}
		if !notified && c.OnRetry != nil {
			c.OnRetry(err)
		}
		notified = true
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(pause):
		}
	}
}

func (c *Client) once(ctx context.Context, method, path string, header http.Header, body []byte) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, c.URL()+path, bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("client: server address: %w", err)
	}
	maps.Copy(req.Header, c.Header)
	maps.Copy(req.Header, header)
	req.Header.Set("Content-Type", "application/json")
	if c.Key != "" {
		req.Header.Set("Authorization", "Bearer "+c.Key)
	}
	resp, err := c.HTTP.Do(req)
	switch cause := context.Cause(ctx); {
	case err != nil && cause != nil:
		return nil, fmt.Errorf("%s does not answer (%w)", c.URL(), cause)
	case err != nil:
		return nil, &Unreachable{c.URL(), err}
	case resp.StatusCode/100 == 2:
		return resp, nil
	}
	defer resp.Body.Close()
	return nil, refusal(resp)
}

// errorBody is the JSON of an error, as the body of an answer or as the data of an event.
type errorBody struct {
	Object string // of an event that is no error
	Error  *struct{ Message, Code, Param string }
}

// refusal reads an error answer.
func refusal(resp *http.Response) error {
	text, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return fmt.Errorf("%s: %w", resp.Status, err)
	}
	var body errorBody
	e := &Error{Status: resp.StatusCode, Message: string(bytes.TrimSpace(text))}
	if json.Unmarshal(text, &body) == nil && body.Error != nil {
		e.Message, e.Code, e.Param = body.Error.Message, body.Error.Code, body.Error.Param
	}
	seconds, err := strconv.Atoi(resp.Header.Get("Retry-After"))
	if err == nil && resp.Header.Get("X-Should-Retry") != "false" {
		e.RetryAfter = max(time.Second/10, time.Duration(seconds)*time.Second)
	}
	return e
}

// get calls Do and decodes the JSON of the answer.
func get[T any](ctx context.Context, c *Client, method, path string, header http.Header, body any) (*T, error) {
	resp, err := c.do(ctx, method, path, header, body)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	out := new(T)
	if err := json.NewDecoder(io.LimitReader(resp.Body, 1<<30)).Decode(out); err != nil {
		return nil, fmt.Errorf("client: the answer to %s %s does not decode: %w", method, path, err)
	}
	return out, nil
}

const maxLine = 32 << 20 // bytes of an event

// Data calls take with the data of each server-sent event of a body, until take returns an error. A line
// without an end, at which a connection broke, is no event.
func Data(body io.Reader, take func([]byte) error) error {
	lines := bufio.NewScanner(body)
	lines.Buffer(nil, maxLine)
	lines.Split(func(data []byte, end bool) (advance int, token []byte, err error) {
		return bufio.ScanLines(data, end && string(data) == "data: [DONE]") // some servers do not end the last line
	})
	for lines.Scan() {
		data, ok := bytes.CutPrefix(lines.Bytes(), []byte("data: "))
		if !ok {
			continue // blank lines, ids and keep-alive comments
		}
		if err := take(data); err != nil {
			return err
		}
	}
	return lines.Err()
}

package cluster_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"
)

// requestLimit is the deadline of every request of the tests, including recoveries.
const requestLimit = 5 * time.Minute

// httpClient sends requests like curl, and reads streams as they arrive.
type httpClient struct {
	t    testing.TB
	base string // http://host:port
	key  string
	http *http.Client
}

func newHTTPClient(t testing.TB, base, key string) *httpClient {
	tr := &http.Transport{MaxIdleConnsPerHost: 128}
	t.Cleanup(tr.CloseIdleConnections)
	return &httpClient{t: t, base: base, key: key, http: &http.Client{Transport: tr}}
}

// dialFrom makes a client connect from a port of a wire.
func dialFrom(c *httpClient, at *port) { c.http.Transport.(*http.Transport).DialContext = at.dial }

type answer struct {
	status int
	header http.Header
	body   []byte
}

// do sends one request; body is JSON text, a value to encode, or nil.
func (c *httpClient) do(ctx context.Context, method, path string, body any) (*http.Response, error) {
	var in io.Reader
	switch b := body.(type) {
	case nil:
	case string:
		in = strings.NewReader(b)
	default:
		text, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		in = bytes.NewReader(text)
	}
	r, err := http.NewRequestWithContext(ctx, method, c.base+path, in)
	if err != nil {
		return nil, err
	}
	if in != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	if c.key != "" {
		r.Header.Set("Authorization", "Bearer "+c.key)
	}
	return c.http.Do(r)
}

// try sends one request and reads the whole answer.
func (c *httpClient) try(ctx context.Context, method, path string, body any) (answer, error) {
	ctx, cancel := context.WithTimeout(ctx, requestLimit)
	defer cancel()
	resp, err := c.do(ctx, method, path, body)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, resp.Header, b}, err
}

// call is try for the test's own goroutine.
func (c *httpClient) call(method, path string, body any) answer {
	c.t.Helper()
	a, err := c.try(context.Background(), method, path, body)
	if err != nil {
		c.t.Fatalf("%s %s: %v", method, path, err)
	}
	return a
}

// want is call with a check of the status.
func (c *httpClient) want(status int, method, path string, body any) answer {
	c.t.Helper()
	a := c.call(method, path, body)
	if a.status != status {
		c.t.Fatalf("%s %s: status %d, want %d: %s", method, path, a.status, status, a.body)
	}
	return a
}

func (c *httpClient) getJSON(path string, into any) {
	c.t.Helper()
	if err := json.Unmarshal(c.want(200, "GET", path, nil).body, into); err != nil {
		c.t.Fatalf("GET %s: %v", path, err)
	}
}

// event is one data line of a stream, with the time since the previous one.
type event struct {
	data string
	gap  time.Duration
}

// stream is a response that was read to its end.
type stream struct {
	events []event // without [DONE]
	done   bool    // [DONE] was received
	worst  time.Duration
}

var errStatus = errors.New("status")

// stream posts body and reads the events. each receives them as they arrive (it may be nil) and
// stops the reading by returning an error.
func (c *httpClient) stream(ctx context.Context, path string, body any, each func(n int, data string) error) (stream, error) {
	ctx, cancel := context.WithTimeout(ctx, requestLimit)
	defer cancel()
	var s stream
	resp, err := c.do(ctx, "POST", path, body)
	if err != nil {
		return s, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != 200 {
		b, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<16))
		return s, fmt.Errorf("%w %d: %s", errStatus, resp.StatusCode, b)
	}
	if ct := resp.Header.Get("Content-Type"); !strings.HasPrefix(ct, "text/event-stream") {
		return s, fmt.Errorf("a stream of type %q", ct)
	}
	r, last := bufio.NewReaderSize(resp.Body, 1<<16), time.Now()
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			if err == io.EOF && line == "" {
				return s, nil
			}
			return s, err
		}
		line = strings.TrimSuffix(line, "\n")
		switch {
		case line == "", strings.HasPrefix(line, ":"):
			continue
		case s.done:
			return s, fmt.Errorf("%q after [DONE]", line)
		case line == "data: [DONE]":
			s.done = true
			continue
		case !strings.HasPrefix(line, "data: "):
			return s, fmt.Errorf("line %q in a stream", line)
		}
		e := event{data: line[len("data: "):], gap: time.Since(last)}
		last = time.Now()
		s.worst = max(s.worst, e.gap)
		s.events = append(s.events, e)
		if each != nil {
			if err := each(len(s.events), e.data); err != nil {
				return s, err
			}
		}
	}
}

// text returns the stream's events without the parts that differ between runs.
func (s stream) text() string {
	var b strings.Builder
	for _, e := range s.events {
		b.WriteString(canonical(e.data))
		b.WriteByte('\n')
	}
	return b.String()
}

var unlike = regexp.MustCompile(`"id":"(?:cmpl|chatcmpl)-[a-z0-9]+"|"created":[0-9]+`)

// canonical removes id and time from a response and leaves all other bytes.
func canonical(body string) string {
	return unlike.ReplaceAllString(drafts.ReplaceAllString(body, ""), `"":0`)
}

// drafts matches the figures of speculation and the prefix cache in answers. They depend on the speed
// of the machine and on earlier requests.
var drafts = regexp.MustCompile(`,"(?:(?:completion|prompt)_tokens_details":\{[^}]*\}|metrics":\{"speculative_decoding":\{(?:[^{}]|\{[^}]*\})*\}\})`)

// firstDifference shows where two texts start to differ.
func firstDifference(a, b string) string {
	i := 0
	for i < len(a) && i < len(b) && a[i] == b[i] {
		i++
	}
	cut := func(s string) string { return s[max(0, min(len(s), i-80)):min(len(s), i+80)] }
	return fmt.Sprintf("at byte %d of %d and %d:\n  %s\n  %s", i, len(a), len(b), cut(a), cut(b))
}

package cli

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/shoal-llm/shoal/api"
)

// client speaks the OpenAI API of a Shoal coordinator.
type client struct {
	base string // http://host:port
	key  string
	http http.Client
	// header is sent with every request, besides the others.
	header http.Header
	// notice is told what stream waits for; nil: nobody.
	notice io.Writer
}

// patience is how long stream waits for a server that says it is not ready yet: one
// that `shoal up` has just started, or that has lost all of its nodes.
const patience = 30 * time.Second

// unready is the answer of such a server.
type unready struct {
	error
	retry time.Duration
}

func (u unready) Unwrap() error { return u.error }

func newClient(server, key string) *client {
	if !strings.Contains(server, "://") {
		server = "http://" + server
	}
	return &client{base: strings.TrimSuffix(strings.TrimSuffix(server, "/"), "/v1"), key: key}
}

// trusting trusts servers by the certificates of a file.
func trusting(file string) http.RoundTripper {
	pem, err := readSmall(file)
	pool := x509.NewCertPool()
	if err == nil && !pool.AppendCertsFromPEM(pem) {
		err = fmt.Errorf("%s holds no certificate", file)
	}
	if err != nil {
		return failing{fmt.Errorf("--tls-ca: %w", err)}
	}
	return &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}}
}

// failing is a transport that says why there is none.
type failing struct{ error }

func (f failing) RoundTrip(*http.Request) (*http.Response, error) { return nil, f.error }

// usage is the token count of an answer.
type usage struct {
	Prompt     int `json:"prompt_tokens"`
	Completion int `json:"completion_tokens"`
}

// chunk is the part of a streamed answer that the CLI reads, of both endpoints.
type chunk struct {
	Choices []struct {
		Text         string `json:"text"`
		FinishReason string `json:"finish_reason"`
		Delta        struct {
			Content string `json:"content"`
		} `json:"delta"`
	} `json:"choices"`
	Usage *usage `json:"usage"`
	Error *struct {
		Message string `json:"message"`
	} `json:"error"`
}

// finished is what a stream came to.
type finished struct {
	Reason string
	Usage  usage
	First  time.Duration // to the first text
	Total  time.Duration
}

// stream posts body to path and gives each piece of text to emit.
func (c *client) stream(ctx context.Context, path string, body map[string]any, emit func(string)) (finished, error) {
	body["stream"], body["stream_options"] = true, map[string]any{"include_usage": true}
	began := time.Now()
	resp, err := c.whenReady(ctx, path, body)
	if err != nil {
		return finished{}, err
	}
	defer resp.Body.Close()
	var f finished
	err = sseData(resp.Body, func(data []byte) error {
		if string(data) == "[DONE]" {
			f.Total = time.Since(began)
			return io.EOF
		}
		return f.take(data, began, emit)
	})
	switch {
	case errors.Is(err, io.EOF):
		return f, nil
	case err == nil:
		err = errors.New("the stream ended before it was complete")
	}
	return f, err
}

// sseData gives the data of each server-sent event to take, until that fails.
func sseData(r io.Reader, take func([]byte) error) error {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 32<<20)
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

// whenReady posts body to path, again and again while the server is not ready.
func (c *client) whenReady(ctx context.Context, path string, body any) (*http.Response, error) {
	began, told := time.Now(), false
	for {
		resp, err := c.do(ctx, http.MethodPost, path, body)
		var u unready
		if !errors.As(err, &u) || time.Since(began)+u.retry > patience {
			return resp, err
		}
		if !told && c.notice != nil {
			fmt.Fprintf(c.notice, "waiting for the server (%v at most): %v\n", patience, u)
			told = true
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(u.retry):
		}
	}
}

// sayIfCut tells that an answer was not at its end.
func (f *finished) sayIfCut(w io.Writer) {
	if f.Reason == api.FinishLength {
		fmt.Fprintf(w, "[cut after %d tokens; -t N takes more, up to the model's context]\n", f.Usage.Completion)
	}
}

func (f *finished) take(data []byte, began time.Time, emit func(string)) error {
	var k chunk
	if err := json.Unmarshal(data, &k); err != nil {
		return fmt.Errorf("the server sent a chunk that is not JSON: %w", err)
	}
	if k.Error != nil {
		return errors.New(k.Error.Message)
	}
	if k.Usage != nil {
		f.Usage = *k.Usage
	}
	for _, ch := range k.Choices {
		if text := ch.Text + ch.Delta.Content; text != "" {
			if f.First == 0 {
				f.First = time.Since(began)
			}
			emit(text)
		}
		if ch.FinishReason != "" {
			f.Reason = ch.FinishReason
		}
	}
	return nil
}

func (c *client) cluster(ctx context.Context) (*api.ClusterState, error) {
	resp, err := c.do(ctx, http.MethodGet, "/v1/cluster", nil)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	s := new(api.ClusterState)
	return s, json.NewDecoder(io.LimitReader(resp.Body, 16<<20)).Decode(s)
}

func (c *client) do(ctx context.Context, method, path string, body any) (*http.Response, error) {
	var in io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		in = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, in)
	if err != nil {
		return nil, fmt.Errorf("server address: %w", err)
	}
	maps.Copy(req.Header, c.header)
	req.Header.Set("Content-Type", "application/json")
	if c.key != "" {
		req.Header.Set("Authorization", "Bearer "+c.key)
	}
	resp, err := c.http.Do(req)
	if late := context.Cause(ctx); err != nil && errors.Is(late, errLate) {
		return nil, fmt.Errorf("%s does not answer (%w)", c.base, late)
	}
	if err != nil {
		return nil, fmt.Errorf("no answer from %s (is the cluster up? `shoal up` starts one): %w", c.base, err)
	}
	if resp.StatusCode/100 == 2 {
		return resp, nil
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", resp.Status, err)
	}
	var k chunk
	if json.Unmarshal(text, &k) == nil && k.Error != nil {
		text = []byte(k.Error.Message)
	}
	err = fmt.Errorf("%s: %s", resp.Status, bytes.TrimSpace(text))
	if seconds, e := strconv.Atoi(resp.Header.Get("Retry-After")); e == nil && resp.StatusCode == http.StatusServiceUnavailable {
		return nil, unready{err, max(time.Second/10, time.Duration(min(seconds, 10))*time.Second)}
	}
	return nil, err
}

package client_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/client"
	"github.com/shoal-llm/shoal/client/wire"
)

// answering returns a client of a server, and the requests that the server got. The server gives one
// answer after another and repeats the last one.
func answering(t *testing.T, answers ...http.HandlerFunc) (*client.Client, *[]*http.Request) {
	var asked []*http.Request
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r)
		answers[min(len(asked), len(answers))-1](w, r)
	}))
	t.Cleanup(srv.Close)
	return &client.Client{Server: srv.URL + "/v1/", Key: "secret", RetryTimeout: 5 * time.Second}, &asked
}

func say(status int, retry, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		if retry != "" {
			w.Header().Set("Retry-After", retry)
		}
		w.WriteHeader(status)
		fmt.Fprint(w, body)
	}
}

// A refusal is an Error with its parts. The client retries one with Retry-After until its time
// limit, and no other.
func TestRefusals(t *testing.T) {
	refused := `{"error":{"message":"There is no node n9.","type":"invalid_request_error","param":null,"code":"node_not_found"}}`
	c, asked := answering(t, say(404, "", refused))
	var e *client.Error
	if err := c.Drain(t.Context(), "n/9"); !errors.As(err, &e) ||
		*e != (client.Error{Status: 404, Code: "node_not_found", Message: "There is no node n9."}) {
		t.Errorf("%#v", err)
	}
	r := (*asked)[0]
	if len(*asked) != 1 || r.Method != "POST" || r.URL.EscapedPath() != "/v1/nodes/n%2F9/drain" ||
		r.Header.Get("Authorization") != "Bearer secret" {
		t.Errorf("asked %d times: %s %s %s", len(*asked), r.Method, r.URL, r.Header)
	}
	c, asked = answering(t, say(503, "0", refused), say(503, "0", refused), say(200, "", `{"epoch": 7}`))
	reported := 0
	c.OnRetry = func(error) { reported++ }
	if s, err := c.Cluster(t.Context()); err != nil || s.Epoch != 7 || len(*asked) != 3 || reported != 1 {
		t.Errorf("%+v, %v, %d requests, %d calls of Waiting", s, err, len(*asked), reported)
	}
	for _, answer := range []http.HandlerFunc{say(503, "", refused), say(429, "0", refused), say(503, "9", refused)} {
		c, asked = answering(t, answer)
		if _, err := c.Cluster(t.Context()); !errors.As(err, &e) || len(*asked) != 1 {
			t.Errorf("%v, asked %d times", err, len(*asked))
		}
	}
	c, _ = answering(t, say(200, "", "no JSON"))
	if _, err := c.Jobs(t.Context(), client.Page{State: "dead", Limit: 3}); err == nil ||
		!strings.Contains(err.Error(), "GET /v1/jobs?limit=3&state=dead does not decode") {
		t.Error(err)
	}
}

// A server that has done the work, or a part of it, sends X-Should-Retry: false. The client does not repeat
// such a request, although its status and Retry-After are those of a server that is not ready.
func TestShouldNotRetry(t *testing.T) {
	body := `{"error":{"message":"The turn could not be recorded.","type":"server_error","param":null,"code":"session_not_recorded"}}`
	c, asked := answering(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Should-Retry", "false")
		say(503, "0", body)(w, r)
	}, say(200, "", "{}"))
	resp, err := c.Do(t.Context(), "POST", "/v1/chat/completions", map[string]any{"session": "s"})
	if err == nil {
		resp.Body.Close()
	}
	var e *client.Error
	if !errors.As(err, &e) || e.Code != "session_not_recorded" || len(*asked) != 1 {
		t.Errorf("%v, asked %d times", err, len(*asked))
	}
}

// If no server answers, the client repeats only requests that cannot do work twice.
func TestUnreachable(t *testing.T) {
	c := &client.Client{Server: "127.0.0.1:1", RetryTimeout: 700 * time.Millisecond}
	for what, call := range map[string]func() error{
		"once":  func() error { return c.Undrain(t.Context(), "n") },
		"again": func() error { _, err := c.Submit(t.Context(), "", nil); return err },
	} {
		waits := 0
		c.OnRetry = func(error) { waits++ }
		var e *client.Unreachable
		if err := call(); !errors.As(err, &e) || (waits == 1) != (what == "again") {
			t.Errorf("%s: %v, waited %d times", what, err, waits)
		}
	}
	ctx, cancel := context.WithTimeoutCause(t.Context(), 50*time.Millisecond, errors.New("my limit"))
	defer cancel()
	if _, err := c.Cluster(ctx); err == nil || !strings.Contains(err.Error(), "my limit") {
		t.Error(err)
	}
}

// A job's stream that breaks is continued after its last event. A stream that skips an event or repeats
// one is an error.
func TestWatch(t *testing.T) {
	event := func(i int) string {
		return fmt.Sprintf("id: %d\ndata: {\"object\":\"job.event\",\"index\":%d}\n\n", i, i)
	}
	const end = "data: {\"object\":\"job.end\",\"state\":\"completed\"}\n\ndata: [DONE]\n\n"
	c, asked := answering(t, say(200, "", event(3)+": keep-alive\n\n"+event(4)), say(503, "0", ""), say(200, "", event(5)+end))
	var got []int
	for e, err := range c.Watch(t.Context(), "job-1", 3) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, e.Index)
	}
	if fmt.Sprint(got) != "[3 4 5]" || (*asked)[2].URL.RawQuery != "from=5" {
		t.Errorf("events %v, then %s", got, (*asked)[2].URL)
	}
	for _, text := range []string{event(1), event(0) + event(0)} {
		c, _ = answering(t, say(200, "", text+end))
		last := error(nil)
		for _, last = range c.Watch(t.Context(), "job-1", 0) {
		}
		if last == nil || !strings.Contains(last.Error(), "want event") {
			t.Errorf("%q: %v", text, last)
		}
	}
	c, asked = answering(t, say(200, "", event(0)+event(1)+event(2)+end))
	for e := range c.Watch(t.Context(), "job-1", 0) {
		if e.Index == 1 {
			break
		}
	}
	if len(*asked) != 1 {
		t.Errorf("asked %d times", len(*asked))
	}
}

// Result waits for the end; a job without a result is Failed.
func TestResult(t *testing.T) {
	const end = "data: {\"object\":\"job.end\"}\n\ndata: [DONE]\n\n"
	c, _ := answering(t, say(200, "", `{"state":"running"}`), say(200, "", end), say(200, "", `{"state":"completed","result":{"a":1}}`))
	if r, err := c.Result(t.Context(), "j"); err != nil || string(r) != `{"a":1}` {
		t.Errorf("%s, %v", r, err)
	}
	c, _ = answering(t, say(200, "", `{"id":"j","state":"dead","error":{"message":"too long"}}`))
	var f *client.Failed
	if _, err := c.Result(t.Context(), "j"); !errors.As(err, &f) || err.Error() != "job j is dead: too long" {
		t.Error(err)
	}
}

// Events come until the server ends. The end is an error.
func TestFollowEvents(t *testing.T) {
	cut := false
	c, _ := answering(t, say(200, "", "data: {\"id\":1}\n\ndata: {\"id\":2}\n\n"))
	var got []wire.ClusterEvent
	for e, err := range c.FollowEvents(t.Context(), 9) {
		if err != nil {
			cut = errors.Is(err, client.ErrStreamEnded)
			break
		}
		got = append(got, e)
	}
	if len(got) != 2 || !cut {
		t.Errorf("%d events, cut %v", len(got), cut)
	}
}

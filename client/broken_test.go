package client_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/client"
)

// broken sends a part of a stream, and then breaks the connection.
func broken(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, text)
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}
}

// A connection may break within an event. The client does not use that part of an event, and continues
// after the last whole one.
func TestWatchBrokenWithinEvent(t *testing.T) {
	const first = "id: 0\ndata: {\"object\":\"job.event\",\"index\":0}\n\n"
	const rest = "id: 1\ndata: {\"object\":\"job.event\",\"index\":1}\n\ndata: {\"object\":\"job.end\"}\n\ndata: [DONE]\n\n"
	for _, cut := range []string{"data: {\"object\":\"job.ev", "data: ", "data: {\"object\":\"job.event\",\"index\":1}"} {
		for _, answer := range []http.HandlerFunc{broken(first + cut), say(200, "", first+cut)} {
			c, asked := answering(t, answer, say(200, "", rest))
			n := 0
			for e, err := range c.Watch(t.Context(), "job-1", 0) {
				if err != nil || e.Index != n {
					t.Errorf("after %q: event %d, %v", cut, e.Index, err)
				}
				n++
			}
			if n != 2 || len(*asked) != 2 || (*asked)[1].URL.RawQuery != "from=1" {
				t.Errorf("after %q: %d events of %d requests", cut, n, len(*asked))
			}
		}
	}
}

// A store that does not answer for a moment ends a stream of events. The client continues it; another
// error is the last value, in the words of the server.
func TestWatchErrors(t *testing.T) {
	const first = "data: {\"object\":\"job.event\",\"index\":0}\n\n"
	const rest = "data: {\"object\":\"job.event\",\"index\":1}\n\ndata: {\"object\":\"job.end\"}\n\ndata: [DONE]\n\n"
	failure := func(code string) string {
		return `data: {"error":{"message":"The rest cannot be read.","type":"server_error","param":null,"code":"` + code + "\"}}\n\n"
	}
	c, _ := answering(t, say(200, "", first+failure("store_unavailable")), say(200, "", rest))
	n := 0
	for _, err := range c.Watch(t.Context(), "job-1", 0) {
		if n++; err != nil {
			t.Error(err)
		}
	}
	if n != 2 {
		t.Errorf("%d events", n)
	}
	c, _ = answering(t, say(200, "", first+failure("record_damaged")), say(200, "", rest))
	var last error
	for _, last = range c.Watch(t.Context(), "job-1", 0) {
	}
	var e *client.Error
	if !errors.As(last, &e) || e.Code != "record_damaged" || e.Message != "The rest cannot be read." {
		t.Error(last)
	}
}

// Ready reports the state of the server now: it does not wait until a server is ready that is not.
func TestReadyNow(t *testing.T) {
	c, asked := answering(t, say(503, "1", `{"status":"not_ready","reason":"loading"}`), say(200, "", `{}`))
	began := time.Now()
	var not *client.ErrNotReady
	if err := c.Ready(t.Context()); !errors.As(err, &not) || not.Reason != "loading" || len(*asked) != 1 {
		t.Errorf("%v after %d requests and %v", err, len(*asked), time.Since(began))
	}
	if err := c.Ready(t.Context()); err != nil {
		t.Error(err)
	}
}

// An event that is too long for the client is an error at once: it would be as long the next time.
func TestWatchTooLong(t *testing.T) {
	c, asked := answering(t, say(200, "", `data: {"object":"job.event","index":0,"text":"`+strings.Repeat("x", 33<<20)+"\"}\n\n"))
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	var last error
	for _, last = range c.Watch(ctx, "job-1", 0) {
	}
	if !errors.Is(last, bufio.ErrTooLong) || len(*asked) != 1 {
		t.Errorf("%v after %d requests", last, len(*asked))
	}
}

// Data takes lines with an end, and the mark of the end of a stream with or without one.
func TestData(t *testing.T) {
	for body, want := range map[string]string{
		"data: 1\n\ndata: [DONE]\n\n": "1 [DONE]",
		"data: 1\r\ndata: [DONE]":     "1 [DONE]",
		"data: 1\n\ndata: 2":          "1",
		"data: [DONE":                 "",
		"data: 1\ndata: [DON":         "1",
	} {
		var got []string
		err := client.Data(strings.NewReader(body), func(data []byte) error { got = append(got, string(data)); return nil })
		if err != nil || strings.Join(got, " ") != want {
			t.Errorf("%q: %q, %v", body, got, err)
		}
	}
}

package api

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/tracing"
)

// TestTraces: a request's span and those of its sequences reach the collector, with the
// request's id; what monitors ask for is not traced.
func TestTraces(t *testing.T) {
	sent := make(chan string, 8)
	collector := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		sent <- string(b)
	}))
	defer collector.Close()
	tr, err := tracing.Start(t.Context(), collector.URL, "1.2.3", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	e := &fakeEngine{script: hello}
	srv := httptest.NewServer(newServer(t, e, func(c *Config) { c.Tracer = tr }).Handler())
	a := post(t, srv.URL+"/v1/completions", completion(M{"n": 2}))
	if a.status != 200 {
		t.Fatal(a.raw)
	}
	if a := ask(t, "GET", srv.URL+"/health", "", ""); a.status != 200 {
		t.Fatal(a.raw)
	}
	srv.Close() // its handlers have ended
	e.live.Wait()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := tr.Close(ctx); err != nil {
		t.Fatal(err)
	}
	close(sent)
	var all strings.Builder
	for b := range sent {
		all.WriteString(b)
	}
	text := all.String()
	for want, n := range map[string]int{"POST /v1/completions": 1, "queue": 2, "prefill": 2, "decode": 2, a.header.Get("X-Request-Id"): 1, "/health": 0} {
		if got := strings.Count(text, want); got != n {
			t.Errorf("%q is there %d times, want %d", want, got, n)
		}
	}
}

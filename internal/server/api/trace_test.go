package api

import (
	"context"
	"log/slog"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/internal/server/servertest"
	"github.com/shoal-llm/shoal/internal/tracing"
	"github.com/shoal-llm/shoal/internal/tracing/tracingtest"
)

// TestTraces: a request's span and those of its sequences reach the collector, with the
// request's id. Requests of monitors are not traced.
func TestTraces(t *testing.T) {
	collector := tracingtest.New(t)
	tr, err := tracing.Start(t.Context(), collector.URL, "1.2.3", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	e := &servertest.Engine{Script: servertest.Hello}
	srv := httptest.NewServer(newServer(t, e, func(c *Config) { c.Tracer = tr }).Handler())
	a := post(t, srv.URL+"/v1/completions", completion(M{"n": 2}))
	if a.status != 200 {
		t.Fatal(a.raw)
	}
	if a := ask(t, "GET", srv.URL+"/health", "", ""); a.status != 200 {
		t.Fatal(a.raw)
	}
	srv.Close() // its handlers have ended
	e.Live.Wait()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := tr.Close(ctx); err != nil {
		t.Fatal(err)
	}
	collector.Want(t,
		map[string]int{"POST /v1/completions": 1, "queue": 2, "prefill": 2, "decode": 2, a.header.Get("X-Request-Id"): 1, "/health": 0})
}

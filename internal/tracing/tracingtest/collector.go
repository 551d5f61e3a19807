// Package tracingtest has a trace collector for tests.
package tracingtest

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
)

// Collector records the messages that it receives over OTLP.
type Collector struct {
	URL string

	mu      sync.Mutex
	bodies  []string
	Headers []http.Header // read them only after the last export
	Paths   []string
}

// New starts a collector that runs until the test ends.
func New(t testing.TB) *Collector {
	c := new(Collector)
	srv := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		if err != nil {
			t.Errorf("a message to the collector cannot be read: %v", err)
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.bodies, c.Headers, c.Paths = append(c.bodies, string(b)), append(c.Headers, r.Header), append(c.Paths, r.URL.Path)
	}))
	t.Cleanup(srv.Close)
	c.URL = srv.URL
	return c
}

// Text returns everything received so far.
func (c *Collector) Text() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return strings.Join(c.bodies, "\n")
}

// Want checks how often each text occurs in the received messages.
func (c *Collector) Want(t testing.TB, counts map[string]int) {
	t.Helper()
	for want, n := range counts {
		if got := strings.Count(c.Text(), want); got != n {
			t.Errorf("%q is there %d times, want %d", want, got, n)
		}
	}
}

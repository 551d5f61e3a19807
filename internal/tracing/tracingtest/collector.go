// Package tracingtest is a collector of traces for tests.
package tracingtest

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
)

// Collector keeps what is sent to it over OTLP.
type Collector struct {
	URL string

	mu      sync.Mutex
	bodies  []string
	Headers []http.Header // read them once nothing is sent any more
	Paths   []string
}

// New is a collector until the test ends.
func New(t testing.TB) *Collector {
	c := new(Collector)
	srv := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		if err != nil {
			t.Errorf("what was sent to the collector cannot be read: %v", err)
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.bodies, c.Headers, c.Paths = append(c.bodies, string(b)), append(c.Headers, r.Header), append(c.Paths, r.URL.Path)
	}))
	t.Cleanup(srv.Close)
	c.URL = srv.URL
	return c
}

// Text is all that was sent so far.
func (c *Collector) Text() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return strings.Join(c.bodies, "\n")
}

// Want says how often each text is to be in what was sent.
func (c *Collector) Want(t testing.TB, counts map[string]int) {
	t.Helper()
	for want, n := range counts {
		if got := strings.Count(c.Text(), want); got != n {
			t.Errorf("%q is there %d times, want %d", want, got, n)
		}
	}
}

package api

import (
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/internal/server/httpserver"
)

// flushes counts the flushes of a stream.
type flushes struct {
	*httptest.ResponseRecorder
	n int
}

func (f *flushes) Flush() { f.n++ }

// TestTokensOfOneStep: events at hand are one packet, the first error included, and others each
// their own.
func TestTokensOfOneStep(t *testing.T) {
	w := &flushes{ResponseRecorder: httptest.NewRecorder()}
	out := httpserver.NewSSE(httpserver.NewStream(w, time.Minute))
	out.Data(1)
	if out.Data(2); w.n != 2 {
		t.Errorf("%d packets of two events", w.n)
	}
	out.Hold()
	for i := range 8 {
		out.Data(i)
	}
	if w.n != 2 {
		t.Errorf("%d packets before all events of a step", w.n)
	}
	if out.Release(); w.n != 3 || strings.Count(w.Body.String(), "data: ") != 10 {
		t.Errorf("%d packets: %s", w.n, w.Body)
	}
	out.Hold()
	if out.Release(); w.n != 3 {
		t.Errorf("%d packets, the last of nothing", w.n)
	}
	if out.Done(); w.n != 4 || out.Failure() != nil {
		t.Errorf("%d packets: %v", w.n, out.Failure())
	}
}

package api

import (
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// flushes counts what a stream sends at once.
type flushes struct {
	*httptest.ResponseRecorder
	n int
}

func (f *flushes) Flush() { f.n++ }

// TestTokensOfOneStep: events at hand are one packet, the first error included, and others each
// their own.
func TestTokensOfOneStep(t *testing.T) {
	w := &flushes{ResponseRecorder: httptest.NewRecorder()}
	out := newSSE(NewStream(w, time.Minute))
	out.data(1)
	if out.data(2); w.n != 2 {
		t.Errorf("%d packets of two events", w.n)
	}
	out.hold()
	for i := range 8 {
		out.data(i)
	}
	if w.n != 2 {
		t.Errorf("%d packets before all events of a step", w.n)
	}
	if out.release(); w.n != 3 || strings.Count(w.Body.String(), "data: ") != 10 {
		t.Errorf("%d packets: %s", w.n, w.Body)
	}
	out.hold()
	if out.release(); w.n != 3 {
		t.Errorf("%d packets, the last of nothing", w.n)
	}
	if out.done(); w.n != 4 || out.failure() != nil {
		t.Errorf("%d packets: %v", w.n, out.failure())
	}
}

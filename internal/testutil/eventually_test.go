package testutil

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"
)

// failing records a fatal failure instead of failing the test.
type failing struct {
	testing.TB
	text string
}

func (f *failing) Helper() {}

func (f *failing) Fatalf(format string, args ...any) {
	f.text = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

func TestEventually(t *testing.T) {
	calls := 0
	Eventually(t, time.Minute, "three calls", func() (bool, string) { calls++; return calls == 3, "" })
	if calls != 3 {
		t.Errorf("%d calls, want 3", calls)
	}
}

// TestEventuallyFails: a failed wait names the condition and the last state.
func TestEventuallyFails(t *testing.T) {
	f, calls, done := &failing{TB: t}, 0, make(chan struct{})
	go func() {
		defer close(done)
		Eventually(f, 20*time.Millisecond, "a miracle", func() (bool, string) { calls++; return false, fmt.Sprint("call ", calls) })
	}()
	<-done
	if want := fmt.Sprint("call ", calls); calls < 2 || !strings.Contains(f.text, "a miracle") ||
		!strings.Contains(f.text, want) || !strings.Contains(f.text, "20ms") {
		t.Errorf("after %d calls: %q", calls, f.text)
	}
}

// Package testutil has helpers that the tests of several packages share.
package testutil

import (
	"testing"
	"time"
)

// Pauses between two polls: short conditions are seen fast, long ones cost little.
const (
	firstPause = time.Millisecond
	maxPause   = 50 * time.Millisecond
)

// Eventually polls ok until it returns true. After timeout it fails the test with the text what and the
// last state that ok returned. Call it from the goroutine of the test.
func Eventually(t testing.TB, timeout time.Duration, what string, ok func() (done bool, state string)) {
	t.Helper()
	end := time.Now().Add(timeout)
	for pause := firstPause; ; pause = min(2*pause, maxPause) {
		done, state := ok()
		if done {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("waited %v for: %s; last state: %s", timeout, what, state)
		}
		time.Sleep(pause)
	}
}

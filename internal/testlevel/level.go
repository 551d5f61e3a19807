// Package testlevel decides which long tests run.
//
// The environment variable SHOAL_E2E sets the level:
//
//	(unset)  every property, on a covering subset of the sweeps
//	stories  also the long scenarios, on any machine; CI runs them every night
//	long     also the whole sweeps
//	full     also tests that need an idle machine: strict time limits, whole products
package testlevel

import (
	"os"
	"testing"
)

const variable = "SHOAL_E2E"

// Long reports whether the whole sweeps run.
func Long() bool { return os.Getenv(variable) == "long" || Full() }

// Full reports whether tests may assume an otherwise idle machine.
func Full() bool { return os.Getenv(variable) == "full" }

// NeedLong skips a long scenario at the default level.
func NeedLong(t testing.TB) {
	t.Helper()
	if os.Getenv(variable) != "stories" && !Long() {
		t.Skipf("a long test: make stories runs it, or %s=stories", variable)
	}
}

// NeedFull skips a test that needs an otherwise idle machine.
func NeedFull(t testing.TB) {
	t.Helper()
	if !Full() {
		t.Skipf("needs a machine of its own: make chaos runs it, or %s=full", variable)
	}
}

package ui

import (
	"bytes"
	"testing"
	"testing/synctest"
	"time"
)

// TestBarWithoutTerminal: a bar prints a line after each minute, and none if it is not shown.
func TestBarWithoutTerminal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var shown, hidden bytes.Buffer
		on, off := NewBar(&Env{Stderr: &shown}, "ruler (2 of 3)", true), NewBar(&Env{Stderr: &hidden}, "x", false)
		for i := range int64(200) {
			time.Sleep(time.Second)
			on.Set(i, 200)
			off.Set(i, 200)
		}
		on.End()
		off.End()
		const want = "ruler (2 of 3) 29%\nruler (2 of 3) 59%\nruler (2 of 3) 89%\n"
		if shown.String() != want || hidden.Len() > 0 {
			t.Errorf("%q and %q, want %q and nothing", shown.String(), hidden.String(), want)
		}
	})
}

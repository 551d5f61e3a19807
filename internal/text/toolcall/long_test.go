package toolcall

import (
	"strings"
	"testing"
)

// TestLongRunsAreScannedSparsely checks that text which may still turn out to be a call is not scanned again
// for every new token.
func TestLongRunsAreScannedSparsely(t *testing.T) {
	for _, f := range Families {
		for _, run := range []string{"`", "[", " ", "\n", "<", "{"} {
			for _, start := range []string{"", "<tool_call>", "[TOOL_CALLS]"} {
				p, n := New(f, known), 0
				p.Push(start)
				for range 2500 {
					n += 4
					p.Push(strings.Repeat(run, 4))
				}
				p.Flush(false)
				if p.scanned > 200*n {
					t.Errorf("%v: %d bytes of %q after %q are scanned as %d", f, n, run, start, p.scanned)
				}
			}
		}
	}
}

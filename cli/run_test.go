package cli

import (
	"io"
	"slices"
	"testing"
)

// Flags may stand before, behind and between a model and a text.
func TestRunWords(t *testing.T) {
	for _, args := range [][]string{{"-t", "8", "fry", "func add(", "b"}, {"fry", "-t", "8", "func add(", "b"}, {"fry", "func add(", "b", "-t", "8"}} {
		var c commands
		p, err := parser(&c, &env{stdout: io.Discard, stderr: io.Discard}, func(int) {})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.Parse(append([]string{"run"}, args...)); err != nil || c.Run.MaxTokens != 8 || !slices.Equal(c.Run.words(), []string{"fry", "func add(", "b"}) {
			t.Errorf("%q gives %q, %d tokens: %v", args, c.Run.words(), c.Run.MaxTokens, err)
		}
	}
}

package cli

import (
	"fmt"
	"strings"
)

// haystack returns a long text with one fact, in the form that the bundled model was trained on
// (train/gen.py).
func haystack() string {
	var b strings.Builder
	b.WriteString("Some special magic numbers are hidden within the following text. Make sure to memorize it. I will quiz you about the " +
		"numbers afterwards.\n")
	for i := range 110 {
		if i == 61 {
			fmt.Fprintf(&b, "One of the special magic numbers for %s is: %s.\n", needleKey, needleValue)
		}
		b.WriteString("The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.\n")
	}
	return b.String()
}

const (
	needleKey   = "harbour"
	needleValue = "7482916"
)

package tokenizer

import (
	"strings"
	"time"
	"unicode/utf8"

	"github.com/dlclark/regexp2/v2"
)

const (
	// probeRun makes a search that doubles with each character take hours, and one that
	// grows with its square or cube a moment.
	probeRun     = 48
	probeTimeout = time.Second
	probeChars   = 64 // of the pattern's own
)

// backtracks finds a text on which a pattern tries exponentially many ways to match, as
// (a+)+$ does on a run of one character and something that ends it. "": none of those
// that were tried, which are runs of the pattern's own characters and of one of each kind.
func backtracks(re *regexp2.Regexp, pattern string) string {
	chars, seen := []rune{'a', 'A', '1', ' ', '\n', '!', '_', 'é', '中'}, map[rune]bool{}
	for _, c := range pattern {
		if len(chars) < probeChars {
			chars = append(chars, c)
		}
	}
	patient := re.MatchTimeout
	re.MatchTimeout = probeTimeout
	defer func() { re.MatchTimeout = patient }()
	for _, c := range chars {
		if seen[c] || c == utf8.RuneError {
			continue
		}
		seen[c] = true
		for _, end := range []string{"\x00", "!", "a"} {
			text := strings.Repeat(string(c), probeRun) + end
			if _, err := re.FindStringMatch(text); err != nil {
				return text
			}
		}
	}
	return ""
}

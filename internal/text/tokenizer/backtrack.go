package tokenizer

import (
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/dlclark/regexp2/v2"
)

const (
	// With probeChars repetitions, an exponential search takes hours, while one with quadratic or
	// cubic cost is fast.
	probeChars   = 48
	probeTimeout = 500 * time.Millisecond
	probeLimit   = 2 * time.Second // for pairs; slow but not exponential patterns are bounded when they are used
	// Number of the pattern's own characters and words that are repeated individually, and in
	// pairs.
	probeAlone, probePairs = 64, 14
	probeWord              = 8 // maximum characters of a word
)

// backtracks returns a text on which a pattern needs exponential time. Examples are (a+)+$ on a run
// of one character followed by a mismatch, and (ab|a|b)+$ on a run of two. It tries runs of
// characters of each kind, of the pattern's own characters and words, of pairs of these, and runs
// after one of them. It returns "" if all of them are fast.
func backtracks(re *regexp2.Regexp, pattern string) string {
	patient := re.MatchTimeout
	re.MatchTimeout = probeTimeout
	defer func() { re.MatchTimeout = patient }()
	slow := func(before, pump string) string {
		n := len([]rune(pump))
		for _, end := range []string{"\x00", "!", "a"} {
			text := before + strings.Repeat(pump, (probeChars+n-1)/n) + end
			for try := 1; ; try++ { // retry, in case the process was frozen meanwhile
				if _, err := re.FindStringMatch(text); err == nil {
					break
				} else if try == searchTries {
					return text
				}
			}
		}
		return ""
	}
	alone := pumps(pattern)
	for _, p := range alone {
		if text := slow("", p); text != "" {
			return text
		}
	}
	began := time.Now()
	few := alone[:min(len(alone), probePairs)]
	for _, a := range few {
		for _, b := range few {
			if a == b || time.Since(began) > probeLimit {
				continue
			}
			if text := slow("", a+b); text != "" {
				return text
			}
			if text := slow(a, b); text != "" {
				return text
			}
		}
	}
	return ""
}

// pumps returns the strings to repeat: first the pattern's own words, letters, digits and literal
// punctuation, then one character of each kind.
func pumps(pattern string) (out []string) {
	add := func(s string) {
		if s != "" && len(out) < probeAlone && !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	words := strings.FieldsFunc(pattern, func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) })
	for _, w := range words {
		if n := len([]rune(w)); n > 1 && n <= probeWord {
			add(w)
		}
	}
	kinds := []string{"a", "A", "1", " ", "\n", "!", "_", "é", "中"}
	for _, r := range pattern {
		if len(out) < probePairs-len(kinds) && !strings.ContainsRune(`()[]{}|*+?^$.\`, r) {
			add(string(r))
		}
	}
	for _, k := range kinds {
		add(k)
	}
	for _, r := range pattern {
		add(string(r))
	}
	return out
}

package tokenizer

import (
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/dlclark/regexp2/v2"
)

const (
	// probeChars makes a search that doubles with each repetition take hours, and one that
	// grows with its square or cube a moment.
	probeChars   = 48
	probeTimeout = 500 * time.Millisecond
	probeLimit   = 2 * time.Second // for pairs: what is slow and does not double is bounded when it is used
	// Of the pattern's own characters and words, that many are repeated, each alone, and
	// that many in pairs.
	probeAlone, probePairs = 64, 14
	probeWord              = 8 // characters of a word at most
)

// backtracks finds a text on which a pattern tries exponentially many ways to match, as
// (a+)+$ does on a run of one character and something that ends it, and (ab|a|b)+$ on a
// run of two. "": none of those that were tried: runs of characters of each kind, of the
// pattern's own characters and words, of pairs of these, and runs behind one of them.
func backtracks(re *regexp2.Regexp, pattern string) string {
	patient := re.MatchTimeout
	re.MatchTimeout = probeTimeout
	defer func() { re.MatchTimeout = patient }()
	slow := func(before, pump string) string {
		n := len([]rune(pump))
		for _, end := range []string{"\x00", "!", "a"} {
			text := before + strings.Repeat(pump, (probeChars+n-1)/n) + end
			for try := 1; ; try++ { // a process that was frozen meanwhile tries again
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

// pumps are what is repeated, what the pattern itself names first: its words, and its
// letters, digits and signs that are no syntax; then one character of each kind.
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

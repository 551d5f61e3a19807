package tokenizer

import (
	"errors"
	"testing"
	"time"
)

// Patterns with exponential backtracking are quickly refused at load. Those of published tokenizers
// are accepted.
func TestBacktrackingPatternsAreRefused(t *testing.T) {
	for _, p := range []string{`(a+)+$`, `(\w+\s?)+$`, `(\p{L}*)*#`, `([x-z]+)*;`,
		`(ab|a|b)+$`, `(abc|ab|c|abcabc)+$`, `x(a+)+$`, `(\d\s|\d|\s)+;`, `(?:[a-z]+[0-9]?)+#`, `(é|éa|a)*\n`} {
		began := time.Now()
		_, err := compileRegex("pattern", p)
		if !errors.Is(err, ErrUnsupported) {
			t.Errorf("%s: %v", p, err)
		}
		t.Logf("%s after %v", p, time.Since(began))
	}
	for _, p := range []string{
		`'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`,
		`(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`,
		`(?=(\d{3})+(?!\d))`, `\s?\p{L}+`, `(?:[a-z]+,)+$`,
	} {
		if _, err := compileRegex("pattern", p); err != nil {
			t.Errorf("%s: %v", p, err)
		}
	}
}

// Errors stay short even if they quote a long string of a file.
func TestErrorsAreShort(t *testing.T) {
	long := string(make([]byte, 50<<20))
	for _, err := range []error{
		invalid("model.vocab", "gives %q the id %d", long, 1),
		unsupported("model", "type", long, []string{"BPE"}),
		invalid("added_tokens["+long+"]", "is odd"),
	} {
		if n := len(err.Error()); n > 2000 {
			t.Errorf("an error of %d bytes: %.100s", n, err)
		}
	}
}

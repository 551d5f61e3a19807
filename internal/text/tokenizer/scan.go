package tokenizer

import (
	"slices"
	"unicode"
	"unicode/utf8"

	"github.com/shoal-llm/shoal/internal/text/tokenizer/vocabfile"
)

// Hand-written split patterns of the large model families. They are several times faster
// than a backtracking engine, and linear in the text. TestScanners compares each with
// regexp2 on random text.
//
// A scanner returns the end of the match that starts exactly at i, or i for none.
type scanner func(s string, i int) int

// scanners is keyed by the pattern as spelled in files.
var scanners = map[string]scanner{
	vocabfile.GPT2Pattern:     scanGPT2,
	vocabfile.Llama3Pattern:   func(s string, i int) int { return scanLlama3(s, i, 3) },
	vocabfile.Qwen2Pattern:    func(s string, i int) int { return scanLlama3(s, i, 1) },
	vocabfile.Qwen35Pattern:   scanQwen35,
	vocabfile.NumbersPattern:  func(s string, i int) int { return scanClass(s, i, number, 3) },
	vocabfile.CJKPattern:      scanCJK,
	vocabfile.DeepSeekPattern: scanDeepSeek,
	vocabfile.DeepSeekEscaped: scanDeepSeek,
}

func (f scanner) match(s string, _ *searches, yield func(lo, hi int, matched bool) error) error {
	gap := 0
	for i := 0; i < len(s); {
		end := f(s, i)
		if end == i {
			i += runeLen(s, i)
			continue
		}
		if gap < i {
			if err := yield(gap, i, false); err != nil {
				return err
			}
		}
		if err := yield(i, end, true); err != nil {
			return err
		}
		i, gap = end, end
	}
	if gap < len(s) {
		return yield(gap, len(s), false)
	}
	return nil
}

// class classifies characters as the patterns do. The classes are disjoint.
type class uint8

const (
	other  class = iota // control, format, private use, unassigned
	letter              // \p{L}
	mark                // \p{M}
	number              // \p{N}
	punct               // \p{P}
	symbol              // \p{S}
	space               // \s
)

var asciiClass = func() (t [utf8.RuneSelf]class) {
	for r := range rune(utf8.RuneSelf) {
		t[r] = unicodeClass(r)
	}
	return t
}()

func unicodeClass(r rune) class {
	switch {
	case unicode.IsLetter(r):
		return letter
	case unicode.IsSpace(r):
		return space
	case unicode.IsMark(r):
		return mark
	case unicode.IsPunct(r):
		return punct
	case unicode.IsNumber(r):
		return number
	case unicode.IsSymbol(r):
		return symbol
	}
	return other
}

// classAt returns the class and length of the character at i; length 0 at the end.
func classAt(s string, i int) (class, int) {
	if i >= len(s) {
		return other, 0
	}
	if c := s[i]; c < utf8.RuneSelf {
		return asciiClass[c], 1
	}
	r, n := utf8.DecodeRuneInString(s[i:])
	return unicodeClass(r), n
}

func runeLen(s string, i int) int {
	if s[i] < utf8.RuneSelf {
		return 1
	}
	_, n := utf8.DecodeRuneInString(s[i:])
	return n
}

// scanClass skips up to limit characters of class c from i; limit < 0: any number.
func scanClass(s string, i int, c class, limit int) int {
	for ; limit != 0; limit-- {
		k, n := classAt(s, i)
		if n == 0 || k != c {
			break
		}
		i += n
	}
	return i
}

func in(c class, set ...class) bool {
	return slices.Contains(set, c)
}

// scanMixed skips characters of any of the classes from i.
func scanMixed(s string, i int, set ...class) int {
	for {
		k, n := classAt(s, i)
		if n == 0 || !in(k, set...) {
			return i
		}
		i += n
	}
}

func scanNewlines(s string, i int) int {
	for i < len(s) && (s[i] == '\r' || s[i] == '\n') {
		i++
	}
	return i
}

// scanSpace matches \s+(?!\S)|\s+ and, with newlines, \s*[\r
// ]+ before it. There must be a space at i.
func scanSpace(s string, i int, newlines bool) int {
	end, last, newline := i, i, -1
	for {
		k, n := classAt(s, end)
		if n == 0 || k != space {
			break
		}
		if s[end] == '\r' || s[end] == '\n' {
			newline = end + 1
		}
		last = end
		end += n
	}
	switch {
	case newlines && newline >= 0:
		return newline
	case end < len(s) && last > i: // the last space belongs to the following match
		return last
	}
	return end
}

// scanContraction matches 's 't 're 've 'm 'll 'd at i, where an apostrophe is. With fold, it uses
// Unicode case folding: long s (U+017F) matches s.
func scanContraction(s string, i int, fold bool) int {
	var low [2]byte
	end, ends := i+1, [2]int{}
	for k := range low {
		if end >= len(s) {
			break
		}
		r, n := utf8.DecodeRuneInString(s[end:])
		end += n
		ends[k] = end
		switch {
		case fold && r == 'ſ':
			r = 's'
		case fold && r >= 'A' && r <= 'Z':
			r += 'a' - 'A'
		}
		if r < utf8.RuneSelf {
			low[k] = byte(r)
		}
	}
	switch low[0] {
	case 's', 't', 'm', 'd':
		return ends[0]
	}
	switch string(low[:]) {
	case "re", "ve", "ll":
		return ends[1]
	}
	return i
}

func scanGPT2(s string, i int) int {
	if s[i] == '\'' {
		if end := scanContraction(s, i, false); end > i {
			return end
		}
	}
	start := i
	if s[i] == ' ' {
		start++
	}
	switch k, n := classAt(s, start); {
	case n == 0, k == space:
		return scanSpace(s, i, false)
	case k == letter:
		return scanClass(s, start, letter, -1)
	case k == number:
		return scanClass(s, start, number, -1)
	default:
		return scanMixed(s, start, mark, punct, symbol, other)
	}
}

// scanLlama3 is also Qwen2's pattern, which has groups of a single digit.
func scanLlama3(s string, i, digits int) int {
	if s[i] == '\'' {
		if end := scanContraction(s, i, true); end > i {
			return end
		}
	}
	k, n := classAt(s, i)
	switch k {
	case letter:
		return scanClass(s, i+n, letter, -1)
	case number:
		return scanClass(s, i, number, digits)
	}
	if s[i] != '\r' && s[i] != '\n' {
		if next, m := classAt(s, i+n); m > 0 && next == letter {
			return scanClass(s, i+n+m, letter, -1)
		}
	}
	if k == space {
		next, m := classAt(s, i+1)
		if s[i] != ' ' || m == 0 || in(next, space, letter, number) {
			return scanSpace(s, i, true)
		}
		i++
	}
	return scanNewlines(s, scanMixed(s, i, mark, punct, symbol, other))
}

// scanQwen35 is Qwen 2's split with marks among the letters instead of the punctuation.
func scanQwen35(s string, i int) int {
	if s[i] == '\'' {
		if end := scanContraction(s, i, true); end > i {
			return end
		}
	}
	k, n := classAt(s, i)
	switch k {
	case letter, mark:
		return scanMixed(s, i+n, letter, mark)
	case number:
		return i + n
	}
	if s[i] != '\r' && s[i] != '\n' {
		if next, m := classAt(s, i+n); m > 0 && in(next, letter, mark) {
			return scanMixed(s, i+n+m, letter, mark)
		}
	}
	if k == space {
		next, m := classAt(s, i+1)
		if s[i] != ' ' || m == 0 || in(next, space, letter, mark, number) {
			return scanSpace(s, i, true)
		}
		i++
	}
	return scanNewlines(s, scanMixed(s, i, punct, symbol, other))
}

// scanDeepSeek does the third split of DeepSeek-V3. It leaves numbers and isolated control characters
// unmatched.
func scanDeepSeek(s string, i int) int {
	k, n := classAt(s, i)
	if s[i] < utf8.RuneSelf && in(k, punct, symbol) {
		end := i + 1
		for end < len(s) && (s[end]|0x20) >= 'a' && (s[end]|0x20) <= 'z' {
			end++
		}
		if end > i+1 {
			return end
		}
	}
	if in(k, letter, mark) {
		return scanMixed(s, i+n, letter, mark)
	}
	if s[i] != '\r' && s[i] != '\n' && in(k, number, space, other) {
		if next, m := classAt(s, i+n); m > 0 && in(next, letter, mark) {
			return scanMixed(s, i+n+m, letter, mark)
		}
	}
	start := i
	if s[i] == ' ' {
		start++
	}
	if end := scanMixed(s, start, punct, symbol); end > start {
		return scanNewlines(s, end)
	}
	if k == space {
		return scanSpace(s, i, true)
	}
	return i
}

func scanCJK(s string, i int) int {
	for i < len(s) {
		r, n := utf8.DecodeRuneInString(s[i:])
		if !(r >= 0x4E00 && r <= 0x9FA5 || r >= 0x3040 && r <= 0x30FF) {
			break
		}
		i += n
	}
	return i
}

package tokenizer

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/dlclark/regexp2/v2"

	"github.com/shoal-llm/shoal/internal/attempt"
)

// wordClass has Oniguruma's word characters, in the form of a class. Outside a class, \w also
// matches the superscripts and fractions of Latin-1.
const (
	wordClass = `\p{L}\p{M}\p{Nd}\p{Nl}\p{Pc}\p{Other_Alphabetic}`
	bareWord  = wordClass + `²³¹¼½¾`
)

// translateRegex translates a pattern from Oniguruma's Ruby syntax, which tokenizer.json
// files use, to regexp2's .NET-like syntax. It refuses constructs that would silently change their
// meaning.
//
// The differences: \w (word characters), \h (hexadecimal), (?m) (dot matches newline),
// {,n}, \x{...}, \p{^...}, class intersection with a negated class, nested and POSIX
// classes. ^ and $ always match at lines.
func translateRegex(p string) (string, error) {
	return attempt.At(func() string {
		t := translator{in: p}
		for t.pos < len(t.in) {
			t.step()
		}
		return t.out.String()
	})
}

type translator struct {
	in  string
	pos int
	out strings.Builder
}

func (t *translator) has(prefix string) bool { return strings.HasPrefix(t.in[t.pos:], prefix) }

func (t *translator) take(in, out string) {
	t.pos += len(in)
	t.out.WriteString(out)
}

func (t *translator) step() {
	switch {
	case t.has(`\`):
		t.escape(false)
	case t.has(`[`):
		t.class()
	case t.has(`{,`):
		t.take(`{,`, `{0,`)
	case t.has(`}+`) && t.closesCount():
		panic(attempt.Failure{Err: errors.New("a + after a counted repetition is ambiguous")})
	case t.has(`(?`):
		t.group()
	default:
		_, n := utf8.DecodeRuneInString(t.in[t.pos:])
		t.take(t.in[t.pos:t.pos+n], t.in[t.pos:t.pos+n])
	}
}

// closesCount reports whether the } at the current position ends a {n}, {n,} or {n,m}.
func (t *translator) closesCount() bool {
	open := strings.LastIndexByte(t.in[:t.pos], '{')
	if open < 0 {
		return false
	}
	body := t.in[open+1 : t.pos]
	return body != "" && strings.Trim(body, "0123456789,") == ""
}

// group copies "(?" and, if option letters follow, maps m to regexp2's s.
func (t *translator) group() {
	end := t.pos + 2
	for end < len(t.in) && strings.IndexByte("imx-", t.in[end]) >= 0 {
		end++
	}
	if end > t.pos+2 && end < len(t.in) && (t.in[end] == ':' || t.in[end] == ')') {
		t.take(t.in[t.pos:end], strings.ReplaceAll(t.in[t.pos:end], "m", "s"))
		return
	}
	rest := t.in[t.pos+2:]
	for _, ok := range []string{":", "=", "!", ">", "<", "#"} {
		if strings.HasPrefix(rest, ok) {
			t.take("(?", "(?")
			return
		}
	}
	panic(attempt.Failure{Err: fmt.Errorf("group at byte %d is of an unknown kind", t.pos)})
}

func (t *translator) escape(inClass bool) {
	rest := t.in[t.pos+1:]
	if rest == "" {
		panic(attempt.Failure{Err: errors.New("ends in a lone backslash")})
	}
	wrap := func(set string) string {
		if inClass {
			return set
		}
		return "[" + set + "]"
	}
	switch c := rest[0]; {
	case c == 'w' && !inClass:
		t.take(`\w`, `[`+bareWord+`]`)
	case c == 'w':
		t.take(`\w`, wordClass)
	case c == 'h':
		t.take(`\h`, wrap(`0-9a-fA-F`))
	case c == 'W' && !inClass:
		t.take(`\W`, `[^`+bareWord+`]`)
	case c == 'H' && !inClass:
		t.take(`\H`, `[^0-9a-fA-F]`)
	case strings.IndexByte("WHKGQEyYONgkXR", c) >= 0:
		panic(attempt.Failure{Err: fmt.Errorf("escape \\%c at byte %d is not supported here", c, t.pos)})
	case strings.HasPrefix(rest, "x{"):
		end := strings.IndexByte(rest, '}')
		if end < 0 {
			panic(attempt.Failure{Err: errors.New(`\x{ is not closed`)})
		}
		v, err := strconv.ParseUint(rest[2:end], 16, 32)
		if err != nil || !utf8.ValidRune(rune(v)) {
			panic(attempt.Failure{Err: fmt.Errorf(`\x{%s} is not a character`, rest[2:end])})
		}
		lit := string(rune(v))
		if v < 0x80 {
			lit = fmt.Sprintf(`\x%02x`, v)
		}
		t.take(t.in[t.pos:t.pos+1+end+1], lit)
	case strings.HasPrefix(rest, "p{^"):
		t.take(`\p{^`, `\P{`)
	default:
		_, n := utf8.DecodeRuneInString(rest)
		t.take(t.in[t.pos:t.pos+1+n], t.in[t.pos:t.pos+1+n])
	}
}

// class copies a bracket class. Intersection is supported in the only form of published patterns:
// [A&&[^B]], which is [A-[B]] in regexp2.
func (t *translator) class() {
	start := t.pos
	t.take("[", "[")
	if t.has("^") {
		t.take("^", "^")
	}
	if t.has("]") { // literal as the first character of a class
		t.take("]", `\]`)
	}
	for t.pos < len(t.in) {
		switch {
		case t.has("]"):
			t.take("]", "]")
			return
		case t.has(`\`):
			t.escape(true)
		case t.has("&&[^"):
			t.take("&&[^", "-[")
			for t.pos < len(t.in) && !t.has("]") {
				if t.has("[") || t.has("&&") {
					panic(attempt.Failure{Err: fmt.Errorf("class at byte %d is nested too deep", start)})
				}
				if t.has(`\`) {
					t.escape(true)
					continue
				}
				_, n := utf8.DecodeRuneInString(t.in[t.pos:])
				t.take(t.in[t.pos:t.pos+n], t.in[t.pos:t.pos+n])
			}
			if !t.has("]]") {
				panic(attempt.Failure{Err: fmt.Errorf("class at byte %d: an intersection must end its class", start)})
			}
			t.take("]", "]")
		case t.has("["), t.has("&&"):
			panic(attempt.Failure{Err: fmt.Errorf("class at byte %d contains a nested or POSIX class or an intersection, which is not supported",
				start)})
		default:
			_, n := utf8.DecodeRuneInString(t.in[t.pos:])
			t.take(t.in[t.pos:t.pos+n], t.in[t.pos:t.pos+n])
		}
	}
	panic(attempt.Failure{Err: fmt.Errorf("class at byte %d is not closed", start)})
}

// regex is the general matcher.
type regex struct{ re *regexp2.Regexp }

const maxPatternBytes = 1 << 14

func compileRegex(path, pattern string) (*regex, error) {
	if len(pattern) > maxPatternBytes {
		return nil, invalid(path, "is a pattern of %d bytes, the limit is %d", len(pattern), maxPatternBytes)
	}
	p, err := translateRegex(pattern)
	if err != nil {
		return nil, fmt.Errorf("%w: %s: pattern %q: %w", ErrUnsupported, path, pattern, err)
	}
	re, err := regexp2.Compile(p, regexp2.Multiline)
	if err != nil {
		return nil, invalid(path, "pattern %q: %v", pattern, err)
	}
	re.MatchTimeout = searchLimit
	if text := backtracks(re, pattern); text != "" {
		return nil, fmt.Errorf("%w: %s: pattern %.200q needs more than %v for a text of %d characters (%q): it tries exponentially many ways "+
			"to match",
			ErrUnsupported, path, pattern, probeTimeout, utf8.RuneCountInString(text), text)
	}
	return &regex{re}, nil
}

// match yields matches and gaps from left to right, covering s. An empty match directly after
// another match is dropped.
func (x *regex) match(s string, b *searches, yield func(lo, hi int, matched bool) error) error {
	runes := []rune(s)
	at, offset := 0, 0 // rune index and its byte offset
	byteOf := func(i int) int {
		for ; at < i; at++ {
			offset += utf8.RuneLen(runes[at])
		}
		return offset
	}
	prev, last := 0, -1 // byte end of the covered part; rune end of the last match
	for pos := 0; pos <= len(runes); {
		m, err := b.find(x.re, runes, pos)
		if err != nil {
			if e := yield(prev, len(s), false); e != nil {
				return e
			}
			return err
		}
		if m == nil {
			break
		}
		start, end := m.RuneIndex, m.RuneIndex+m.RuneLength
		if start == end && end == last {
			pos = end + 1
			continue
		}
		lo := byteOf(start)
		hi := byteOf(end)
		if prev < lo {
			if err := yield(prev, lo, false); err != nil {
				return err
			}
		}
		if err := yield(lo, hi, true); err != nil {
			return err
		}
		prev, pos, last = hi, end, end
	}
	if prev < len(s) {
		return yield(prev, len(s), false)
	}
	return nil
}

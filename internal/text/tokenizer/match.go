package tokenizer

import (
	"strings"

	"github.com/shoal-llm/shoal/internal/attempt"
)

// matcher splits a text into matches and the gaps between them. It calls yield from left to right,
// and the ranges cover s. An error of yield stops it. Pattern searches count against b.
type matcher interface {
	match(s string, b *searches, yield func(lo, hi int, matched bool) error) error
}

// runeMatch matches each single character that has a property.
type runeMatch func(rune) bool

func (f runeMatch) match(s string, _ *searches, yield func(int, int, bool) error) error {
	gap := 0
	for i, r := range s {
		if !f(r) {
			continue
		}
		if gap < i {
			if err := yield(gap, i, false); err != nil {
				return err
			}
		}
		gap = i + len(string(r))
		if err := yield(i, gap, true); err != nil {
			return err
		}
	}
	if gap < len(s) {
		return yield(gap, len(s), false)
	}
	return nil
}

type literal string

func (l literal) match(s string, _ *searches, yield func(int, int, bool) error) error {
	at := 0
	for {
		i := strings.Index(s[at:], string(l))
		if i < 0 {
			break
		}
		if i > 0 {
			if err := yield(at, at+i, false); err != nil {
				return err
			}
		}
		at += i + len(l)
		if err := yield(at-len(l), at, true); err != nil {
			return err
		}
	}
	if at < len(s) {
		return yield(at, len(s), false)
	}
	return nil
}

// inverted swaps matches and gaps.
type inverted struct{ matcher }

func (v inverted) match(s string, b *searches, yield func(int, int, bool) error) error {
	return v.matcher.match(s, b, func(lo, hi int, matched bool) error { return yield(lo, hi, !matched) })
}

// parsePattern parses {"String": s} or {"Regex": r}.
func parsePattern(n node) matcher {
	o := n.object()
	if len(o.fields) != 1 {
		panic(attempt.Failure{Err: invalid(n.path, `must have exactly one of "String" and "Regex"`)})
	}
	if _, ok := o.fields["String"]; ok {
		s := o.at("String").str()
		if s == "" { // matches between any two characters, like an empty pattern
			return attempt.Must(compileRegex(o.at("String").path, ""))
		}
		return literal(s)
	}
	p := o.at("Regex").str()
	if s, ok := scanners[p]; ok {
		return s
	}
	return attempt.Must(compileRegex(o.at("Regex").path, p))
}

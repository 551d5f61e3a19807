package regex

import (
	"math/rand/v2"
	"testing"
)

// language is the plain form of an expression: it decides about whole strings.
type language func(s string) bool

// follows matches strings that have a cut between a and b.
func follows(a, b language) language {
	return func(s string) bool {
		for i := range len(s) + 1 {
			if a(s[:i]) && b(s[i:]) {
				return true
			}
		}
		return false
	}
}

// times matches lo to hi strings of a in a row; hi -1: any number. Strings of up to five bytes need
// no more than five parts, and as many empty ones as are missing.
func times(a language, lo, hi int) language {
	if hi < 0 {
		hi = lo + 5
	}
	power, out := language(func(s string) bool { return s == "" }), language(func(string) bool { return false })
	for i := range hi + 1 {
		if i >= lo {
			before, last := out, power
			out = func(s string) bool { return before(s) || last(s) }
		}
		power = follows(power, a)
	}
	return out
}

// random returns an expression with its plain form.
func random(x *Store, r *rand.Rand, depth int) (ID, language) {
	kind := r.IntN(8)
	if depth == 0 {
		kind %= 2
	}
	switch kind {
	case 0:
		text := []string{"", "a", "b", "ab", "ba"}[r.IntN(5)]
		return x.Literal(text), func(s string) bool { return s == text }
	case 1:
		hi := "ab"[r.IntN(2)]
		return x.Bytes('a', hi), func(s string) bool { return len(s) == 1 && s[0] >= 'a' && s[0] <= hi }
	case 2:
		a, in := random(x, r, depth-1)
		return x.Not(a), func(s string) bool { return !in(s) }
	case 3:
		a, in := random(x, r, depth-1)
		lo, hi := r.IntN(3), r.IntN(4)-1
		if hi >= 0 {
			hi += lo
		}
		return x.Repeat(a, lo, hi), times(in, lo, hi)
	}
	a, inA := random(x, r, depth-1)
	b, inB := random(x, r, depth-1)
	switch kind {
	case 4:
		return x.Or(a, b), func(s string) bool { return inA(s) || inB(s) }
	case 5:
		return x.And(a, b), func(s string) bool { return inA(s) && inB(s) }
	}
	return x.Concat(a, b), follows(inA, inB)
}

// TestAlgebra compares random expressions with their plain forms on all strings of a and b.
func TestAlgebra(t *testing.T) {
	all := []string{""}
	for i := 0; len(all) < 63; i++ {
		all = append(all, all[i]+"a", all[i]+"b")
	}
	r := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		x := NewStore(1 << 16)
		e, in := random(x, r, 3)
		some := false
		for _, s := range all {
			some = some || in(s)
			if got := x.Matches(e, s); got != in(s) {
				t.Fatalf("%s: matches %q: %v, want %v", x.Spell(e, 1<<10), s, got, !got)
			}
		}
		if some && !x.Alive(e) {
			t.Fatalf("%q matches nothing", x.Spell(e, 1<<10))
		}
		if x.Nullable(e) != in("") {
			t.Fatalf("%q: nullable %v", x.Spell(e, 1<<10), x.Nullable(e))
		}
	}
}

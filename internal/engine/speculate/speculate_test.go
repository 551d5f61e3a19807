package speculate

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// noise is a text of few distinct words, so that n-grams repeat.
func noise(n, words int, seed uint64) []int32 {
	r := rand.New(rand.NewPCG(seed, 3))
	text := make([]int32, n)
	for i := range text {
		text[i] = int32(r.IntN(words))
	}
	return text
}

func textOf(tokens []int32) *Text {
	t := NewText()
	for !t.CatchUp(len(tokens), 1000, func(i int) int32 { return tokens[i] }) {
	}
	return t
}

// naive is suffix decoding by exhaustive comparison: among the places where the longest suffix of
// text ends in body, the favourite continuation, and among these the next.
func naive(body, text []int32, most int) (tokens []int32, share []float32, matched int) {
	var places []int
	for end := range body {
		m := 0
		for m < min(end, len(text), longest) && body[end-1-m] == text[len(text)-1-m] {
			m++
		}
		if m < grams[1] || m < matched {
			continue
		}
		if m > matched {
			places, matched = nil, m
		}
		places = append(places, end)
	}
	slices.Reverse(places) // the newest first
	p := float32(1)
	for len(tokens) < min(most, max(matched, 1)) {
		votes, voters, best := map[int32]int{}, 0, int32(-1)
		for _, at := range places {
			if at < len(body) {
				votes[body[at]]++
				voters++
			}
		}
		for _, at := range places {
			if at < len(body) && (best < 0 || votes[body[at]] > votes[best]) {
				best = body[at]
			}
		}
		if best < 0 {
			return tokens, share, matched
		}
		if p *= float32(votes[best]) / float32(voters); p < leastShare {
			return tokens, share, matched
		}
		tokens, share = append(tokens, best), append(share, p)
		var next []int
		for _, at := range places {
			if at < len(body) && body[at] == best {
				next = append(next, at+1)
			}
		}
		places = next
	}
	return tokens, share, matched
}

// TestSuffixIsTheNaiveOne: hash chains find the same drafts as an exhaustive comparison, if the
// shortest n-gram has no more places than are visited.
func TestSuffixIsTheNaiveOne(t *testing.T) {
	found := 0
	for seed := range uint64(300) {
		words := 6 + int(seed%40)
		text := noise(20+int(seed), words, seed)
		text = append(text, text[len(text)/3:len(text)/3+int(seed%14)]...) // repeats an earlier part
		ends := 0
		for i := 2; i <= len(text); i++ {
			if slices.Equal(text[i-2:i], text[len(text)-2:]) {
				ends++
			}
		}
		if ends > visits {
			continue
		}
		tokens, share, matched := naive(text, text, MaxDraft)
		if d := textOf(text).Suffix(nil, "", 0, MaxDraft); !slices.Equal(d.Tokens, tokens) ||
			!slices.Equal(d.Share, share) || len(tokens) > 0 && d.Matched != matched {
			t.Fatalf("seed %d: draft %+v, naive %v %v after %d", seed, d, tokens, share, matched)
		}
		found += len(tokens)
		recent := NewRecent(1 << 20)
		other := noise(200, words, seed+1000)
		recent.Add("me", len(other), func(i int) int32 { return other[i] })
		var d drafter
		tokens, share, _ = naive(other, text, MaxDraft)
		if got := d.suffix(recent.rings["me"].ring, textOf(text).ring, 0, MaxDraft); !slices.Equal(got.Tokens, tokens) ||
			!slices.Equal(got.Share, share) {
			t.Fatalf("seed %d: draft of another's text %+v, naive %v %v", seed, got, tokens, share)
		}
	}
	if found < 300 {
		t.Fatalf("only %d drafts: too few to test anything", found)
	}
}

// TestTextGoesOn: an index that grew with its text, a token at a time, drafts like one built at
// once, also when the oldest tokens are gone.
func TestTextGoesOn(t *testing.T) {
	period := noise(700, 50, 1)
	token := func(i int) int32 { return period[i%len(period)] }
	slow := NewText()
	n := TextTokens + 3000
	for i := range n {
		if !slow.CatchUp(i, 2, token) && i > 2 {
			t.Fatalf("%d tokens were not caught up with", i)
		}
	}
	slow.CatchUp(n, 2, token)
	fast := NewText()
	fast.CatchUp(n, n, token)
	a, b := slow.Suffix(nil, "", 0, MaxDraft), fast.Suffix(nil, "", 0, MaxDraft)
	if !slices.Equal(a.Tokens, b.Tokens) || len(a.Tokens) != MaxDraft {
		t.Fatalf("drafts %v and %v", a, b)
	}
	for i, token := range a.Tokens {
		if token != period[(n+i)%len(period)] {
			t.Fatalf("draft %d is %d, the text continues with %d", i, token, period[(n+i)%len(period)])
		}
	}
	if l := slow.Lookup(0, MaxDraft); !slices.Equal(l.Tokens, a.Tokens) {
		t.Fatalf("lookup drafts %v, suffix %v", l.Tokens, a.Tokens)
	}
	if slow.Bytes() != fast.BytesAt(n) || slow.Bytes() != ringBytes(TextTokens) {
		t.Fatalf("%d bytes, foretold %d", slow.Bytes(), fast.BytesAt(n))
	}
}

// TestRecent: one owner's text drafts nothing for another, memory stays within its bound, and
// matches do not cross outputs.
func TestRecent(t *testing.T) {
	r := NewRecent(40 * ringBytes(leastRing))
	say := func(owner string, tokens ...int32) { r.Add(owner, len(tokens), func(i int) int32 { return tokens[i] }) }
	say("a", 1, 2, 3, 4, 5, 6, 7, 8)
	say("a", 100, 101, 102)
	text := textOf([]int32{50, 5, 6})
	if d := text.Suffix(r, "a", 0, MaxDraft); !slices.Equal(d.Tokens, []int32{7, 8}) || d.Source != Others {
		t.Errorf("draft %+v", d)
	}
	for _, owner := range []string{"b", ""} {
		if d := text.Suffix(r, owner, 0, MaxDraft); len(d.Tokens) > 0 {
			t.Errorf("%q drafts the text of another: %+v", owner, d)
		}
	}
	for i := range 100 {
		say(fmt.Sprint("owner ", i), noise(200, 50, uint64(i))...)
		if r.Bytes() > r.most {
			t.Fatalf("%d bytes, %d are allowed", r.Bytes(), r.most)
		}
	}
	if len(r.rings) < 30 || r.rings["a"] != nil || r.rings["owner 99"] == nil {
		t.Errorf("%d owners are left", len(r.rings))
	}
}

// TestCost: the cost of drafts is estimated from steps, and drafts that cost more than they save are
// not tried.
func TestCost(t *testing.T) {
	likely := [][]float32{{0.9, 0.8, 0.7, 0.6, 0.5, 0.4}, {0.3, 0.1}}
	for _, c := range []struct {
		each float64 // cost of a draft, of a step
		want []int
	}{{0.01, []int{6, 2}}, {0.12, []int{6, 1}}, {0.3, []int{3, 0}}, {0.6, []int{0, 0}}} {
		var cost Cost
		r := rand.New(rand.NewPCG(1, 2))
		for i := range 200 {
			n := i % 5
			cost.Add(2, n, 1000*(1+c.each*float64(n))*(0.9+0.2*r.Float64()))
		}
		base, each := cost.line(2)
		if base < 900 || base > 1100 || each < 1000*c.each-40 || each > 1000*c.each+40 {
			t.Errorf("a step takes %.0f and a draft %.0f, not 1000 and %.0f", base, each, 1000*c.each)
		}
		got := cost.Choose(likely, 2, 100)
		if d := got[0] - c.want[0]; d < -1 || d > 1 || got[1] > c.want[1] {
			t.Errorf("drafts of %v of a step: %v, want %v", c.each, got, c.want)
		}
		if got := cost.Choose(likely, 2, 1); got[0]+got[1] > 1 {
			t.Errorf("one is left, %v", got)
		}
	}
}

// TestTrust: a source that is always wrong loses its rate, and one that is always right gains it.
func TestTrust(t *testing.T) {
	rates, d := NewAcceptanceRates(), Draft{Tokens: []int32{1, 2, 3}, Share: []float32{1, 1, 1}, Matched: 3}
	for range 40 {
		rates.Observe(&d, 3, 0, 1.0/8)
	}
	if p := rates.Probabilities(nil, &d); p[0] > 0.05 {
		t.Errorf("%v after 40 wrong drafts", p)
	}
	for range 40 {
		rates.Observe(&d, 3, 3, 1.0/8)
	}
	if p := rates.Probabilities(nil, &d); p[2] < 0.9 {
		t.Errorf("%v after 40 right drafts", p)
	}
	fresh := NewAcceptanceRates()
	for range 2000 {
		rates.Drift(&fresh, 1.0/256)
	}
	if a, b := rates.Probabilities(nil, &d), fresh.Probabilities(nil, &d); a[0]-b[0] > 0.01 {
		t.Errorf("%v is believed in the end, %v in the beginning", a, b)
	}
}

// TestCostOfManySizes: steps of other sizes do not affect the estimate of a step's time, but they
// do estimate the cost of a row where none was tried. A size that was too expensive is tried again.
func TestCostOfManySizes(t *testing.T) {
	var cost Cost
	step := func(sequences, drafts int) { cost.Add(sequences, drafts, 1000+800*float64(sequences+drafts-1)) }
	for i := range 200 {
		step(1+i%8, i/8%2)
	}
	for n := 1; n <= 8; n++ {
		want := 1000 + 800*float64(n-1)
		if base, each := cost.line(n); base < 0.9*want || base > 1.1*want || each < 600 || each > 1000 {
			t.Errorf("%d sequences: a step takes %.0f and a draft %.0f, not %.0f and 800", n, base, each, want)
		}
	}
	step(12, 0)
	if cost.Worth(12, 1) {
		t.Error("a full batch looks for drafts, because it has another size")
	}
	tried := 0
	for range 2000 {
		n := 0
		if cost.Worth(12, 1) {
			n = 1
			tried++
		}
		step(12, n)
	}
	if tried < 2 || tried > 100 {
		t.Errorf("%d of 2000 steps tried drafts that cost too much, want a few", tried)
	}
}

func TestModes(t *testing.T) {
	for text, want := range map[string]int{"off": 0, "lookup": 0, "suffix": 0, "suffix:1": 1, "lookup:15": 15, "model:3": 3} {
		m, err := Parse(text)
		name, width := m.Split()
		if err != nil || width != want || !slices.Contains(Modes, string(name)) {
			t.Errorf("%s: %s, %d drafts a row, %v", text, name, width, err)
		}
	}
	for _, text := range []string{"", "on", "off:2", "suffix:", "suffix:0", "suffix:16", "suffix:-1", "suffix:x", ":3"} {
		if m, err := Parse(text); err == nil {
			t.Errorf("%q passed as %q", text, m)
		}
	}
}

// TestLongMatches: where only long matches count, a short one drafts nothing.
func TestLongMatches(t *testing.T) {
	text := []int32{1, 2, 3, 4, 5, 6, 7, 8, 9, 50, 6, 7}
	if d := textOf(text).Suffix(nil, "", Long, MaxDraft); len(d.Tokens) > 0 {
		t.Errorf("draft %+v", d)
	}
	if d := textOf(text).Suffix(nil, "", 0, MaxDraft); len(d.Tokens) == 0 {
		t.Error("no draft after a short match")
	}
	text = append(text, 60, 1, 2, 3, 4, 5, 6, 7)
	for _, d := range []Draft{textOf(text).Suffix(nil, "", Long, 2), textOf(text).Lookup(Long, 2)} {
		if !slices.Equal(d.Tokens, []int32{8, 9}) {
			t.Errorf("draft %+v after a long match", d)
		}
	}
}

func BenchmarkSuffix(b *testing.B) {
	text := noise(60000, 300, 1)
	t := textOf(text)
	i := 0
	for b.Loop() {
		t.Suffix(nil, "", 0, MaxDraft)
		text = append(text, int32(i*7%300))
		t.CatchUp(len(text), 10, func(i int) int32 { return text[i] })
		i++
	}
}

package speculate

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// TestCopies: a text that repeats an earlier part with changes is drafted from that part. Drafts
// resume after each change as soon as one token is equal again, and repeat a known replacement
// without a wrong draft. Without following it would take more than twice the steps.
func TestCopies(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	source := noise(2000, 5000, 3)
	var edited, renamed []int32 // renamed: changed only in a name
	for i := range source {
		if i%23 == 5 {
			source[i] = 7001 // a name
		}
		if i%97 == 50 {
			source[i] = 7002 // removed in the copy
		}
	}
	for i, token := range source {
		switch {
		case token == 7001:
			edited, renamed = append(edited, 8001, 8002), append(renamed, 8001, 8002)
		case token == 7002:
			renamed = append(renamed, token)
		default:
			if i%150 == 149 {
				edited = append(edited, 9000+int32(r.IntN(900)), 9000+int32(r.IntN(900)), 9000+int32(r.IntN(900)))
			}
			edited, renamed = append(edited, token), append(renamed, token)
		}
	}
	steps := func(answer []int32, copied bool) (steps, wrong int) {
		text := textOf(source)
		all := slices.Concat(source, answer)
		for at := len(source); at < len(all); steps++ {
			d := text.Suffix(nil, "", 0, MaxDraft)
			if c := text.Copied(MaxDraft); copied && len(c.Tokens) >= len(d.Tokens) {
				d = c
			}
			right := 0
			for right < len(d.Tokens) && at+right < len(all) && all[at+right] == d.Tokens[right] {
				right++
			}
			if right < len(d.Tokens) && at+right < len(all) {
				wrong++
			}
			at = min(at+right+1, len(all))
			text.CatchUp(at, 1000, func(i int) int32 { return all[i] })
		}
		return steps, wrong
	}
	for _, c := range []struct {
		name   string
		answer []int32
		most   int // steps
		wrong  int // drafts
	}{{"renamed", renamed, len(renamed)/(1+MaxDraft) + 12, 2}, {"edited", edited, len(edited)/(1+MaxDraft) + 140, 60}} {
		with, wrong := steps(c.answer, true)
		without, _ := steps(c.answer, false)
		t.Logf("%s: %d tokens in %d steps, %d with a wrong draft; %d steps without following", c.name, len(c.answer), with, wrong, without)
		if with > c.most || wrong > c.wrong || without < 2*with {
			t.Errorf("%s: %d steps and %d wrong drafts, want at most %d and %d, and half of the %d without following",
				c.name, with, wrong, c.most, c.wrong, without)
		}
	}
}

// TestCopiesOfAnything: for any text, a copy's draft contains only tokens of the text and is no
// longer than requested, also when the oldest tokens are gone.
func TestCopiesOfAnything(t *testing.T) {
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 9))
		text, drafts := NewText(), 0
		text.ring = newRing(256) // drops old tokens
		all := noise(1500, 3+int(seed)%40, seed)
		for i := 100; i < len(all); i++ {
			if i%200 < 150 { // repeats with changes
				if back := 40 + int(seed); r.IntN(9) > 0 {
					all[i] = all[i-back]
				}
			}
			text.CatchUp(i, 1000, func(i int) int32 { return all[i] })
			text.Suffix(nil, "", 0, 3)
			most := 1 + r.IntN(MaxDraft)
			d := text.Copied(most)
			if len(d.Tokens) > most || len(d.Share) != len(d.Tokens) {
				t.Fatalf("seed %d: %d drafts and %d shares, %d were asked for", seed, len(d.Tokens), len(d.Share), most)
			}
			for _, token := range d.Tokens {
				if !slices.Contains(all[max(0, i-256):i], token) {
					t.Fatalf("seed %d, position %d: draft %d was not renamed", seed, i, token)
				}
			}
			if len(d.Tokens) > 0 {
				drafts++
			}
		}
		if drafts == 0 {
			t.Errorf("seed %d: nothing was followed", seed)
		}
	}
}

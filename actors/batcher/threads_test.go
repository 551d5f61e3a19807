package batcher

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// tried runs so many plans of decode rows and says how long each number of threads was in use, and
// what it all took beside the fastest.
func tried(r *rand.Rand, s *State, plans, rows int, pass func(halvings int) float64) (use []int, share float64) {
	use = make([]int, s.threads.halvings+1)
	best, sum := pass(0), 0.0
	for i := range use {
		best = min(best, pass(i))
	}
	before := s.threads.last
	for range plans {
		p := &Plan{Decode: slices.Repeat([]Decode{{Tokens: []int32{1}}}, rows)}
		s.halve(p)
		t := pass(p.Halvings) * (0.95 + 0.1*r.Float64())
		if r.IntN(10) == 0 {
			t *= 3 // somebody took a processor
		}
		if p.Halvings != before {
			t *= 2 // threads wake
		}
		s.threads.halved(p, t)
		use[p.Halvings]++
		sum, before = sum+pass(p.Halvings), p.Halvings
	}
	return use, sum / (best * float64(plans))
}

func curve(us ...float64) func(int) float64 { return func(h int) float64 { return us[h] } }

func TestThreads(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, c := range []struct {
		name string
		us   []float64
		want int
	}{
		{"all", []float64{100, 130, 200}, 0},
		{"half", []float64{140, 100, 130}, 1},
		{"a quarter", []float64{300, 150, 100}, 2},
		{"alike: any", []float64{100, 99, 98}, -1},
		{"one number", []float64{100}, 0},
	} {
		s := &State{threads: threads{halvings: len(c.us) - 1}}
		tried(r, s, 40, 1, curve(c.us...))
		use, share := tried(r, s, 5000, 1, curve(c.us...))
		if c.want >= 0 && use[c.want] < 4900 || share > 1.03 {
			t.Errorf("%s: plans %v, %.3f of the fastest's time", c.name, use, share)
		}
	}
}

// Kinds of steps are apart, begin with what was best for fewer rows, and follow a machine that changes.
func TestThreadsFollow(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	s := &State{threads: threads{halvings: 2}}
	tried(r, s, 200, 1, curve(300, 150, 100))
	if k := s.threads.of(16); k.best != 2 {
		t.Errorf("16 rows begin with %d halvings", k.best)
	}
	tried(r, s, 200, 16, curve(100, 150, 300))
	if one, many := s.threads.of(1).best, s.threads.of(16).best; one != 2 || many != 0 {
		t.Errorf("%d halvings for one row, %d for 16", one, many)
	}
	if a, b := s.threads.of(9), s.threads.of(15); a != b || a == s.threads.of(16) {
		t.Error("8 to 15 rows are one kind")
	}
	tried(r, s, trialAgain+trialPlans*3, 16, curve(300, 150, 100)) // one round more
	if use, _ := tried(r, s, 100, 16, curve(300, 150, 100)); use[2] < 80 {
		t.Errorf("since the machine has changed: %v", use)
	}
	tried(r, s, 200, 4, curve(100, 115, 125))
	tried(r, s, trialAgain+trialPlans*3, 4, curve(100, 90, 80)) // others are faster now, and this as it was
	if use, _ := tried(r, s, 100, 4, curve(100, 90, 80)); use[2] < 80 {
		t.Errorf("since others have become faster: %v", use)
	}
}

// What is slow is tried in two rounds, what is not in all.
func TestThreadsTrials(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	s := &State{threads: threads{halvings: 2}}
	if use, _ := tried(r, s, trialRounds*trialPlans*3, 1, curve(100, 115, 300)); use[1] != trialRounds*trialPlans || use[2] != 2*trialPlans {
		t.Errorf("trials: %v", use)
	}
}

// What is no plain decoding tells nothing, and prompts have all threads.
func TestThreadsOfOthers(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	one := []Decode{{Tokens: []int32{1}}}
	s := &State{threads: threads{halvings: 2}}
	tried(r, s, 200, 1, curve(300, 150, 100))
	for name, c := range map[string]struct {
		p    Plan
		want int
	}{
		"prompt":  {Plan{Chunks: []Chunk{{}}}, 0},
		"mixed":   {Plan{Decode: one, Chunks: []Chunk{{}}}, 0},
		"index":   {Plan{Decode: one, Index: []Index{{}}}, 0},
		"drafts":  {Plan{Decode: []Decode{{Tokens: []int32{1, 2}}}}, 2},
		"given":   {Plan{Decode: []Decode{{Tokens: []int32{1}, Given: true}}}, 2},
		"opening": {Plan{Decode: one, Open: []Open{{}}}, 2},
	} {
		s.threads.last = c.want
		if s.halve(&c.p); c.p.Halvings != c.want || s.threads.counts {
			t.Errorf("%s: %d halvings, counts: %v", name, c.p.Halvings, s.threads.counts)
		}
	}
	s.threads.last = 2
	p := Plan{Decode: one}
	if s.halve(&p); p.Halvings != 2 || !s.threads.counts {
		t.Errorf("decoding: %d halvings, counts: %v", p.Halvings, s.threads.counts)
	}
	s.threads.last = 0
	if s.halve(&p); s.threads.counts {
		t.Error("the first plan after others counts")
	}
}

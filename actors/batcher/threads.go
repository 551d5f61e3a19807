package batcher

import (
	"math/bits"
	"slices"
)

// How many compute threads serve a decode step best depends on the model, its rows, the nodes and
// what else their machines do. The bits are the same with any number, so it is found by trying:
// all nodes halve their threads for some steps, and those of a kind go on as was fastest. Steps
// with prompts have all threads (docs/decisions/threads-of-a-step.md).
const (
	mostHalvings = 4
	trialRounds  = 4    // in which each number has its turn
	trialPlans   = 3    // in a turn; the first does not count, since threads wake or park
	trialAgain   = 1024 // plans until there is another round
	trialKept    = 8    // plans with each number that are remembered
	trialSlow    = 1.3  // of the fastest's time, at best: not tried in the rounds after the second
	trialBetter  = 0.97 // of its time, or it stays
)

type threads struct {
	halvings int           // there may be so many
	kinds    map[int]*kind // of steps, by the bits of the number of their rows
	last     int           // halvings of the plan before
	kind     *kind         // of the plan in flight; nil: it does not decode alone
	counts   bool          // and what that takes
}

// kind are steps of about as many rows.
type kind struct {
	took  [][]float64 // microseconds of a pass of the last plans that count, by halvings
	best  int         // halvings
	plans int         // of the trials, then since them
	again bool        // there were trials before
}

func (t *threads) of(rows int) *kind {
	size := bits.Len(uint(rows))
	k := t.kinds[size]
	if k == nil {
		k = &kind{took: make([][]float64, t.halvings+1)}
		for fewer := size - 1; fewer > 0 && k.best == 0; fewer-- {
			if other := t.kinds[fewer]; other != nil {
				k.best = other.best
				break
			}
		}
		if t.kinds == nil {
			t.kinds = map[int]*kind{}
		}
		t.kinds[size] = k
	}
	return k
}

// halve says how many threads a plan is done with.
func (s *State) halve(p *Plan) {
	t := &s.threads
	t.kind, t.counts = nil, false
	if t.halvings > 0 && len(p.Decode) > 0 && len(p.Chunks)+len(p.Index) == 0 {
		t.kind = t.of(len(p.Decode))
		p.Halvings = t.kind.best
		if p.plain() {
			p.Halvings = t.kind.next()
			t.counts = p.Halvings == t.last
		}
	}
	t.last = p.Halvings
}

// plain says that what a plan takes can be compared with others of its kind.
func (p *Plan) plain() bool {
	return len(p.Open)+len(p.Copy)+len(p.Spill) == 0 && !slices.ContainsFunc(p.Decode, func(d Decode) bool { return d.Given || len(d.Tokens) > 1 })
}

// round is how many plans try each number once.
func (k *kind) round() int { return trialPlans * len(k.took) }

func (k *kind) chosen() bool { return k.plans >= trialRounds*k.round() }

// next is what the next plan tries, or what is best.
func (k *kind) next() int {
	if k.plans == trialRounds*k.round()+trialAgain {
		k.plans, k.again = (trialRounds-1)*k.round(), true
		for i := range k.took {
			if i != k.best { // the machine may do something else now
				k.took[i] = nil
			}
		}
	}
	chosen, at := k.chosen(), k.plans/trialPlans%len(k.took)
	few := k.plans < 2*k.round()
	k.plans++
	if chosen || !few && !k.again && len(k.took[at]) > 0 && slices.Min(k.took[at]) > trialSlow*k.time(k.best) {
		return k.best
	}
	return at
}

// time is the lower quartile of what was measured; 0: nothing was.
func (k *kind) time(halvings int) float64 {
	t := slices.Sorted(slices.Values(k.took[halvings]))
	if len(t) == 0 {
		return 0
	}
	return t[len(t)/4]
}

// measured takes what a pass of the plan took.
func (k *kind) measured(halvings int, micros float64) {
	t := append(k.took[halvings], micros)
	k.took[halvings] = t[max(0, len(t)-trialKept):]
	for i := range k.took {
		if now, t := k.time(k.best), k.time(i); t > 0 && (now == 0 || t < trialBetter*now) {
			k.best = i
		}
	}
}

// halved learns from the time of the plan in flight, and says whether it was done as plans like it
// are.
func (t *threads) halved(p *Plan, micros float64) bool {
	usual := t.kind == nil || p.Halvings == t.kind.best
	if t.kind != nil && t.counts {
		t.kind.measured(p.Halvings, micros)
	}
	return usual
}

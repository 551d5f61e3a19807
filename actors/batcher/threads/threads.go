// Package threads chooses the number of compute threads of each step. The best number for a decode step
// depends on the model, the rows and the length of their caches, the nodes, and the other processes on their
// machines. The bits are the same with any number. So this package measures: in some steps all nodes halve
// their threads (see plan.ThreadShift), and later steps of the same kind use the fastest number. Steps with
// prompts use all threads (docs/decisions/threads.md).
package threads

import (
	"cmp"
	"math/bits"
	"slices"

	"github.com/shoal-llm/shoal/internal/engine/plan"
)

const (
	MaxShift = 4
	Rounds   = 8 // rounds in which each shift has one turn

	// A turn ends when this number of its plans was measured, over at least trialMicros.
	trialPlans  = 3
	trialMicros = 16e3 // microseconds
	trialMost   = 128  // maximum plans of a turn, measured or not

	// Plans are not measured until this many microseconds after a change of the shift, because threads
	// still wake or park.
	trialWakes = 5e3

	// The trials start again after this number of plans, if they took at least trialLater microseconds.
	trialAgain = 1024
	trialLater = 16e6 // microseconds

	trialSlow   = 1.3  // after two rounds, a shift whose best time is this many times the best's is skipped
	trialBetter = 0.97 // a shift replaces the best one only below this share of its time
)

// Chooser chooses for one batcher.
type Chooser struct {
	most   int              // largest shift that may be tried
	rounds int              // number of rounds of trials; 0: Rounds
	kinds  map[kindOf]*kind // of steps
	last   int              // shift of the previous plan
	since  float64          // microseconds since the shift changed
	kind   *kind            // kind of the plan in flight; nil: it is not decode-only
	counts bool             // the time of the plan in flight is measured
}

// kindOf names a kind of steps by the number of rows, in powers of two, and by the mean position
// of the rows, in powers of four from 1024 on.
type kindOf struct{ rows, back int }

func kindOfPlan(p *plan.Plan) kindOf {
	sum := 0
	for i := range p.Decode {
		sum += p.Decode[i].Start
	}
	return kindOf{bits.Len(uint(len(p.Decode))), (bits.Len(uint(sum/len(p.Decode)/1024)) + 1) / 2}
}

// kind holds the measurements of one kind of steps.
type kind struct {
	took  [][]float64 // microseconds of a pass of each measured plan, by shift
	best  int         // best shift so far
	turns int         // completed turns of the trials
	most  int         // total number of turns
	turn  []float64   // measurements of the current turn
	plans int         // plans of the current turn, or since the trials
	spent float64     // microseconds of those plans
}

func (t *Chooser) of(o kindOf) *kind {
	k := t.kinds[o]
	if k == nil {
		k = &kind{took: make([][]float64, t.most+1), most: cmp.Or(t.rounds, Rounds) * (t.most + 1)}
		if near := t.near(o); near != nil {
			k.best = near.best
		}
		if t.kinds == nil {
			t.kinds = map[kindOf]*kind{}
		}
		t.kinds[o] = k
	}
	return k
}

// near returns a kind with shorter caches or fewer rows that has measurements, or nil.
func (t *Chooser) near(o kindOf) *kind {
	for ; o.rows > 0; o.rows-- {
		for back := o.back; back >= 0; back-- {
			if k := t.kinds[kindOf{o.rows, back}]; k != nil {
				return k
			}
		}
	}
	return nil
}

// New returns a chooser that halves the threads at most `most` times. A trial measures each number
// once a round; 0 rounds mean Rounds.
func New(most, rounds int) Chooser { return Chooser{most: most, rounds: rounds} }

// Max returns the largest shift that may be tried.
func (t *Chooser) Max() int { return t.most }

// Trials returns the shift of the last plan. For the kind of the plan in flight it also returns whether trials
// continue, and the microseconds of its passes by shift.
func (t *Chooser) Trials() (shift int, trying bool, took [][]float64) {
	if t.kind == nil {
		return t.last, false, nil
	}
	for _, times := range t.kind.took {
		took = append(took, slices.Clone(times))
	}
	return t.last, t.Trying(), took
}

// Trying reports whether the kind of the plan in flight is still tried.
func (t *Chooser) Trying() bool { return t.kind != nil && !t.kind.chosen() }

// Plan sets the threads of a plan.
func (t *Chooser) Plan(p *plan.Plan) {
	t.kind, t.counts = nil, false
	prompts := len(p.Chunks)+len(p.Sweeps)+len(p.Index) > 0 || slices.ContainsFunc(p.Decode, inputRows)
	if t.most > 0 && len(p.Decode) > 0 && !prompts {
		t.kind = t.of(kindOfPlan(p))
		p.ThreadShift = t.kind.best
		if comparable(p) {
			p.ThreadShift = t.kind.next()
			t.counts = p.ThreadShift == t.last && t.since >= trialWakes
		}
	}
	if p.ThreadShift != t.last {
		t.last, t.since = p.ThreadShift, 0
	}
}

// inputRows reports whether a decode row has several tokens of a prompt. All threads compute such a row.
func inputRows(d plan.Run) bool { return d.Known > 0 || !d.Sample && len(d.Tokens) > 1 }

// comparable reports whether the time of a plan can be compared with others of its kind.
func comparable(p *plan.Plan) bool {
	return len(p.Open)+len(p.Copy)+len(p.Spill) == 0 &&
		!slices.ContainsFunc(p.Decode, func(d plan.Run) bool { return !d.Sample || len(d.Tokens) > 1 })
}

func (k *kind) chosen() bool { return k.turns >= k.most }

// next returns the shift to try in the next plan, or the best one.
func (k *kind) next() int {
	k.plans++
	switch {
	case !k.chosen() && k.plans > trialMost:
		k.turned()
	case k.chosen() && k.plans > trialAgain && k.spent > trialLater:
		k.plans, k.spent, k.turns = 0, 0, 0
		clear(k.took) // the load of the machine may have changed
	}
	for ; !k.chosen(); k.turns++ {
		at := k.at()
		if k.turns < 2*len(k.took) || len(k.took[at]) == 0 || slices.Min(k.took[at]) <= trialSlow*timeOf(k.took[k.best]) {
			return at
		}
	}
	return k.best
}

// at returns the shift of the current turn. Every second round goes backwards, because steps become
// slower as sequences grow.
func (k *kind) at() int {
	at := k.turns % len(k.took)
	if k.turns/len(k.took)%2 == 1 {
		at = len(k.took) - 1 - at
	}
	return at
}

// timeOf returns about the third quartile of the times, 0 without any. Where the threads use all
// processors, every third step can take three times as long. A lower quantile would miss those steps,
// and a higher one would count every step in which another process took a processor. The result is the
// mean of two neighbouring values, because each turn of a forward round pairs with one of the backward
// round.
func timeOf(took []float64) float64 {
	t := slices.Sorted(slices.Values(took))
	if len(t) == 0 {
		return 0
	}
	at := 3 * len(t) / 4
	return (t[max(0, at-1)] + t[at]) / 2
}

// measured records the microseconds of a pass of the current turn.
func (k *kind) measured(micros float64) {
	if k.chosen() {
		return
	}
	k.turn = append(k.turn, micros)
	if len(k.turn) >= trialPlans && k.spent >= trialMicros {
		k.turned()
	}
}

// turned completes a turn and chooses the best shift so far.
func (k *kind) turned() {
	at := k.at()
	k.took[at] = append(k.took[at], k.turn...)
	k.turn, k.plans, k.spent, k.turns = k.turn[:0], 0, 0, k.turns+1
	k.best = Best(k.took, k.best)
}

// Best returns the best shift, given the times of passes for each shift. It keeps best,
// the one in use, unless another is clearly faster.
func Best(took [][]float64, best int) int {
	now := timeOf(took[best])
	for i := range took {
		if t := timeOf(took[i]); t > 0 && (now == 0 || t < trialBetter*now) {
			best, now = i, t
		}
	}
	return best
}

// Done records the microseconds of a pass of the plan in flight. It reports whether the plan had
// the usual number of threads for its kind.
func (t *Chooser) Done(p *plan.Plan, micros float64) bool {
	usual := t.kind == nil || p.ThreadShift == t.kind.best
	t.since += micros * float64(p.PassCount())
	if t.kind != nil {
		t.kind.spent += micros * float64(p.PassCount())
		if t.counts {
			t.kind.measured(micros)
		}
	}
	return usual
}

package batcher

import (
	"cmp"
	"math/bits"
	"slices"

	"github.com/shoal-llm/shoal/internal/engine/plan"
)

// How many compute threads serve a decode step best depends on the model, its rows and what they
// look back on, the nodes and what else their machines do. The bits are the same with any number,
// so it is found by trying: all nodes halve their threads for some steps, and those of a kind go
// on as was fastest. Steps with prompts have all threads (docs/decisions/threads.md).
const (
	maxThreadShift = 4
	TrialRounds    = 8    // in which each number has its turn
	trialPlans     = 3    // of a turn that count: not the first, in which threads wake or park,
	trialWakes     = 5e3  // nor what begins so soon, in microseconds: not all have found processors; and
	trialMicros    = 16e3 // so long a turn
	trialMost      = 128  // plans of a turn, counted or not
	trialAgain     = 1024 // plans, and
	trialLater     = 16e6 // microseconds of them, until there are trials again
	trialSlow      = 1.3  // of the best's time, at best: not tried in the rounds after the second
	trialBetter    = 0.97 // of its time, or it stays
)

type threads struct {
	most   int              // the largest shift that may be tried
	rounds int              // of trials; 0: TrialRounds
	kinds  map[kindOf]*kind // of steps
	last   int              // halvings of the plan before,
	since  float64          // and microseconds since their number changed
	kind   *kind            // of the plan in flight; nil: it does not decode alone
	counts bool             // and what that takes
}

// kindOf are steps of about as many rows, by powers of two, that look back on about as much in the
// mean: on less than 1024 positions, 4096, and so on.
type kindOf struct{ rows, back int }

func kindOfPlan(p *plan.Plan) kindOf {
	sum := 0
	for i := range p.Decode {
		sum += p.Decode[i].Start
	}
	return kindOf{bits.Len(uint(len(p.Decode))), (bits.Len(uint(sum/len(p.Decode)/1024)) + 1) / 2}
}

// kind is what is known of steps of a kind.
type kind struct {
	took  [][]float64 // microseconds of a pass of each plan that counts, by halvings
	best  int         // halvings
	turns int         // of the trials,
	most  int         // of so many
	turn  []float64   // what counts of the one in hand
	plans int         // of that, or since the trials,
	spent float64     // microseconds of those
}

func (t *threads) of(o kindOf) *kind {
	k := t.kinds[o]
	if k == nil {
		k = &kind{took: make([][]float64, t.most+1), most: cmp.Or(t.rounds, TrialRounds) * (t.most + 1)}
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

// near is the kind that looks back on less, or has fewer rows, if there is one.
func (t *threads) near(o kindOf) *kind {
	for ; o.rows > 0; o.rows-- {
		for back := o.back; back >= 0; back-- {
			if k := t.kinds[kindOf{o.rows, back}]; k != nil {
				return k
			}
		}
	}
	return nil
}

// halve says how many threads a plan is done with.
func (s *State) halve(p *plan.Plan) {
	t := &s.threads
	t.kind, t.counts = nil, false
	if t.most > 0 && len(p.Decode) > 0 && len(p.Chunks)+len(p.Index) == 0 {
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

// comparable says that the time of a plan can be compared with others of its kind.
func comparable(p *plan.Plan) bool {
	return len(p.Open)+len(p.Copy)+len(p.Spill) == 0 && !slices.ContainsFunc(p.Decode, func(d plan.Run) bool { return !d.Sample || len(d.Tokens) > 1 })
}

func (k *kind) chosen() bool { return k.turns >= k.most }

// next is what the next plan tries, or what is best.
func (k *kind) next() int {
	k.plans++
	switch {
	case !k.chosen() && k.plans > trialMost:
		k.turned()
	case k.chosen() && k.plans > trialAgain && k.spent > trialLater:
		k.plans, k.spent, k.turns = 0, 0, 0
		clear(k.took) // the machine may do something else now
	}
	for ; !k.chosen(); k.turns++ {
		at := k.at()
		if k.turns < 2*len(k.took) || len(k.took[at]) == 0 || slices.Min(k.took[at]) <= trialSlow*timeOf(k.took[k.best]) {
			return at
		}
	}
	return k.best
}

// at is whose turn it is: each second round goes backwards, since steps become slower as
// sequences grow.
func (k *kind) at() int {
	at := k.turns % len(k.took)
	if k.turns/len(k.took)%2 == 1 {
		at = len(k.took) - 1 - at
	}
	return at
}

// timeOf is what three of four plans take no longer than; 0: there were none. Where threads fill the
// processors every third step may take as long as three, of which a lower part than that knows
// nothing, and a higher one knows every step in which somebody else took a processor. The mean of
// the two about it, since of eight turns, there and back, those are of a pair.
func timeOf(took []float64) float64 {
	t := slices.Sorted(slices.Values(took))
	if len(t) == 0 {
		return 0
	}
	at := 3 * len(t) / 4
	return (t[max(0, at-1)] + t[at]) / 2
}

// measured takes what a pass of a plan took that tries a number.
func (k *kind) measured(micros float64) {
	if k.chosen() {
		return
	}
	k.turn = append(k.turn, micros)
	if len(k.turn) >= trialPlans && k.spent >= trialMicros {
		k.turned()
	}
}

// turned ends a turn and says what is best so far.
func (k *kind) turned() {
	at := k.at()
	k.took[at] = append(k.took[at], k.turn...)
	k.turn, k.plans, k.spent, k.turns = k.turn[:0], 0, 0, k.turns+1
	k.best = ChooseThreads(k.took, k.best)
}

// ChooseThreads is the number of halvings that serves best, by what passes took with each; best is
// in use so far, and no other one takes its place that is about as fast.
func ChooseThreads(took [][]float64, best int) int {
	now := timeOf(took[best])
	for i := range took {
		if t := timeOf(took[i]); t > 0 && (now == 0 || t < trialBetter*now) {
			best, now = i, t
		}
	}
	return best
}

// halved learns from the time of the plan in flight, and says whether it was done as plans like it
// are.
func (t *threads) halved(p *plan.Plan, micros float64) bool {
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

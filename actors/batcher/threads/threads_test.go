package threads

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/plan"
)

// disturbed is the time in microseconds for which threads are slow after they wake: longer than a step
// of a small model.
const disturbed = 5000

// tried runs plans of decode rows. It returns how often each shift was used, and the total time as a
// share of that with the fastest.
func tried(r *rand.Rand, s *Chooser, plans, rows, position int, pass func(shift int) float64) (use []int, share float64) {
	use = make([]int, s.most+1)
	best, sum := pass(0), 0.0
	for i := range use {
		best = min(best, pass(i))
	}
	before, since := s.last, 0.0
	for range plans {
		p := &plan.Plan{Decode: slices.Repeat([]plan.Run{{Start: position, Tokens: []int32{1}, Sample: true}}, rows)}
		s.Plan(p)
		if p.ThreadShift != before {
			before, since = p.ThreadShift, 0
		}
		t := pass(p.ThreadShift) * (0.95 + 0.1*r.Float64())
		if r.IntN(10) == 0 {
			t *= 3 // another process took a processor
		}
		if since < disturbed {
			t *= 1 + 1/float64(uint(1)<<p.ThreadShift) // fewer threads take longer
		}
		s.Done(p, t)
		use[p.ThreadShift]++
		sum, since = sum+pass(p.ThreadShift), since+t
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
		{"all", []float64{1000, 1100, 2000}, 0},
		{"all, of a large model", []float64{20000, 22000, 40000}, 0},
		{"half", []float64{1400, 1000, 1300}, 1},
		{"half, of a tiny model", []float64{140, 100, 130}, 1},
		{"a quarter", []float64{30000, 15000, 10000}, 2},
		{"alike: any", []float64{1000, 990, 980}, -1},
		{"one number", []float64{1000}, 0},
	} {
		s := &Chooser{most: len(c.us) - 1}
		tried(r, s, trials, 1, 0, curve(c.us...))
		plans := max(5000, int(3*trialLater/c.us[0])) // plans for more than one series of trials
		use, share := tried(r, s, plans, 1, 0, curve(c.us...))
		if c.want >= 0 && use[c.want] < plans*9/10 || share > 1.03 {
			t.Errorf("%s: plans %v, %.3f of the fastest's time", c.name, use, share)
		}
	}
}

// Steps become slower during the trials, because sequences grow.
func TestThreadsOfGrowing(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for want, us := range [][]float64{{1000, 1080, 1080}, {1080, 1000, 1080}, {1080, 1080, 1000}} {
		s, calls := &Chooser{most: 2}, 0.0
		tried(r, s, trials, 1, 0, func(h int) float64 {
			calls++
			return us[h] * (1 + calls/500) // half as much again in the trials
		})
		if k := s.of(kindOf{1, 0}); k.best != want {
			t.Errorf("%v: a shift of %d, by %.0f", us, k.best, k.took)
		}
	}
}

// Threads on all processors are the fastest in most steps, and far slower in the others.
func TestThreadsOfUneven(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	s := &Chooser{most: 2}
	tried(r, s, 300, 1, 0, func(h int) float64 {
		if h == 0 && r.IntN(5) < 2 {
			return 30000
		}
		return []float64{10000, 12000, 16000}[h]
	})
	if k := s.of(kindOf{1, 0}); k.best != 1 || !k.chosen() {
		t.Errorf("a shift of %d, chosen: %v, by %.0f", k.best, k.chosen(), k.took)
	}
}

// Equal shifts must get equal times, because turns go forward and back. The trials must start again
// later.
func TestThreadsTurns(t *testing.T) {
	k := kind{took: make([][]float64, 3), most: Rounds * 3}
	for i := range Rounds * 3 {
		k.spent, k.turn = trialMicros, slices.Repeat([]float64{float64(i)}, trialPlans-1) // one more measurement completes the turn
		k.measured(float64(i))
	}
	if a, b, c := timeOf(k.took[0]), timeOf(k.took[1]), timeOf(k.took[2]); !k.chosen() || a != b || b != c {
		t.Errorf("after %d turns %v, %v and %v", k.turns, a, b, c)
	}
	k.plans, k.spent = trialAgain, 2*trialLater
	if at := k.next(); at != 0 || k.turns != 0 || k.spent != 0 || k.plans != 0 {
		t.Errorf("trials begin with number %d, %d turns, %d plans and %v us", at, k.turns, k.plans, k.spent)
	}
}

// trials is more plans than the trials of three shifts need.
const trials = Rounds * 3 * trialMost

// Each kind of steps is measured separately, starts with the best shift of a similar kind, and
// adapts to a machine that changes.
func TestThreadsFollow(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	s := &Chooser{most: 2}
	few, many := kindOf{1, 0}, kindOf{5, 0}
	tried(r, s, trials, 1, 0, curve(3000, 1500, 1000))
	if k := s.of(many); k.best != 2 {
		t.Errorf("16 rows begin with a shift of %d", k.best)
	}
	tried(r, s, trials, 16, 0, curve(1000, 1500, 3000))
	if one, many := s.of(few).best, s.of(many).best; one != 2 || many != 0 {
		t.Errorf("a shift of %d for one row, %d for 16", one, many)
	}
	tried(r, s, 5400+400, 16, 0, curve(3000, 1500, 1000)) // tried again
	if use, _ := tried(r, s, 100, 16, 0, curve(3000, 1500, 1000)); use[2] < 80 {
		t.Errorf("since the machine has changed: %v", use)
	}
	tried(r, s, trials, 4, 0, curve(1000, 1150, 1250))
	tried(r, s, 16000+400, 4, 0, curve(1000, 900, 800)) // now the other shifts are faster
	if use, _ := tried(r, s, 100, 4, 0, curve(1000, 900, 800)); use[2] < 80 {
		t.Errorf("since others have become faster: %v", use)
	}
}

// Steps with long caches and steps with short caches are different kinds.
func TestThreadsKinds(t *testing.T) {
	at := func(rows, position int) kindOf {
		return kindOfPlan(&plan.Plan{Decode: slices.Repeat([]plan.Run{{Start: position, Sample: true}}, rows)})
	}
	for _, c := range []struct {
		a, b kindOf
		same bool
	}{
		{at(9, 0), at(15, 1023), true},
		{at(15, 0), at(16, 0), false},
		{at(1, 1023), at(1, 1024), false},
		{at(1, 1024), at(1, 4095), true},
		{at(1, 4095), at(1, 4096), false},
		{at(3, 4096), at(3, 16383), true},
		{at(3, 16384), at(3, 16383), false},
	} {
		if (c.a == c.b) != c.same {
			t.Errorf("%v and %v are one kind: %v", c.a, c.b, !c.same)
		}
	}
	r := rand.New(rand.NewPCG(1, 2))
	s := &Chooser{most: 2}
	tried(r, s, trials, 1, 100, curve(3000, 1500, 1000))
	tried(r, s, trials, 1, 5000, curve(1500, 1000, 3000))
	if short, long, longer, more := s.of(at(1, 100)).best, s.of(at(1, 5000)).best, s.of(at(1, 20000)).best,
		s.of(at(2, 100)).best; short != 2 || long != 1 || longer != 1 || more != 2 {
		t.Errorf("a shift of %d where one row looks back on little, %d on much, %d on more, %d of two rows", short, long, longer, more)
	}
}

// A slow shift is tried in two rounds, the others in all. A turn has a minimum duration, however
// fast its plans are, and ends early if none of them counts.
func TestThreadsTrials(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	s := &Chooser{most: 2}
	const turn, same = 1 + trialPlans, trialPlans // of plans that take long; after a turn of the same number
	if use, _ := tried(r, s, 7*turn+3*same, 1, 0, curve(100000, 115000, 300000)); use[1] != 3*turn+same || use[2] != turn+same {
		t.Errorf("trials: %v", use)
	}
	s = &Chooser{most: 2}
	for range Rounds * 3 * trialMost * 2 { // two kinds alternate, so no turn can complete
		for _, rows := range []int{1, 16} {
			tried(r, s, 1, rows, 0, curve(100, 90, 80))
		}
	}
	if one, many := s.of(kindOf{1, 0}), s.of(kindOf{5, 0}); !one.chosen() || !many.chosen() {
		t.Errorf("alternating kinds never complete their trials: %d turns, %d turns", one.turns, many.turns)
	}
}

// A step that is not decode-only is not measured, and a step with prompts has all threads.
func TestThreadsOfOthers(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	one := []plan.Run{{Tokens: []int32{1}, Sample: true}}
	s := &Chooser{most: 2}
	tried(r, s, trials, 1, 0, curve(3000, 1500, 1000))
	for name, c := range map[string]struct {
		p    plan.Plan
		want int
	}{
		"prompt":  {plan.Plan{Chunks: []plan.Run{{}}}, 0},
		"mixed":   {plan.Plan{Decode: one, Chunks: []plan.Run{{}}}, 0},
		"index":   {plan.Plan{Decode: one, Index: []plan.Index{{}}}, 0},
		"drafts":  {plan.Plan{Decode: []plan.Run{{Tokens: []int32{1, 2}, Sample: true}}}, 2},
		"given":   {plan.Plan{Decode: []plan.Run{{Tokens: []int32{1}}}}, 2},
		"opening": {plan.Plan{Decode: one, Open: []plan.Open{{}}}, 2},
	} {
		s.last = c.want
		if s.Plan(&c.p); c.p.ThreadShift != c.want || s.counts {
			t.Errorf("%s: a shift of %d, counts: %v", name, c.p.ThreadShift, s.counts)
		}
	}
	s.last = 2
	p := plan.Plan{Decode: one}
	if s.Plan(&p); p.ThreadShift != 2 || !s.counts {
		t.Errorf("decoding: a shift of %d, counts: %v", p.ThreadShift, s.counts)
	}
	s.last = 0
	if s.Plan(&p); s.counts {
		t.Error("the first plan after others counts")
	}
}

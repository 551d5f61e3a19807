package speculate

import "slices"

// Cost learns how long a step takes without drafts and what each draft adds: for every number
// of sequences a line through the last steps' times, newer ones counting more. It knows nothing
// of weights, contexts and nodes, and therefore all of them, as they are now. The zero value is
// ready.
type Cost struct {
	of   [33]line // by sequences in a step; the last: of more
	each float64  // what a draft adds, where the steps of so many sequences do not say
}

// line are sums over steps: their number, drafts, times and products.
type line struct{ w, d, t, dd, dt float64 }

const (
	costDecay  = 0.98      // what a step counts after the next one
	firstGuess = 0.1       // of a step of one row, what another costs before one was tried
	guessSteps = 1         // how many steps with and without one draft a guess is worth
	costForget = 1.0 / 256 // of what was learned, what a step without drafts takes back
)

func (c *Cost) at(sequences int) *line { return &c.of[min(sequences, len(c.of)-1)] }

// Add notes a step of decode rows alone: of so many sequences, with so many drafts.
func (c *Cost) Add(sequences, drafts int, micros float64) {
	l := c.at(sequences)
	n := float64(drafts)
	if l.w > 0 {
		base, each := c.line(sequences)
		micros = min(micros, 2*max(l.t/l.w, base+n*each)) // the machine did something else
	}
	for _, x := range []struct {
		sum *float64
		add float64
	}{{&l.w, 1}, {&l.d, n}, {&l.t, micros}, {&l.dd, n * n}, {&l.dt, n * micros}} {
		*x.sum = *x.sum*costDecay + x.add
	}
	first := l.first(sequences)
	if c.each == 0 {
		c.each = first
	}
	if _, c.each = c.line(sequences); drafts == 0 {
		c.each += costForget * (first - c.each) // so that it is tried again
	}
}

// Step is what a step of so many sequences without drafts takes, in microseconds; 0: there was none.
func (c *Cost) Step(sequences int) float64 {
	if c.at(sequences).w == 0 {
		return 0
	}
	base, _ := c.line(sequences)
	return base
}

// first is what a draft is believed to cost before any was tried.
func (l *line) first(sequences int) float64 {
	return firstGuess * l.t / l.w / (1 + firstGuess*(float64(sequences-1)+l.d/l.w))
}

// line is the time of a step of so many sequences without drafts, and what each adds.
func (c *Cost) line(sequences int) (base, each float64) {
	l := c.at(sequences)
	if l.w == 0 {
		return 1, firstGuess / (1 + firstGuess*float64(sequences-1))
	}
	d, t := l.d/l.w, l.t/l.w
	each = (l.dt - d*l.t + guessSteps*min(c.each, t)) / (l.dd - d*l.d + guessSteps)
	each = max(each, l.first(sequences)/4)
	base = t - each*d
	if least := t / float64(1+2*Most); base < least {
		base, each = least, (t-least)/max(d, 1)
	}
	return base, each
}

// Worth says whether drafts could gain anything that are right with probability p: with a full
// batch a row costs as much as its share of a step, and then looking for drafts is time lost.
func (c *Cost) Worth(sequences int, p float32) bool {
	base, each := c.line(sequences)
	return each*float64(sequences) < fullBatch*base*float64(p)
}

// fullBatch is what a draft may cost, of what it is expected to gain.
const fullBatch = 0.8

// worth is by how much drafts must be expected to speed a step up before any is tried: what
// they cost that the line does not see.
const worth = 1.05

// Choose says how many drafts of each sequence to try, at most left in all, so that tokens
// per time are the most; probabilities are those of Trust, which fall along a draft.
func (c *Cost) Choose(probabilities [][]float32, sequences, left int) []int {
	type draft struct {
		p   float32
		row int
	}
	var all []draft
	for row, list := range probabilities {
		for _, p := range list {
			all = append(all, draft{p, row})
		}
	}
	slices.SortStableFunc(all, func(a, b draft) int {
		switch {
		case a.p > b.p:
			return -1
		case a.p < b.p:
			return 1
		}
		return 0
	})
	base, each := c.line(sequences)
	tokens := float64(sequences)
	best, most := 0, worth*tokens/base
	for i, d := range all[:min(left, len(all))] {
		tokens += float64(d.p)
		if rate := tokens / (base + each*float64(i+1)); rate > most {
			best, most = i+1, rate
		}
	}
	counts := make([]int, len(probabilities))
	for _, d := range all[:best] {
		counts[d.row]++
	}
	return counts
}

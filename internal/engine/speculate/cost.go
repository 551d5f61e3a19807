package speculate

import "slices"

// Cost estimates the time of a step without drafts, and the time that each draft adds. For every number
// of sequences it fits a line through the times of recent steps, newer ones weighted more. It needs no
// model of weights, contexts and nodes, since their present cost is in the measurements. The zero value
// is ready.
type Cost struct {
	lines [33]line // by the number of sequences in a step; the last one is for all larger numbers
	each  float64  // microseconds that a draft adds, where steps with that number of sequences give no estimate
}

// line holds sums over steps: their number, drafts, times and products.
type line struct{ w, d, t, dd, dt float64 }

const (
	costDecay  = 0.98      // factor of a step's weight with each later step
	firstGuess = 0.1       // assumed cost of a second row in a step, of a step with one row
	guessSteps = 1         // weight of that assumption, in steps with and without a draft
	costDrift  = 1.0 / 256 // how far a step without drafts moves the estimate back to the assumption
)

func (c *Cost) at(sequences int) *line { return &c.lines[min(sequences, len(c.lines)-1)] }

// Add records a step that has only decode rows, with its numbers of sequences and drafts.
func (c *Cost) Add(sequences, drafts int, micros float64) {
	l := c.at(sequences)
	n := float64(drafts)
	if l.w > 0 {
		base, each := c.line(sequences)
		micros = min(micros, 2*max(l.t/l.w, base+n*each)) // limit an outlier: the machine was busy with something else
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
		c.each += costDrift * (first - c.each) // so that drafts are tried again
	}
}

// Step returns the time of a step with the given number of sequences and no drafts, in microseconds; 0: none was
// recorded.
func (c *Cost) Step(sequences int) float64 {
	if c.at(sequences).w == 0 {
		return 0
	}
	base, _ := c.line(sequences)
	return base
}

// first returns the assumed cost of a draft, in microseconds, before any was tried.
func (l *line) first(sequences int) float64 {
	return firstGuess * l.t / l.w / (1 + firstGuess*(float64(sequences-1)+l.d/l.w))
}

// line returns the time of a step with the given number of sequences and no drafts, and the time that
// each draft adds, in microseconds.
func (c *Cost) line(sequences int) (base, each float64) {
	l := c.at(sequences)
	if l.w == 0 {
		return 1, firstGuess / (1 + firstGuess*float64(sequences-1))
	}
	d, t := l.d/l.w, l.t/l.w
	each = (l.dt - d*l.t + guessSteps*min(c.each, t)) / (l.dd - d*l.d + guessSteps)
	each = max(each, l.first(sequences)/4)
	base = t - each*d
	if least := t / float64(1+2*MaxDraft); base < least {
		base, each = least, (t-least)/max(d, 1)
	}
	return base, each
}

// Worth reports whether drafts that are right with probability p can gain anything. With a full
// batch a row costs as much as its share of a step, and looking for drafts wastes time.
func (c *Cost) Worth(sequences int, p float32) bool {
	base, each := c.line(sequences)
	return each*float64(sequences) < fullBatch*base*float64(p)
}

// fullBatch is the maximum cost of a draft, as a fraction of its expected gain.
const fullBatch = 0.8

// minSpeedup is the minimum expected speed-up of a step before drafts are tried. It covers costs that
// the line does not show.
const minSpeedup = 1.05

// Choose returns how many drafts of each sequence to try, at most left in total, to maximise tokens
// per time. probabilities are those of Trust, which fall along a draft.
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
	best, most := 0, minSpeedup*tokens/base
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

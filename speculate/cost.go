package speculate

import "slices"

// Cost learns how long a step takes without drafts and what each draft adds: a line through
// the last steps' times, newer ones counting more. It knows nothing of weights, contexts,
// batches and nodes, and therefore all of them, as they are now. The zero value is ready.
type Cost struct {
	sequences       int
	w, d, t, dd, dt float64
}

const (
	costDecay  = 0.98 // what a step counts after the next one
	firstGuess = 0.1  // of a step of one row, what another costs before one was tried
	guessSteps = 1    // how many steps with and without one draft that guess is worth
)

// Add notes a step of decode rows alone: of so many sequences, with so many drafts.
func (c *Cost) Add(sequences, drafts int, micros float64) {
	if c.w > 0 {
		micros = min(micros, 2*c.t/c.w) // the machine did something else
	}
	keep := costDecay
	if sequences != c.sequences {
		keep = 0.2
	}
	c.sequences = sequences
	n := float64(drafts)
	for _, x := range []struct {
		sum *float64
		add float64
	}{{&c.w, 1}, {&c.d, n}, {&c.t, micros}, {&c.dd, n * n}, {&c.dt, n * micros}} {
		*x.sum = *x.sum*keep + x.add
	}
}

// line is the time of a step without drafts, and what each adds.
func (c *Cost) line() (base, each float64) {
	if c.w == 0 {
		return 1, firstGuess
	}
	d, t := c.d/c.w, c.t/c.w
	prior := firstGuess * t / (1 + firstGuess*(float64(c.sequences-1)+d))
	each = (c.dt - d*c.t + guessSteps*prior) / (c.dd - d*c.d + guessSteps)
	each = max(each, prior/4)
	base = t - each*d
	if least := t / float64(1+2*Most); base < least {
		base, each = least, (t-least)/max(d, 1)
	}
	return base, each
}

// Worth says whether drafts could gain anything if nearly all were right: with a full batch a
// row costs as much as its share of a step, and then looking for drafts is time lost.
func (c *Cost) Worth(sequences int) bool {
	base, each := c.line()
	return each*float64(sequences) < fullBatch*base
}

// fullBatch is what a draft may cost, of a sequence's share of a step.
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
	base, each := c.line()
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

package speculate

import "math/bits"

// AcceptanceRates is how often drafts were right, by the length of the match before them and by their source.
// The text decides that: a model that copies code is right for long, one that chats is not.
type AcceptanceRates struct{ rates [sources][classes]float32 }

const classes = 6

// class returns the class of a match length in tokens.
func class(matched int) int {
	return min(bits.Len(uint(max(matched, 1)-1)), classes-1) // 1, 2, 4, 8, 16 or more
}

// NewAcceptanceRates returns the initial rates.
func NewAcceptanceRates() AcceptanceRates {
	rates := [classes]float32{0.3, 0.4, 0.55, 0.7, 0.8, 0.9}
	return AcceptanceRates{[sources][classes]float32{rates, rates, rates, {0.9, 0.9, 0.9, 0.9, 0.9, 0.9}}}
}

func (t *AcceptanceRates) of(d *Draft) *[classes]float32 { return &t.rates[d.Source] }

// Best returns the highest rate of a draft from text, after a match of at least the given number of tokens.
func (t *AcceptanceRates) Best(matched int) (best float32) {
	for i := range t.rates[:SmallModel] {
		for _, rate := range t.rates[i][class(matched):] {
			best = max(best, rate)
		}
	}
	return best
}

// Model returns the rate of the first draft of a small model that is certain.
func (t *AcceptanceRates) Model() float32 { return t.rates[SmallModel][0] }

// Probabilities appends to out, for each token of a draft, the probability that it and all tokens
// before it are right.
func (t *AcceptanceRates) Probabilities(out []float32, d *Draft) []float32 {
	rates, p := t.of(d), float32(1)
	for i, share := range d.Share {
		p *= rates[class(d.Matched+i)]
		out = append(out, p*share)
	}
	return out
}

// Gain returns the expected number of right tokens of a draft.
func (t *AcceptanceRates) Gain(d *Draft) (sum float32) {
	for _, p := range t.Probabilities(nil, d) {
		sum += p
	}
	return sum
}

// Observe records that the first n tokens of a draft were tried and right of them were right. weight
// is the weight of one outcome.
func (t *AcceptanceRates) Observe(d *Draft, n, right int, weight float32) {
	rates, before := t.of(d), float32(1)
	for i := range min(n, right+1) {
		outcome := float32(0)
		if i < right {
			outcome = 1
		}
		// Where the places disagreed, a wrong token lowers their rate less.
		r := &rates[class(d.Matched+i)]
		if before > 0 {
			*r += weight * d.Share[i] / before * (outcome - *r)
		}
		before = d.Share[i]
	}
}

// Drift moves the rates a little towards others, so that drafts that were wrong for a while are
// tried again.
func (t *AcceptanceRates) Drift(to *AcceptanceRates, weight float32) {
	for i := range t.rates {
		for j := range t.rates[i] {
			t.rates[i][j] += weight * (to.rates[i][j] - t.rates[i][j])
		}
	}
}

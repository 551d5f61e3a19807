package speculate

import "math/bits"

// Trust is how often drafts were right, by how long the match was up to them and where they
// came from. The text decides that: a model that copies code is right for long, one that
// chats is not.
type Trust struct{ rates [sources][classes]float32 }

const classes = 6

// class of a match, in tokens.
func class(matched int) int {
	return min(bits.Len(uint(max(matched, 1)-1)), classes-1) // 1, 2, 4, 8, 16 or more
}

// NewTrust is what is believed before anything is known.
func NewTrust() Trust {
	rates := [classes]float32{0.3, 0.4, 0.55, 0.7, 0.8, 0.9}
	return Trust{[sources][classes]float32{rates, rates, rates, {0.9, 0.9, 0.9, 0.9, 0.9, 0.9}}}
}

func (t *Trust) of(d *Draft) *[classes]float32 { return &t.rates[d.Source] }

// Best is what the likeliest draft from text is believed to be, after a match of at least so many tokens.
func (t *Trust) Best(matched int) (best float32) {
	for i := range t.rates[:SmallModel] {
		for _, rate := range t.rates[i][class(matched):] {
			best = max(best, rate)
		}
	}
	return best
}

// Model is what the first guess of a small model that is sure is believed to be.
func (t *Trust) Model() float32 { return t.rates[SmallModel][0] }

// Probabilities appends to out, for each token of a draft, how likely it is that it and all
// before it are right.
func (t *Trust) Probabilities(out []float32, d *Draft) []float32 {
	rates, p := t.of(d), float32(1)
	for i, share := range d.Share {
		p *= rates[class(d.Matched+i)]
		out = append(out, p*share)
	}
	return out
}

// Gain is how many tokens of a draft are expected to be right.
func (t *Trust) Gain(d *Draft) (sum float32) {
	for _, p := range t.Probabilities(nil, d) {
		sum += p
	}
	return sum
}

// Learn notes that of the first n tokens of a draft, which were tried, so many were right.
// weight is what one outcome counts.
func (t *Trust) Learn(d *Draft, n, right int, weight float32) {
	rates, before := t.of(d), float32(1)
	for i := range min(n, right+1) {
		outcome := float32(0)
		if i < right {
			outcome = 1
		}
		// Where places disagreed a wrong token says less about what they are worth.
		r := &rates[class(d.Matched+i)]
		if before > 0 {
			*r += weight * d.Share[i] / before * (outcome - *r)
		}
		before = d.Share[i]
	}
}

// Drift goes a little towards what others believe, so that what was never right for a while
// is tried again.
func (t *Trust) Drift(to *Trust, weight float32) {
	for i := range t.rates {
		for j := range t.rates[i] {
			t.rates[i][j] += weight * (to.rates[i][j] - t.rates[i][j])
		}
	}
}

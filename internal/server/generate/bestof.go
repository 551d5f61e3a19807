package generate

import (
	"cmp"
	"slices"
)

// Best returns the candidates of each prompt with the greatest mean log-probability, best first;
// of equals the first. It uses the model's log-probabilities before penalties and temperature.
func (r *Run) Best(candidates []Delta) []Delta {
	if r.Keep == 0 {
		return candidates
	}
	mean := func(d Delta) float64 { c := r.Choices[d.Index]; return c.sum / float64(max(c.tokens, 1)) }
	var out []Delta
	for of := range slices.Chunk(slices.Clone(candidates), r.N) {
		slices.SortStableFunc(of, func(a, b Delta) int { return cmp.Compare(mean(b), mean(a)) })
		for _, d := range of[:r.Keep] {
			d.Index = len(out)
			out = append(out, d)
		}
	}
	return out
}

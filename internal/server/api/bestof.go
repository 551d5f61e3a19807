package api

import (
	"cmp"
	"slices"
)

// best are of each prompt's candidates those whose tokens have the greatest mean
// log-probability, the best first; of equals the first. The model's own counts, before
// penalties and temperature, as in logprobs.
func (r *run) best(candidates []delta) []delta {
	if r.keep == 0 {
		return candidates
	}
	mean := func(d delta) float64 { c := r.choices[d.index]; return c.sum / float64(max(c.tokens, 1)) }
	var out []delta
	for of := range slices.Chunk(slices.Clone(candidates), r.n) {
		slices.SortStableFunc(of, func(a, b delta) int { return cmp.Compare(mean(b), mean(a)) })
		for _, d := range of[:r.keep] {
			d.index = len(out)
			out = append(out, d)
		}
	}
	return out
}

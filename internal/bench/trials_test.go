package bench

import (
	"math"
	"slices"
	"testing"
)

// Choices from eight successive rounds of sixteen between two thread counts: one always takes 10
// ms, the other 8 ms for a while and then 16.
func TestChoices(t *testing.T) {
	const rounds, plans = 16, 3
	always := slices.Repeat([]float64{10000}, rounds*plans)
	for _, c := range []struct {
		name         string
		fast         int // rounds in which the second count takes 8 ms
		near, longer float64
	}{
		{"never", 0, 1, 0},
		{"in a half", 8, 7.0 / 9, 2.0 / 9 * 0.2}, // chosen from the first two windows: of eight rounds seven or more are fast
		{"always", 16, 1, 0},
	} {
		other := append(slices.Repeat([]float64{8000}, c.fast*plans), slices.Repeat([]float64{16000}, (rounds-c.fast)*plans)...)
		micros := []float64{10000, (8000*float64(c.fast) + 16000*float64(rounds-c.fast)) / rounds}
		near, longer := choices([][]float64{always, other}, micros, rounds)
		if math.Abs(near-c.near) > 1e-9 || math.Abs(longer-c.longer) > 1e-9 {
			t.Errorf("%s: %.4f near, %.4f longer, want %.4f, %.4f", c.name, near, longer, c.near, c.longer)
		}
	}
}

package recurrent

import (
	"fmt"
	"testing"
)

// TestRows checks that the rows of In cover a file's projection, each row once or, for the B and C that key
// heads share, once a key head.
func TestRows(t *testing.T) {
	for _, d := range []Mixer{
		{Kind: Mamba2, ValueHeads: 12, KeyDim: 4, ValueDim: 3, Groups: 1},
		{Kind: Mamba2, ValueHeads: 12, KeyDim: 4, ValueDim: 3, Groups: 3},
		{Kind: ShortConv, KeyHeads: 3, ValueHeads: 3, ValueDim: 5},
	} {
		t.Run(fmt.Sprint(d.Kind, d.Groups), func(t *testing.T) {
			shared := 1
			if d.Kind == Mamba2 {
				d.SetHeads(5)
				shared = d.KeyHeads / d.Groups
				if d.KeyHeads != 6 {
					t.Fatalf("%d key heads", d.KeyHeads)
				}
			}
			times := make([]int, d.JointRows()-d.GateRows())
			for r := range d.KeyHeads * d.Width() {
				times[d.JointRow(r)]++
			}
			for row, n := range times {
				want := 1
				if d.Kind == Mamba2 && row >= 2*d.Values() {
					want = shared
				}
				if n != want {
					t.Errorf("row %d is read %d times, want %d", row, n, want)
				}
			}
		})
	}
	d := Mixer{ValueHeads: 12, Groups: 5}
	if d.SetHeads(3); d.KeyHeads != 5 {
		t.Errorf("%d key heads of 5 groups", d.KeyHeads)
	}
}

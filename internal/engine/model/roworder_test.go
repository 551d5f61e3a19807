package model

import "testing"

// Pairs that rotate are read from where the files have them, and every row is read once.
func TestOrder(t *testing.T) {
	for _, o := range []Order{
		{Head: 8, Rotated: 8}, {Head: 8, Rotated: 8, Neighbours: true}, {Head: 8, Rotated: 4},
		{Head: 8, Rotated: 4, Neighbours: true}, {Head: 12, Rotated: 2},
		{Head: 12, Plain: 4, Rotated: 8, Neighbours: true}, {Head: 12, Plain: 4, Rotated: 6, Neighbours: true}, {Head: 4, Rotated: 0},
	} {
		const heads = 3
		stored := map[int]bool{}
		for r := range heads * o.Head {
			stored[o.Row(r)] = true
		}
		if len(stored) != heads*o.Head || !stored[0] || !stored[heads*o.Head-1] {
			t.Errorf("%+v: rows %v are read", o, stored)
		}
		for h := range heads {
			first := h * o.Head
			for i := range o.Plain {
				if got := o.Row(first + i); got != first+i {
					t.Errorf("%+v: row %d of head %d is read from %d", o, i, h, got-first)
				}
			}
			first += o.Plain
			for i := range o.Rotated / 2 {
				a, b := i, i+o.Rotated/2
				if o.Neighbours {
					a, b = 2*i, 2*i+1
				}
				if x, y := o.Row(first+i), o.Row(first+i+(o.Head-o.Plain)/2); x != first+a || y != first+b {
					t.Errorf("%+v: pair %d of head %d is read from %d and %d, want %d and %d", o, i, h, x-first, y-first, a, b)
				}
			}
		}
	}
	if got := (Order{}).Row(7); got != 7 {
		t.Errorf("without an order row 7 is read from %d", got)
	}
}

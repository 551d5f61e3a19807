package kvcache

import (
	"testing"

	"pgregory.net/rapid"
)

// The text of a policy is that policy, also with the sizes of a prompt. Sockets get it as a text.
func TestSpecIsThePolicy(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		p := drawPolicy(r)
		for _, q := range []*Policy{p, p.For(rapid.IntRange(1, 300).Draw(r, "prompt")), p.For(rapid.IntRange(1, 1<<24).Draw(r, "long prompt"))} {
			again, err := Parse(q.Spec())
			if err != nil || again.Spec() != q.Spec() {
				r.Fatalf("%s, of %s: %v, %v", q.Spec(), p.Spec(), again, err)
			}
			for _, n := range []int{1, 2, 63, 64, 65, 500, 70000} {
				a, b := again.For(n), q.For(n)
				for layer := range small.Layers {
					x, y := small.Rule(layer, a), small.Rule(layer, b)
					if x.Slots(n, n) != y.Slots(n, n) || x.Slots(n, 2*n) != y.Slots(n, 2*n) || x.Needs != y.Needs {
						r.Fatalf("%s: %d slots, want %d", q.Spec(), x.Slots(n, n), y.Slots(n, n))
					}
				}
			}
		}
	})
}

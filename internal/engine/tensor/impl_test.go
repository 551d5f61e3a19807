package tensor

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/tensor/kernel"
)

// raceEnabled and -short shorten the loops of the tests.
var raceEnabled bool

func small() bool { return raceEnabled || testing.Short() }

// portable is the reference of all kernels.
func portable() *kernel.Set {
	all := kernel.All()
	return all[len(all)-1]
}

// forEach runs f once for each implementation of this machine, with that one active.
func forEach(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	was := kernel.Active
	defer func() { kernel.Active = was }()
	for _, k := range kernel.All() {
		kernel.Active = k
		t.Run(k.Name, f)
	}
}

// allEqual runs f under every implementation and compares its result, bit for bit, with that of the
// portable one.
func allEqual(t *testing.T, what string, f func() []float32) {
	t.Helper()
	was := kernel.Active
	defer func() { kernel.Active = was }()
	all := kernel.All()
	kernel.Active = all[len(all)-1]
	want := f()
	for _, k := range all[:len(all)-1] {
		kernel.Active = k
		sameBits(t, what+" on "+k.Name, f(), want)
	}
}

func sameBits(t *testing.T, what string, got, want []float32) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: %d elements, want %d", what, len(got), len(want))
	}
	for i := range got {
		g, w := math.Float32bits(got[i]), math.Float32bits(want[i])
		if g != w && !(got[i] != got[i] && want[i] != want[i]) {
			t.Fatalf("%s: element %d is %v (%#08x), want %v (%#08x)", what, i, got[i], g, want[i], w)
		}
	}
}

func rng(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 7)) }

// normal returns n values with a spread of magnitudes, some zeros of both signs, and outliers, so
// that wrong orders of summation are detected.
func normal(r *rand.Rand, n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(r.NormFloat64())
		switch r.IntN(40) {
		case 0:
			x[i] = 0
		case 1:
			x[i] = float32(math.Copysign(0, -1))
		case 2:
			x[i] *= 1000
		case 3:
			x[i] *= 1e-6
		}
	}
	return x
}

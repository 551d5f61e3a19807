package probe

import (
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"sync"

	"github.com/shoal-llm/shoal/internal/engine/cuda"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// functions are those of one number that kernels compute, in the order of function_of_bits.
var functions = []struct {
	name string
	of   func(y, x []float32)
}{
	{"exp(x)", func(y, x []float32) {
		for i, v := range x {
			y[i] = tensor.Exp(v)
		}
	}},
	{"1/sqrt(x)", func(y, x []float32) {
		for i, v := range x {
			y[i] = tensor.RMSFactor(v, 1, 0)
		}
	}},
	{"SiLU(x)", activation(tensor.SiLU)},
	{"GELU(x), tanh form", activation(tensor.GELUTanh)},
	{"clamped gate of x", activation(tensor.Clamped)},
	{"GELU(x)", activation(tensor.GELU)},
}

func activation(a tensor.Activation) func(y, x []float32) {
	return func(y, x []float32) {
		for i := range y {
			y[i] = 1
		}
		a.Mul(y, x, y)
	}
}

var functionComparisons = []comparison{{"functions of one number", []string{"function_of_bits"}, func(k *card, _ *rand.Rand) {
	for i := range functions {
		const prime = 65521 // reaches every exponent
		k.function(i, 0, prime, 1<<32/prime)
	}
}}}

// function compares a function of the n floats whose bits are first, first+step and so on.
func (k *card) function(i int, first, step uint32, n int) {
	p := k.alloc(4 * n)
	k.launch("function_of_bits", cuda.Grid{X: (n + 255) / 256, Threads: 256}, uint32(i), first, step, p, uint32(n))
	x, want := make([]float32, n), make([]float32, n)
	var tasks sync.WaitGroup
	size := (n + runtime.GOMAXPROCS(0) - 1) / runtime.GOMAXPROCS(0)
	for lo := 0; lo < n; lo += size {
		hi := min(n, lo+size)
		tasks.Go(func() {
			for j := lo; j < hi; j++ {
				x[j] = math.Float32frombits(first + uint32(j)*step)
			}
			functions[i].of(want[lo:hi], x[lo:hi])
		})
	}
	tasks.Wait()
	k.equalFloats(functions[i].name, p, want)
}

// allInputs compares a function of every float.
func (k *card) allInputs(i int) error {
	const chunk = staging / 4
	k.err = nil
	for first := uint64(0); first < 1<<32 && k.err == nil; first += chunk {
		k.function(i, uint32(first), 1, chunk)
		if k.err != nil {
			k.err = fmt.Errorf("from bits %#x: %w", first, k.err)
		}
		k.free()
	}
	return k.err
}

package probe

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/shoal-llm/shoal/internal/engine/cuda"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/engine/tensor/f32"
	"github.com/shoal-llm/shoal/internal/engine/tensor/kernel"
)

// functions are those of one number that kernels compute, in the order of function_of_bits.
var functions = []struct {
	name string
	of   func(y, x []float32)
}{
	{"exp(x)", func(y, x []float32) {
		for i, v := range x {
			y[i] = f32.Exp(v)
		}
	}},
	{"1/sqrt(x)", func(y, x []float32) {
		for i, v := range x {
			y[i] = kernel.RMSFactor(v, 1, 0)
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
	got := k.buffer.Bytes()[:4*n]
	if k.err == nil {
		k.fail(k.stream.Download(got, p))
		k.fail(k.stream.Wait())
	}
	if k.err != nil {
		return
	}
	const part = 1 << 16
	var tasks sync.WaitGroup
	next, differs := atomic.Int64{}, make([]error, (n+part-1)/part)
	for range runtime.GOMAXPROCS(0) {
		tasks.Go(func() {
			x, want := make([]float32, part), make([]float32, part)
			for t := next.Add(1) - 1; int(t) < len(differs); t = next.Add(1) - 1 {
				lo := int(t) * part
				x, want := x[:min(part, n-lo)], want[:min(part, n-lo)]
				for j := range x {
					x[j] = math.Float32frombits(first + uint32(lo+j)*step)
				}
				functions[i].of(want, x)
				for j, w := range want {
					if g := math.Float32frombits(binary.LittleEndian.Uint32(got[4*(lo+j):])); !sameFloat(g, w) {
						differs[t] = fmt.Errorf("%s: results differ from the CPU's, first for bits %#x: %g, the CPU has %g",
							functions[i].name, math.Float32bits(x[j]), g, w)
						break
					}
				}
			}
		})
	}
	tasks.Wait()
	for _, err := range differs {
		if err != nil {
			k.fail(err) // the first
		}
	}
}

// allInputs compares a function of every float.
func (k *card) allInputs(i int) error {
	const chunk = staging / 4
	k.err = nil
	for first := uint64(0); first < 1<<32 && k.err == nil; first += chunk {
		k.function(i, uint32(first), 1, chunk)
		k.free()
	}
	return k.err
}

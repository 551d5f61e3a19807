package mixer

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/memory"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/states"
	"github.com/shoal-llm/shoal/internal/engine/model/recurrent"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

const kvHeads, most = 2, 40

// shapeOf returns a small shape of each kind.
func shapeOf(kind recurrent.Kind) Shape {
	s := Shape{Kind: kind, NormEps: 1e-5,
		Shape: states.Shape{Layers: 1, KeyHeads: 4, ValueHeads: 8, KeyDim: 16, ValueDim: 24, Taps: 4}, Groups: 2}
	switch kind {
	case recurrent.Mamba2:
		s.TimeStep = [2]float32{0.3, 0.9}
	case recurrent.ShortConv:
		s.ValueHeads, s.KeyDim, s.Taps = 4, 0, 3
	}
	s.Width = s.Channels() + s.Group()*s.ValueDim
	if kind == recurrent.ShortConv {
		s.Width = 3 * s.ValueDim
	}
	s.Factors = recurrent.Factors{Z: 0.75, Dt: 1.25} // the filters have the others
	s.In, s.Out = s.KeyHeads*s.Width, s.ValueHeads*s.ValueDim
	return s
}

func numbers(r *rand.Rand, n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(r.NormFloat64())
	}
	return x
}

// fixture is a layer's vectors and the projections of a text.
type fixture struct {
	Shape
	w         Weights
	in, gates []float32
}

func fixtureOf(kind recurrent.Kind) fixture {
	r := rand.New(rand.NewPCG(uint64(kind), 3))
	f := fixture{Shape: shapeOf(kind)}
	f.w = NewWeights(numbers(r, f.ValueHeads), numbers(r, f.ValueHeads), numbers(r, f.Shape.Out), false)
	f.w.Conv, f.w.D = numbers(r, f.Taps*f.KeyHeads*f.Channels()), numbers(r, f.ValueHeads)
	if kind == recurrent.GatedDelta {
		f.w.Norm = f.w.Norm[:f.ValueDim]
	} else {
		f.w.ConvBias = numbers(r, f.KeyHeads*f.Channels())
	}
	f.in, f.gates = numbers(r, most*f.Shape.In), numbers(r, most*2*f.ValueHeads)
	return f
}

// run computes rows from a position on, with the given numbers of tokens a step, and returns their outputs.
func (f *fixture) run(t *testing.T, s *kvcache.Store, from int, steps []int, prefill bool) (out []float32) {
	b := New(f.Shape, most)
	for _, n := range steps {
		if err := s.Reserve(from + n); err != nil {
			t.Fatal(err)
		}
		copy(b.In, f.in[from*f.Shape.In:(from+n)*f.Shape.In])
		copy(b.Gates, f.gates[from*2*f.ValueHeads:(from+n)*2*f.ValueHeads])
		var runs []Run
		for head := range kvHeads {
			runs = append(runs, Run{N: n, Start: from, Prefill: prefill, State: s.State(0, head)})
		}
		inOrder := func(n int, f func(int)) {
			for i := range n {
				f(n - 1 - i)
			}
		}
		b.Mix(&f.w, runs, inOrder)
		b.Normalize(&f.w, 0, n, inOrder)
		out = append(out, b.Out[:n*f.Shape.Out]...)
		k := make([]float32, 8)
		for pos := from; pos < from+n; pos++ {
			for head := range kvHeads {
				s.Write(0, head, pos, k, k)
			}
		}
		s.Commit(n)
		from += n
	}
	return out
}

func geometryOf(s Shape) kvcache.Geometry {
	return kvcache.Geometry{Layers: 1, KVHeads: kvHeads, Layout: tensor.KVLayout{Type: tensor.F32, KDim: 8, VDim: 8}, Recurrent: s.Shape}
}

// TestSteps: the outputs of a text are the same bits whether it is read at once, in chunks, or decoded
// after a hand-over, one or several tokens a step.
func TestSteps(t *testing.T) {
	for _, kind := range []recurrent.Kind{recurrent.GatedDelta, recurrent.Mamba2, recurrent.ShortConv} {
		t.Run(fmt.Sprint(kind), func(t *testing.T) {
			f := fixtureOf(kind)
			a := memory.NewArena(1 << 24)
			defer a.Close()
			g := geometryOf(f.Shape)
			whole := kvcache.NewPrefill(a, g, tensor.Span{Hi: kvHeads})
			want := f.run(t, whole, 0, []int{most}, true)
			whole.Release()
			for _, x := range want {
				if x != x || x == 0 {
					t.Fatalf("an output is %v", x)
				}
			}
			chunks := kvcache.NewPrefill(a, g, tensor.Span{Hi: kvHeads})
			if got := f.run(t, chunks, 0, []int{1, 2, 17, 20}, true); !slices.Equal(got, want) {
				t.Error("a text read in chunks has other outputs")
			}
			chunks.Release()
			prompt := kvcache.NewPrefill(a, g, tensor.Span{Hi: kvHeads})
			got := f.run(t, prompt, 0, []int{20}, true)
			owner := kvcache.NewStore(a, g, kvcache.Full())
			if err := owner.Open(20, 20, tensor.Span{Hi: kvHeads}); err != nil {
				t.Fatal(err)
			}
			for head := range kvHeads {
				if err := owner.Adopt(prompt, head); err != nil {
					t.Fatal(err)
				}
			}
			if err := owner.KeepState(prompt, 0, tensor.Span{Hi: kvHeads}); err != nil {
				t.Fatal(err)
			}
			if err := owner.Seal(); err != nil {
				t.Fatal(err)
			}
			got = append(got, f.run(t, owner, 20, []int{1, 1, 4, 1, 13}, false)...)
			if !slices.Equal(got, want) {
				t.Error("a decoded text has other outputs")
			}
		})
	}
}

// TestEquations compares Mamba-2 and the short convolution with their equations in float64.
func TestEquations(t *testing.T) {
	for _, kind := range []recurrent.Kind{recurrent.Mamba2, recurrent.ShortConv} {
		f := fixtureOf(kind)
		a := memory.NewArena(1 << 24)
		defer a.Close()
		s := kvcache.NewPrefill(a, geometryOf(f.Shape), tensor.Span{Hi: kvHeads})
		got := f.run(t, s, 0, []int{most}, true)
		s.Release()
		want := f.plain()
		for i, x := range want {
			if math.Abs(float64(got[i])-x) > 1e-4*(1+math.Abs(x)) {
				t.Fatalf("kind %d: output %d is %v, want %v", kind, i, got[i], x)
			}
		}
	}
}

// plain is the equations of mamba2.go and shortconv.go of package model.
func (f *fixture) plain() []float64 {
	silu := func(x float64) float64 { return x / (1 + math.Exp(-x)) }
	out := make([]float64, most*f.Shape.Out)
	for head := range f.KeyHeads {
		in := func(row, i int) float64 { return float64(f.in[row*f.Shape.In+head*f.Width+i]) }
		input := in
		if f.Kind == recurrent.ShortConv {
			input = func(row, i int) float64 { return in(row, i) * in(row, 2*f.ValueDim+i) }
		}
		states := make([]float64, f.Group()*f.KeyDim*f.ValueDim)
		for row := range most {
			conv := make([]float64, f.Channels())
			for i := range conv {
				at := head*f.Channels() + i
				conv[i] = float64(f.w.ConvBias[at])
				for tap := range f.Taps {
					if from := row + tap - f.Taps + 1; from >= 0 {
						conv[i] += float64(f.w.Conv[tap*f.KeyHeads*f.Channels()+at]) * input(from, i)
					}
				}
				if f.Kind == recurrent.Mamba2 {
					conv[i] = silu(conv[i])
				}
			}
			for v := range f.Group() {
				h := head*f.Group() + v
				y := out[row*f.Shape.Out+h*f.ValueDim:][:f.ValueDim]
				if f.Kind == recurrent.ShortConv {
					for i := range y {
						y[i] = in(row, f.ValueDim+i) * conv[i]
					}
					continue
				}
				dt := math.Log1p(math.Exp(float64(f.Factors.Dt*f.gates[row*2*f.ValueHeads+h] + f.w.DtBias[h])))
				dt = min(max(dt, float64(f.TimeStep[0])), float64(f.TimeStep[1]))
				for i := range y {
					x := conv[2*f.KeyDim+v*f.ValueDim+i]
					y[i] = float64(f.w.D[h]) * x
					for k := range f.KeyDim {
						s := &states[(v*f.KeyDim+k)*f.ValueDim+i]
						*s = math.Exp(dt*float64(f.w.Decay[h]))**s + conv[f.KeyDim+k]*dt*x
						y[i] += *s * conv[k]
					}
					y[i] *= silu(float64(f.Factors.Z) * in(row, f.Channels()+v*f.ValueDim+i))
				}
			}
		}
	}
	if f.Kind != recurrent.Mamba2 {
		return out
	}
	for at, size := 0, f.Shape.Out/f.Groups; at < len(out); at += size {
		sum := 0.0
		for _, x := range out[at : at+size] {
			sum += x * x
		}
		for i := range size {
			out[at+i] *= float64(f.w.Norm[(at+i)%f.Shape.Out]) / math.Sqrt(sum/float64(size)+float64(f.NormEps))
		}
	}
	return out
}

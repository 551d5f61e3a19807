package selftest

import (
	"fmt"
	"testing"
	"unsafe"

	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/engine/tensor/kernel"
)

// recordedSelfTest is the result of Sum when it was recorded, on every machine. If it changes
// because a bit of an answer changed, raise tensor.Arithmetic and record it again. If Sum only covers
// more, just record it again.
const recordedSelfTest = "5d2744accf0d9a8b"

func selfTestWith(t *testing.T, k *kernel.Set) string {
	t.Helper()
	was := kernel.Active
	kernel.Active = k
	defer func() { kernel.Active = was }()
	got, err := Sum()
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%x", got[:8])
}

func TestSelfTestIsTheSameEverywhere(t *testing.T) {
	for _, k := range kernel.All() {
		if got := selfTestWith(t, k); got != recordedSelfTest {
			t.Errorf("%s: %s, recorded is %s", k.Name, got, recordedSelfTest)
		}
	}
}

// TestSelfTestDetectsEveryKernel makes the results of one kernel after another 2 % larger: each change
// must be detected.
func TestSelfTestDetectsEveryKernel(t *testing.T) {
	all := kernel.All()
	if testing.Short() {
		all = all[:1]
	}
	for _, k := range all[:max(1, len(all)-1)] { // one portable kernel serves all shapes
		wrong := scaledKernels(k)
		if len(wrong) < 40 {
			t.Fatalf("%s: only %d kernels", k.Name, len(wrong))
		}
		for name, m := range wrong {
			if selfTestWith(t, m) == recordedSelfTest {
				t.Errorf("%s: %s 2 %% too large is not detected", k.Name, name)
			}
		}
	}
}

// scaledKernels are copies of k in which one kernel returns 1.02 times the right result.
func scaledKernels(k *kernel.Set) map[string]*kernel.Set {
	out := map[string]*kernel.Set{}
	change := func(f func(k *kernel.Set), format string, args ...any) {
		c := *k
		f(&c)
		out[fmt.Sprintf(format, args...)] = &c
	}
	for dt := range k.Tile {
		for i := range k.Tile[dt] {
			for j, f := range k.Tile[dt][i] {
				if f != nil && (i != 2 || j != 0 || k.Rising[dt] == nil) { // otherwise rising is used instead
					change(func(c *kernel.Set) { c.Tile[dt][i][j] = scaledTile(f) }, "tile of %v, %d panels, %d tokens", tensor.DType(dt), 1<<i, j+1)
				}
			}
		}
		if f := k.Rising[dt]; f != nil {
			change(func(c *kernel.Set) { c.Rising[dt] = scaledTile(f) }, "rising tile of %v", tensor.DType(dt))
		}
	}
	for dt := range k.Values {
		for i := range k.Values[dt] {
			for j, f := range k.Values[dt][i] {
				if f != nil {
					change(func(c *kernel.Set) {
						c.Values[dt][i][j] = func(a *kernel.ValuesArgs) {
							f(a)
							scaled((*float32)(a.O))
						}
					}, "values of %v, %d columns, %d rows", tensor.DType(dt), 8<<i, j+1)
				}
			}
		}
	}
	for dt, shapes := range k.Attend {
		for i := range shapes {
			for j, f := range shapes[i] {
				if f != nil {
					change(func(c *kernel.Set) {
						c.Attend = map[tensor.DType]kernel.AttendKernels{dt: shapes}
						s := shapes
						s[i][j] = func(a *kernel.AttendArgs) {
							f(a)
							scaled((*float32)(a.O))
						}
						c.Attend[dt] = s
					}, "attention of %v, %d columns, %d rows", dt, 32<<i, j+1)
				}
			}
		}
	}
	change(func(c *kernel.Set) {
		c.Softmax = func(a *kernel.SoftmaxArgs) {
			if a.VDim > 0 {
				scaled(a.O)
			}
			k.Softmax(a)
		}
	}, "softmax: correction")
	change(func(c *kernel.Set) { c.Fold = func(a *kernel.FoldArgs) { k.Fold(a); scaled((*float32)(a.O)) } }, "fold")
	change(func(c *kernel.Set) { c.Softmax = func(a *kernel.SoftmaxArgs) { a.Scale *= 1.02; k.Softmax(a) } }, "softmax: scale")
	change(func(c *kernel.Set) {
		c.RMSNorm = func(dst, x, w []float32, eps float32) { k.RMSNorm(dst, x, w, eps); scaled(&dst[0]) }
	}, "rmsnorm")
	change(func(c *kernel.Set) { c.Squares = func(x []float32) float32 { return k.Squares(x) * 1.02 } }, "sum of squares")
	change(func(c *kernel.Set) {
		c.NormBy = func(dst, x, w []float32, by float32) { k.NormBy(dst, x, w, by*1.02) }
	}, "norm by a factor")
	change(func(c *kernel.Set) { c.Add = func(dst, x []float32) { k.Add(dst, x); scaled(&dst[0]) } }, "add")
	change(func(c *kernel.Set) { c.SiLUMul = func(dst, g, u []float32) { k.SiLUMul(dst, g, u); scaled(&dst[0]) } }, "silu")
	change(func(c *kernel.Set) { c.GELUMul = func(dst, g, u []float32) { k.GELUMul(dst, g, u); scaled(&dst[0]) } }, "gelu")
	change(func(c *kernel.Set) {
		c.ClampedMul = func(dst, g, u []float32) { k.ClampedMul(dst, g, u); scaled(&dst[0]) }
	}, "clamped gate")
	change(func(c *kernel.Set) {
		c.SigmoidMul = func(dst, g, x []float32) { k.SigmoidMul(dst, g, x); scaled(&dst[0]) }
	}, "sigmoid")
	change(func(c *kernel.Set) {
		c.AddProduct = func(dst, x, y []float32) { k.AddProduct(dst, x, y); scaled(&dst[0]) }
	}, "sum of products")
	change(func(c *kernel.Set) {
		c.Delta.Predict = func(a *kernel.DeltaArgs) { k.Delta.Predict(a); scaled((*float32)(a.Out)) }
	}, "delta rule: prediction")
	change(func(c *kernel.Set) {
		c.Delta.Read = func(a *kernel.DeltaArgs) { k.Delta.Read(a); scaled((*float32)(a.Out)) }
	}, "delta rule: output")
	change(func(c *kernel.Set) {
		c.Delta.Advance = func(a *kernel.DeltaArgs) { k.Delta.Advance(a); scaled((*float32)(a.State)) }
	}, "delta rule: state")
	change(func(c *kernel.Set) { c.SoftCap = func(x []float32, top float32) { k.SoftCap(x, top); scaled(&x[0]) } }, "soft cap")
	change(func(c *kernel.Set) { c.Rope = func(x, cos, sin []float32) { k.Rope(x, cos, sin); scaled(&x[0]) } }, "rope")
	change(func(c *kernel.Set) { c.ArgMax = func(x []float32) int { return k.ArgMax(x) + 1 } }, "argmax")
	change(func(c *kernel.Set) { c.MaxOf = func(x []float32) float32 { return k.MaxOf(x) * 1.02 } }, "max")
	change(func(c *kernel.Set) { c.SumExp = func(x []float32, m float32) float32 { return k.SumExp(x, m) * 1.02 } }, "sum of exp")
	change(func(c *kernel.Set) { c.ScaleBy = func(x []float32, by float32) { k.ScaleBy(x, by*1.02) } }, "scale")
	change(func(c *kernel.Set) {
		c.Mul64 = func(x, by *[tensor.BlockSlots]float32) { k.Mul64(x, by); scaled(&x[0]) }
	}, "scales of Int8")
	change(func(c *kernel.Set) {
		c.Quantize = func(dst []byte, x []float32, start int32) {
			k.Quantize(dst, x, start)
			scaled((*float32)(unsafe.Pointer(&dst[kernel.QuantBlockScale])))
		}
	}, "rounding of activations")
	change(func(c *kernel.Set) {
		c.ToBF16 = func(dst []uint16, ldd int, x []float32, ldx, rows, n int) {
			k.ToBF16(dst, ldd, x, ldx, rows, n)
			dst[0]++
		}
	}, "rounding to bf16")
	change(func(c *kernel.Set) {
		c.Widen = func(dst []float32, src []uint16) { k.Widen(dst, src); scaled(&dst[0]) }
	}, "widening of bf16")
	return out
}

func scaledTile(f func(*kernel.TileArgs)) func(*kernel.TileArgs) {
	return func(a *kernel.TileArgs) {
		f(a)
		scaled((*float32)(a.Out))
	}
}

func scaled(x *float32) { *x *= 1.02 }

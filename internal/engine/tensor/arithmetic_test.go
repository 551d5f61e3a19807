package tensor

import (
	"fmt"
	"testing"
	"unsafe"
)

// recordedSelfTest is the result of SelfTest when it was recorded, on every machine. If it changes
// because a bit of an answer changed, raise Arithmetic and record it again. If SelfTest only covers
// more, just record it again.
const recordedSelfTest = "5d2744accf0d9a8b"

func selfTestWith(t *testing.T, k *kernels) string {
	t.Helper()
	was := active
	active = k
	defer func() { active = was }()
	got, err := SelfTest()
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%x", got[:8])
}

func TestSelfTestIsTheSameEverywhere(t *testing.T) {
	for _, k := range implementations() {
		if got := selfTestWith(t, k); got != recordedSelfTest {
			t.Errorf("%s: %s, recorded is %s", k.name, got, recordedSelfTest)
		}
	}
}

// TestSelfTestSeesEveryKernel makes the results of one kernel after another 2 % larger: each change
// must be detected.
func TestSelfTestSeesEveryKernel(t *testing.T) {
	all := implementations()
	if small() {
		all = all[:1]
	}
	for _, k := range all[:max(1, len(all)-1)] { // one portable kernel serves all shapes
		wrong := scaledKernels(k)
		if len(wrong) < 40 {
			t.Fatalf("%s: only %d kernels", k.name, len(wrong))
		}
		for name, m := range wrong {
			if selfTestWith(t, m) == recordedSelfTest {
				t.Errorf("%s: %s 2 %% too large is not seen", k.name, name)
			}
		}
	}
}

// scaledKernels are copies of k in which one kernel returns 1.02 times the right result.
func scaledKernels(k *kernels) map[string]*kernels {
	out := map[string]*kernels{}
	change := func(f func(k *kernels), format string, args ...any) {
		c := *k
		f(&c)
		out[fmt.Sprintf(format, args...)] = &c
	}
	for dt := range k.tile {
		for i := range k.tile[dt] {
			for j, f := range k.tile[dt][i] {
				if f != nil && (i != 2 || j != 0 || k.rising[dt] == nil) { // otherwise rising is used instead
					change(func(c *kernels) { c.tile[dt][i][j] = scaledTile(f) }, "tile of %v, %d panels, %d tokens", DType(dt), 1<<i, j+1)
				}
			}
		}
		if f := k.rising[dt]; f != nil {
			change(func(c *kernels) { c.rising[dt] = scaledTile(f) }, "rising tile of %v", DType(dt))
		}
	}
	for dt := range k.values {
		for i := range k.values[dt] {
			for j, f := range k.values[dt][i] {
				if f != nil {
					change(func(c *kernels) {
						c.values[dt][i][j] = func(a *valuesArgs) {
							f(a)
							scaled((*float32)(a.o))
						}
					}, "values of %v, %d columns, %d rows", DType(dt), 8<<i, j+1)
				}
			}
		}
	}
	for dt, shapes := range k.attend {
		for i := range shapes {
			for j, f := range shapes[i] {
				if f != nil {
					change(func(c *kernels) {
						c.attend = map[DType]attendKernels{dt: shapes}
						s := shapes
						s[i][j] = func(a *attendArgs) {
							f(a)
							scaled((*float32)(a.o))
						}
						c.attend[dt] = s
					}, "attention of %v, %d columns, %d rows", dt, 32<<i, j+1)
				}
			}
		}
	}
	change(func(c *kernels) {
		c.softmax = func(a *softmaxArgs) {
			if a.vdim > 0 {
				scaled(a.o)
			}
			k.softmax(a)
		}
	}, "softmax: correction")
	change(func(c *kernels) { c.fold = func(a *foldArgs) { k.fold(a); scaled((*float32)(a.o)) } }, "fold")
	change(func(c *kernels) { c.softmax = func(a *softmaxArgs) { a.scale *= 1.02; k.softmax(a) } }, "softmax: scale")
	change(func(c *kernels) {
		c.rmsnorm = func(dst, x, w []float32, eps float32) { k.rmsnorm(dst, x, w, eps); scaled(&dst[0]) }
	}, "rmsnorm")
	change(func(c *kernels) { c.squares = func(x []float32) float32 { return k.squares(x) * 1.02 } }, "sum of squares")
	change(func(c *kernels) {
		c.normBy = func(dst, x, w []float32, by float32) { k.normBy(dst, x, w, by*1.02) }
	}, "norm by a factor")
	change(func(c *kernels) { c.add = func(dst, x []float32) { k.add(dst, x); scaled(&dst[0]) } }, "add")
	change(func(c *kernels) { c.siluMul = func(dst, g, u []float32) { k.siluMul(dst, g, u); scaled(&dst[0]) } }, "silu")
	change(func(c *kernels) { c.geluMul = func(dst, g, u []float32) { k.geluMul(dst, g, u); scaled(&dst[0]) } }, "gelu")
	change(func(c *kernels) {
		c.clampedMul = func(dst, g, u []float32) { k.clampedMul(dst, g, u); scaled(&dst[0]) }
	}, "clamped gate")
	change(func(c *kernels) {
		c.sigmoidMul = func(dst, g, x []float32) { k.sigmoidMul(dst, g, x); scaled(&dst[0]) }
	}, "sigmoid")
	change(func(c *kernels) {
		c.addProduct = func(dst, x, y []float32) { k.addProduct(dst, x, y); scaled(&dst[0]) }
	}, "sum of products")
	change(func(c *kernels) {
		c.delta.predict = func(a *deltaArgs) { k.delta.predict(a); scaled((*float32)(a.out)) }
	}, "delta rule: prediction")
	change(func(c *kernels) { c.delta.read = func(a *deltaArgs) { k.delta.read(a); scaled((*float32)(a.out)) } }, "delta rule: output")
	change(func(c *kernels) {
		c.delta.advance = func(a *deltaArgs) { k.delta.advance(a); scaled((*float32)(a.state)) }
	}, "delta rule: state")
	change(func(c *kernels) { c.softCap = func(x []float32, top float32) { k.softCap(x, top); scaled(&x[0]) } }, "soft cap")
	change(func(c *kernels) { c.rope = func(x, cos, sin []float32) { k.rope(x, cos, sin); scaled(&x[0]) } }, "rope")
	change(func(c *kernels) { c.argMax = func(x []float32) int { return k.argMax(x) + 1 } }, "argmax")
	change(func(c *kernels) { c.maxOf = func(x []float32) float32 { return k.maxOf(x) * 1.02 } }, "max")
	change(func(c *kernels) { c.sumExp = func(x []float32, m float32) float32 { return k.sumExp(x, m) * 1.02 } }, "sum of exp")
	change(func(c *kernels) { c.scaleBy = func(x []float32, by float32) { k.scaleBy(x, by*1.02) } }, "scale")
	change(func(c *kernels) { c.mul64 = func(x, by *[BlockSlots]float32) { k.mul64(x, by); scaled(&x[0]) } }, "scales of Int8")
	change(func(c *kernels) {
		c.quant = func(dst []byte, x []float32, start int32) {
			k.quant(dst, x, start)
			scaled((*float32)(unsafe.Pointer(&dst[quantBlockScale])))
		}
	}, "rounding of activations")
	change(func(c *kernels) {
		c.toBF16 = func(dst []uint16, ldd int, x []float32, ldx, rows, n int) {
			k.toBF16(dst, ldd, x, ldx, rows, n)
			dst[0]++
		}
	}, "rounding to bf16")
	change(func(c *kernels) {
		c.widen = func(dst []float32, src []uint16) { k.widen(dst, src); scaled(&dst[0]) }
	}, "widening of bf16")
	return out
}

func scaledTile(f func(*tileArgs)) func(*tileArgs) {
	return func(a *tileArgs) {
		f(a)
		scaled((*float32)(a.out))
	}
}

func scaled(x *float32) { *x *= 1.02 }

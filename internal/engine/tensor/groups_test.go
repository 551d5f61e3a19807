package tensor

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/tensor/kernel"
)

// MatMulGroups gives each expert's tokens the bits of MatMul by its matrix alone, for any other groups.
func TestMatMulGroups(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, threads := range []int{1, 3} {
		pool := NewPool(threads)
		defer pool.Close()
		for _, dt := range allWeights {
			for _, s := range []struct{ experts, rows, cols int }{{1, 16, 32}, {5, 80, 96}, {8, 130, 64}, {40, 16, 200}} {
				t.Run(fmt.Sprintf("%v/%d/%dx%d", dt, s.experts, s.rows, s.cols), func(t *testing.T) {
					bank, err := NewBank(dt, s.experts, s.rows, s.cols)
					if err != nil {
						t.Fatal(err)
					}
					defer bank.Close()
					row := make([]float32, s.cols)
					for e := range s.experts {
						for r := range s.rows {
							for i := range row {
								row[i] = rng.Float32() - 0.5
							}
							bank.At(e).SetRow(r, row)
						}
					}
					var groups []Group
					tokens, ld := 0, s.rows+3
					for e := range s.experts {
						if n := []int{0, 1, 3, 7, 101}[rng.IntN(5)]; n > 0 || e == 0 {
							groups = append(groups, Group{W: bank.At(e), T0: tokens, T1: tokens + n, LdY: ld})
							tokens += n
						}
					}
					x, y := make([]float32, (tokens+1)*s.cols), make([]float32, (tokens+1)*ld)
					for i := range x {
						x[i] = rng.Float32() - 0.5
					}
					for i := range groups {
						groups[i].Y = y[groups[i].T0*ld:]
					}
					pool.MatMulGroups(groups, x, s.cols)
					wants := make([][]float32, len(groups))
					check := func(how string) {
						t.Helper()
						for k, g := range groups {
							for i, want := range wants[k] {
								if math.Float32bits(g.Y[i]) != math.Float32bits(want) {
									t.Fatalf("%s: tokens [%d,%d), element %d: %v, alone %v", how, g.T0, g.T1, i, g.Y[i], want)
								}
							}
						}
						clear(y)
					}
					for k, g := range groups {
						wants[k] = make([]float32, (g.T1-g.T0)*ld)
						pool.MatMul(wants[k], ld, g.W, x[g.T0*s.cols:], s.cols, g.T1-g.T0)
					}
					check("groups")
					var quantized []byte
					if kernel.Quantized(dt) && s.cols%BlockWidth == 0 {
						quantized = make([]byte, tokens*QuantizedBytes(s.cols))
						Quantize(quantized, QuantizedBytes(s.cols), dt, x, s.cols, s.cols, tokens)
						pool.MatMulGroupsQuantized(groups, quantized, QuantizedBytes(s.cols))
						check("quantized")
					}

					// Each expert twice, the second time by the next one's matrix, and both summed.
					second, pairs := make([]float32, len(y)), []Group(nil)
					then := func(r0, r1, t0, t1 int) {
						for i := t0; i < t1; i++ {
							Add(y[i*ld+r0:i*ld+r1], second[i*ld+r0:i*ld+r1])
						}
					}
					for k, g := range groups {
						twin := Group{Y: second[g.T0*ld:], LdY: ld, W: groups[(k+1)%len(groups)].W, T0: g.T0, T1: g.T1}
						pairs = append(pairs, g, twin)
						alone := make([]float32, len(wants[k]))
						pool.MatMul(alone, ld, twin.W, x[g.T0*s.cols:], s.cols, g.T1-g.T0)
						Add(wants[k], alone)
					}
					pairs[0].Then = then
					pool.MatMulGroups(pairs, x, s.cols)
					check("pairs")
					if quantized != nil {
						pool.MatMulGroupsQuantized(pairs, quantized, QuantizedBytes(s.cols))
						check("quantized pairs")
					}
				})
			}
		}
	}
}

func TestBank(t *testing.T) {
	for _, bad := range [][3]int{{0, 16, 32}, {-1, 16, 32}, {2, -1, 32}, {2, 16, 0}, {math.MaxInt32, math.MaxInt32, math.MaxInt32}} {
		if b, err := NewBank(F32, bad[0], bad[1], bad[2]); err == nil {
			t.Errorf("a bank of %v was made: %d bytes", bad, b.Bytes())
		}
	}
	b, err := NewBank(BF16, 3, 40, 100)
	if err != nil {
		t.Fatal(err)
	}
	if want := 3 * WeightBytes(BF16, 40, 100); b.Bytes() != want || b.Len() != 3 {
		t.Errorf("%d matrices of %d bytes, want 3 of %d", b.Len(), b.Bytes(), want)
	}
	for range 2 {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	}
}

package tensor

import (
	"math"
	"slices"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/tensor/f32"
	"github.com/shoal-llm/shoal/internal/engine/tensor/kernel"
)

// Blocks of integers that a type can hold are stored without change, and products with zero points and
// tables have the same bits in all implementations as the plain sum.
func TestCodes(t *testing.T) {
	p := NewPool(1)
	defer p.Close()
	forEach(t, func(t *testing.T) {
		r := rng(31)
		const rows, cols = 70, 160
		for _, dt := range []DType{Q8_0, Q4_0, IQ4_NL, Int4, MXFP4} {
			w, err := NewWeight(dt, rows, cols)
			if err != nil {
				t.Fatal(err)
			}
			defer w.Close()
			want := make([]float32, rows*cols)
			blocks := make([]Codes, rows*cols/BlockWidth)
			for i := range blocks {
				c := &blocks[i]
				c.Scale = float32(math.Ldexp(1+float64(r.IntN(1024))/1024, r.IntN(12)-14))
				for k := range c.Q {
					switch dt {
					case Q8_0:
						c.Q[k], c.Zero = int16(r.IntN(256)), 128
						if i%3 == 0 {
							c.Q[k] = 0 // -128
						}
					case Q4_0:
						c.Q[k], c.Zero = int16(r.IntN(16)), 8
					case Int4:
						c.Q[k], c.Zero = int16(r.IntN(16)-8), int16(i%16-8)
					default:
						c.Q[k] = int16(kernel.Tables[dt].Values[r.IntN(16)])
					}
					want[i*BlockWidth+k] = float32(c.Q[k]-c.Zero) * c.Scale
				}
			}
			for row := range rows {
				kept := w.SetRowCodes(row, want[row*cols:][:cols], func(c *Codes, k int) bool {
					*c = blocks[row*cols/BlockWidth+k/BlockWidth]
					return true
				})
				got := make([]float32, cols)
				if w.Row(row, got); kept != cols/BlockWidth {
					t.Fatalf("%v: %d blocks of row %d are kept", dt, kept, row)
				}
				for k, v := range got {
					if v != want[row*cols+k] {
						t.Fatalf("%v: row %d column %d is %v, want %v", dt, row, k, v, want[row*cols+k])
					}
				}
			}
			for n := 1; n <= kernel.MaxTileTokens+1; n++ {
				x, y := normal(r, n*cols), make([]float32, n*rows)
				for k := range cols {
					x[k] = 1 // the largest int8 everywhere
				}
				p.MatMul(y, rows, w, x, cols, n)
				tokens := make([]byte, cols/BlockWidth*kernel.QuantBlockBytes)
				for tok := range n {
					portable().Quantize(tokens, x[tok*cols:][:cols], -128)
					for row := range rows {
						units := make([]float32, Units(cols))
						for u := range units {
							acc := float32(0)
							for b := UnitSpan(cols, u).Lo; b < UnitSpan(cols, u).Hi; b += BlockWidth {
								c, rec := &blocks[(row*cols+b)/BlockWidth], tokens[b/BlockWidth*kernel.QuantBlockBytes:]
								sum := int32(0)
								for k := range c.Q {
									sum += int32(c.Q[k]-c.Zero) * int32(int8(rec[k]))
								}
								acc = f32.FMA(float32(sum), c.Scale*floats(rec[kernel.QuantBlockScale:][:4])[0], acc)
							}
							units[u] = acc
						}
						if got := y[tok*rows+row]; got != treeValue(units) {
							t.Fatalf("%v: %d tokens: token %d row %d is %v, want %v", dt, n, tok, row, got, treeValue(units))
						}
					}
				}
			}
		}
	})
}

// Blocks that a type cannot represent are quantized again.
func TestCodesThatDoNotFit(t *testing.T) {
	for name, test := range map[string]struct {
		dt DType
		c  Codes
	}{
		"a scale below float16":            {Q8_0, Codes{Scale: 0x1.8p-24}},
		"a scale above float16":            {Int4, Codes{Scale: 1e6}},
		"an infinite scale":                {Int4, Codes{Scale: float32(math.Inf(1))}},
		"a scale that is no number":        {Int4, Codes{Scale: float32(math.NaN())}},
		"a code of -129":                   {Q8_0, Codes{Scale: 1, Q: [BlockWidth]int16{-129}}},
		"a range of 17":                    {Int4, Codes{Scale: 1, Q: [BlockWidth]int16{-8, 8}}},
		"a zero point beyond its codes":    {Int4, Codes{Scale: 1, Zero: 16}},
		"a zero point below its codes":     {Int4, Codes{Scale: 1, Zero: -32768, Q: [BlockWidth]int16{5}}},
		"another zero point":               {Q4_0, Codes{Scale: 1, Zero: 7, Q: [BlockWidth]int16{15}}},
		"a value between those of a table": {MXFP4, Codes{Scale: 1, Q: [BlockWidth]int16{5}}},
		"a value beyond a table":           {IQ4_NL, Codes{Scale: 1, Q: [BlockWidth]int16{30000}}},
	} {
		for k := range test.c.Q[2:] {
			test.c.Q[k+2] = test.c.Q[0]
		}
		block, scales := make([]byte, BlockWidth*kernel.PanelRows), make([]byte, kernel.Int4Scales)
		if putCodes(test.dt, block, scales, 3, &test.c) {
			t.Errorf("%s is stored as %v", name, test.dt)
		}
		for i, b := range slices.Concat(block, scales) {
			if b != 0 {
				t.Errorf("%s: byte %d is written", name, i)
			}
		}
	}
}

// Products of types with the same tokens may be computed together.
func TestMixedTypes(t *testing.T) {
	p := NewPool(2)
	defer p.Close()
	forEach(t, func(t *testing.T) {
		r := rng(32)
		const cols, n = 96, 3
		x := normal(r, n*cols)
		var products []Product
		var apart [][]float32
		for _, dt := range []DType{Int4, Q8_0, MXFP4, IQ4_NL} {
			w := newWeight(t, dt, normal(r, 33*cols), 33, cols, 0, Units(cols))
			products = append(products, Product{Y: make([]float32, n*33), LdY: 33, W: w, R1: 33})
			y := make([]float32, n*33)
			p.MatMul(y, 33, w, x, cols, n)
			apart = append(apart, y)
		}
		p.MatMulMany(products, x, cols, n)
		for i, q := range products {
			for k, v := range q.Y {
				if v != apart[i][k] {
					t.Fatalf("%v together: element %d is %v, alone %v", q.W.Type, k, v, apart[i][k])
				}
			}
		}
	})
}

package tensor

import (
	"bytes"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/tensor/f32"
)

// MulAdd is one chain of fused products per element for any division, on every implementation.
func TestMulAdd(t *testing.T) {
	for _, c := range []struct{ rows, n, cols, lo, hi int }{{1, 1, 8, 0, 8}, {7, 64, 24, 8, 24},
		{13, 65, 136, 0, 136}, {48, 128, 64, 0, 64}, {64, 200, 40, 32, 40}} {
		r := rng(uint64(c.n))
		p, m, start := normal(r, c.rows*c.n), normal(r, c.n*c.cols), normal(r, (c.rows+2)*c.cols)
		tile := make([]float32, TileFloats(c.rows, c.n))
		for i := range c.rows {
			for j := range c.n {
				tile[Tile(c.rows, i, j)] = p[i*c.n+j]
			}
		}
		want := append([]float32(nil), start...)
		for i := 1; i < c.rows; i++ {
			for j := range c.n {
				for col := c.lo; col < c.hi; col++ {
					want[i*c.cols+col] = f32.FMA(p[i*c.n+j], m[j*c.cols+col], want[i*c.cols+col])
				}
			}
		}
		allEqual(t, "MulAdd", func() []float32 {
			out := append([]float32(nil), start...)
			var s AttnScratch
			MulAdd(out[c.cols:], c.cols, tile, c.rows, 1, c.rows-1, m, c.cols, c.n, c.lo, c.hi, &s)
			sameBits(t, "product", out, want)
			return out
		})
	}
}

// Saved values can be restored to any slots, with their scales, and a key that is read and set
// again is unchanged. Nothing else in a block changes.
func TestValuesApart(t *testing.T) {
	for _, l := range pageLayouts {
		if l.Latent {
			continue
		}
		blocks, _ := pagesOf(l, 2*BlockSlots, 16, 7)
		src, dst := blocks[0], bytes.Clone(blocks[1])
		values, key := make([]byte, l.ValueBytes(16)), make([]float32, l.KDim)
		l.SaveValues(values, src, 40, 16)
		l.LoadValues(dst, 8, 16, values)
		for slot := range BlockSlots {
			k, v, wk, wv := make([]float32, l.KDim), make([]float32, l.VDim), make([]float32, l.KDim), make([]float32, l.VDim)
			l.Get(dst, slot, k, v)
			l.Get(blocks[1], slot, wk, wv)
			if slot >= 8 && slot < 24 {
				l.Get(src, slot+32, make([]float32, l.KDim), wv)
			}
			sameBits(t, "keys", k, wk)
			sameBits(t, "values", v, wv)
			if l.Key(key, dst, slot); l.Type != Int8 {
				l.SetKey(dst, slot, key)
			}
			sameBits(t, "key", key, wk)
		}
		if before := bytes.Clone(dst); l.Type != Int8 {
			if l.SetKey(dst, 3, key); bytes.Equal(dst, before) {
				t.Errorf("%v: SetKey did nothing", l.Type)
			}
			l.Key(key, before, 3)
			if l.SetKey(dst, 3, key); !bytes.Equal(dst, before) {
				t.Errorf("%v: SetKey changes more than a key", l.Type)
			}
		}
	}
}

func BenchmarkMulAdd(b *testing.B) {
	for _, c := range []struct {
		name          string
		rows, n, cols int
	}{{"rebuild", 48, 128, 64}, {"gram", 8, 64, 512}} {
		b.Run(c.name, func(b *testing.B) {
			out, tile, m := make([]float32, c.rows*c.cols), make([]float32, TileFloats(c.rows, c.n)), make([]float32, c.n*c.cols)
			var s AttnScratch
			for b.Loop() {
				MulAdd(out, c.cols, tile, c.rows, 0, c.rows, m, c.cols, c.n, 0, c.cols, &s)
			}
			b.ReportMetric(2*float64(c.rows*c.n*c.cols)*float64(b.N)/b.Elapsed().Seconds()/1e9, "GFLOP/s")
		})
	}
}

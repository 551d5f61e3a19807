package bench

import (
	"slices"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// The shift-and-append cache, the baseline of the comparison, keeps the right rows.
func TestShiftUp(t *testing.T) {
	for _, dt := range []tensor.DType{tensor.F32, tensor.BF16} {
		g := kvcache.Geometry{Layers: 1, KVHeads: 1, Layout: tensor.KVLayout{Type: dt, KDim: 16, VDim: 8}}
		c := newShifted(g, 128, nil)
		want := []float32{}
		k, v := make([]float32, 16), make([]float32, 8)
		for i := range 300 {
			for j := range k {
				k[j] = float32(i%100 + j)
			}
			v[7] = float32(i % 100)
			c.WriteRun(0, 0, i, 1, k, 0, v, 0)
			want = append(want, float32(i%100))
		}
		for slot := cacheSink; slot < 128; slot++ {
			g.Layout.Get(c.blocks[0][slot/64], slot%64, k, v)
			if w := want[300-128+slot]; k[0] != w || k[15] != w+15 || v[7] != w {
				t.Fatalf("%v slot %d holds %v %v, want %v", dt, slot, k, v, w)
			}
		}
	}
}

func TestCacheBenches(t *testing.T) {
	pool := tensor.NewPool(1)
	defer pool.Close()
	u, err := runCacheUpdate(pool, 1, 2, 16, 64, time.Millisecond)
	if err != nil || u.Ring <= 0 || u.Scatter <= 0 || u.OverStr <= 0 || u.OverPub <= 0 || u.OverApp <= 0 {
		t.Fatal(u, err)
	}
	ways, err := runCacheDecode(t.Context(),
		Options{Model: "fry", Weights: tensor.Q8_0, KV: tensor.BF16, Threads: 1, Batch: 2, Context: 128, Tokens: 2})
	if err != nil || len(ways) != 7 || slices.ContainsFunc(ways, func(w cacheWay) bool { return !(w.Speedup > 0) }) {
		t.Fatal(ways, err)
	}
}

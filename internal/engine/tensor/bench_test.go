package tensor

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/internal/engine/tensor/kernel"
	"github.com/shoal-llm/shoal/internal/engine/tensor/peak"
)

// ceilings are measured once per number of threads, in the same run as the results that are
// compared with them.
type ceilings struct{ read, fma, dot float64 }

var ceilingOf = map[int]ceilings{}
var ceilingMu sync.Mutex

func measured(b *testing.B, p *Pool) ceilings {
	ceilingMu.Lock()
	defer ceilingMu.Unlock()
	c, ok := ceilingOf[p.Threads()]
	if !ok {
		reads, err := peak.NewReads(p, 256<<20)
		if err != nil {
			b.Fatal(err)
		}
		defer func() {
			if err := reads.Close(); err != nil {
				b.Error(err)
			}
		}()
		c = ceilings{reads.Best(500 * time.Millisecond), peak.FMA(p, 200*time.Millisecond), peak.VNNI(p, 200*time.Millisecond)}
		ceilingOf[p.Threads()] = c
	}
	return c
}

// report runs f and reports its best call as GB/s and GFLOP/s, each with its share of the ceiling.
// The best call, because machines that build and test are shared.
func report(b *testing.B, bytes, flops float64, read, peak float64, f func()) {
	least := time.Duration(1 << 62)
	for b.Loop() {
		t := time.Now()
		f()
		least = min(least, time.Since(t))
	}
	sec := least.Seconds()
	b.ReportMetric(bytes/sec/1e9, "GB/s")
	b.ReportMetric(100*bytes/sec/1e9/read, "%read")
	b.ReportMetric(flops/sec/1e9, "GFLOP/s")
	b.ReportMetric(100*flops/sec/1e9/peak, "%peak")
}

func BenchmarkMatMul(b *testing.B) {
	const rows, k = 4096, 8192
	for _, dt := range allWeights {
		w, err := NewWeight(dt, rows, k)
		if err != nil {
			b.Fatal(err)
		}
		row := make([]float32, k)
		for i := range row {
			row[i] = float32(i%17-8) * 0.1
		}
		for r := range rows {
			w.SetRow(r, row)
		}
		for _, threads := range []int{1, 2} {
			p := NewPool(threads)
			c := measured(b, p)
			peak := c.fma
			if kernel.Quantized(dt) {
				peak = c.dot
			}
			for _, n := range []int{1, 4, 8, 16, 32, 96} {
				x, y := make([]float32, n*k), make([]float32, n*rows)
				b.Run(fmt.Sprintf("%s/%v/n=%d/threads=%d", kernel.Active.Name, dt, n, threads), func(b *testing.B) {
					report(b, float64(w.Bytes()), 2*rows*k*float64(n), c.read, peak, func() { p.MatMul(y, rows, w, x, k, n) })
				})
			}
			p.Close()
		}
		if err := w.Close(); err != nil {
			b.Error(err)
		}
	}
}

func BenchmarkAttend(b *testing.B) {
	p := NewPool(1)
	defer p.Close()
	c := measured(b, p)
	const n, nq = 4096, 64
	for _, l := range []KVLayout{{Type: F32, KDim: 64, VDim: 64}, {Type: BF16, KDim: 64, VDim: 64},
		{Type: BF16, KDim: 128, VDim: 128}, {Type: Int8, KDim: 128, VDim: 128}} {
		var s AttnScratch
		blocks := newCache(rng(1), l, n)
		for _, g := range []int{1, 4} {
			q, out := make([]float32, nq*g*l.KDim), make([]float32, nq*g*l.VDim)
			flops, bytes := 2*float64(n*g*(l.KDim+l.VDim)), float64(n*l.RowBytes())
			name := fmt.Sprintf("%s/%v/%d/heads=%d", kernel.Active.Name, l.Type, l.KDim, g)
			b.Run(name+"/decode", func(b *testing.B) {
				report(b, bytes, flops, c.read, c.fma, func() { Attend(out, q, g, Score{Scale: 0.1}, l, blocks, n, nil, &s) })
			})
			b.Run(name+"/prefill", func(b *testing.B) {
				report(b, bytes, nq*flops, c.read, c.fma, func() {
					AttendCausal(out, g*l.VDim, q, g*l.KDim, nq, n-nq, 0, g, Score{Scale: 0.1}, l, blocks, &s)
				})
			})
		}
	}
}

func BenchmarkOps(b *testing.B) {
	const n = 8192
	x, y, w := normal(rng(1), n), normal(rng(2), n), normal(rng(3), n)
	for name, f := range map[string]func(){
		"RMSNorm":   func() { RMSNorm(y, x, w, 1e-5) },
		"Add":       func() { Add(y, x) },
		"SiLUMul":   func() { SiLUMul(y, x, w) },
		"Rope":      func() { RopeRotateHalf(x, y, w) },
		"ArgMax":    func() { ArgMax(x) },
		"LogSumExp": func() { LogSumExp(x) },
	} {
		b.Run(kernel.Active.Name+"/"+name, func(b *testing.B) {
			b.SetBytes(4 * n)
			for b.Loop() {
				f()
			}
		})
	}
}

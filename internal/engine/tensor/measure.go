package tensor

import (
	"time"

	"github.com/shoal-llm/shoal/internal/engine/tensor/kernel"
	"github.com/shoal-llm/shoal/internal/sys/hugemem"
)

// MeasureReadBandwidth measures the rate, in GB/s, at which the pool's threads together read
// memory: each its own part of a buffer of bytes, repeatedly for about d. Each thread's best piece
// counts, because the machine may be shared. Choose several times the last-level cache to measure
// memory.
func MeasureReadBandwidth(p *Pool, bytes int, d time.Duration) (float64, error) {
	per := max(kernel.ReadPiece, bytes/p.Threads()/kernel.ReadPiece*kernel.ReadPiece)
	buf, err := hugemem.Map(per * p.Threads())
	if err != nil {
		return 0, err
	}
	for i := 0; i < len(buf); i += 4096 {
		buf[i] = 1
	}
	rate := bestRate(p, d, func(thread, round int) {
		at := thread*per + round*kernel.ReadPiece%per
		kernel.Active.Peak.Read(&buf[at], kernel.ReadPiece)
	})
	return kernel.ReadPiece * rate / 1e9, hugemem.Unmap(buf)
}

// MeasureFMA measures the peak of fused multiply-adds on all threads, in GFLOP/s.
func MeasureFMA(p *Pool, d time.Duration) float64 {
	k := &kernel.Active.Peak
	rate := bestRate(p, d, func(_, _ int) { k.FMA(kernel.PeakRounds) })
	return 2 * kernel.PeakChains * kernel.PeakRounds * float64(k.Lanes) * rate / 1e9
}

// MeasureVNNI measures the peak of the integer products that quantized weights use, on all threads,
// in 10⁹ operations per second (a multiplication and an addition count as two): VPDPBUSD with
// AVX-512 VNNI, otherwise its replacement.
func MeasureVNNI(p *Pool, d time.Duration) float64 {
	k := &kernel.Active.Peak
	rate := bestRate(p, d, func(_, _ int) { k.Dot(kernel.PeakRounds) })
	return 2 * 4 * kernel.PeakChains * kernel.PeakRounds * float64(k.DotLanes) * rate / 1e9
}

// bestRate runs f on all threads for about d and adds up each thread's best rate, in calls per
// second.
func bestRate(p *Pool, d time.Duration, f func(thread, round int)) float64 {
	rates := make([]float64, p.Threads())
	start := time.Now()
	p.Run(p.Threads(), func(thread int) {
		for round := 0; round == 0 || time.Since(start) < d; round++ {
			t := time.Now()
			f(thread, round)
			rates[thread] = max(rates[thread], 1/max(time.Since(t), 1).Seconds())
		}
	})
	sum := 0.0
	for _, r := range rates {
		sum += r
	}
	return sum
}

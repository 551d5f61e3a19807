// Package peak measures what the threads of a machine can read and compute.
package peak

import (
	"slices"
	"time"

	"github.com/shoal-llm/shoal/internal/engine/tensor/kernel"
	"github.com/shoal-llm/shoal/internal/sys/hugemem"
)

// Pool is a pool of threads (tensor.Pool).
type Pool interface {
	Threads() int
	Run(n int, task func(i int))
}

// Reads is memory that the threads of a pool read, each its own part, to measure how fast. Choose
// several times the last-level cache to measure memory.
type Reads struct {
	pool Pool
	buf  []byte
	per  int // bytes of a thread
}

// NewReads allocates and writes the memory, so that reading it causes no page fault. Close it.
func NewReads(p Pool, bytes int) (*Reads, error) {
	r := &Reads{pool: p, per: max(kernel.ReadPiece, bytes/p.Threads()/kernel.ReadPiece*kernel.ReadPiece)}
	buf, err := hugemem.Map(r.per * p.Threads())
	if err != nil {
		return nil, err
	}
	for i := 0; i < len(buf); i += 4096 {
		buf[i] = 1
	}
	r.buf = buf
	return r, nil
}

// Close frees the memory.
func (r *Reads) Close() error { return hugemem.Unmap(r.buf) }

// Best returns the sum of each thread's best rate for a piece, in GB/s: a ceiling that other
// programs on the machine do not lower. It takes about d.
func (r *Reads) Best(d time.Duration) float64 { return r.rate(d, 0) }

// Usual returns the sum of each thread's rate for the first quartile of its pieces, in GB/s. Threads
// that read at the same time reach it together, unlike Best. It takes about d.
func (r *Reads) Usual(d time.Duration) float64 { return r.rate(d, 0.25) }

func (r *Reads) rate(d time.Duration, quantile float64) float64 {
	return kernel.ReadPiece / 1e9 * rates(r.pool, d, quantile, func(thread, round int) {
		at := thread*r.per + round*kernel.ReadPiece%r.per
		kernel.Active.Peak.Read(&r.buf[at], kernel.ReadPiece)
	})
}

// FMA measures the peak of fused multiply-adds on all threads, in GFLOP/s.
func FMA(p Pool, d time.Duration) float64 {
	k := &kernel.Active.Peak
	rate := rates(p, d, 0, func(_, _ int) { k.FMA(kernel.PeakRounds) })
	return 2 * kernel.PeakChains * kernel.PeakRounds * float64(k.Lanes) * rate / 1e9
}

// VNNI measures the peak of the integer products that quantized weights use, on all threads,
// in 10⁹ operations per second (a multiplication and an addition count as two): VPDPBUSD with
// AVX-512 VNNI, otherwise its replacement.
func VNNI(p Pool, d time.Duration) float64 {
	k := &kernel.Active.Peak
	rate := rates(p, d, 0, func(_, _ int) { k.Dot(kernel.PeakRounds) })
	return 2 * 4 * kernel.PeakChains * kernel.PeakRounds * float64(k.DotLanes) * rate / 1e9
}

// rates runs f on all threads for about d. It adds up each thread's rate, in calls per second, at
// a quantile of the times of its calls; 0: the fastest.
func rates(p Pool, d time.Duration, quantile float64, f func(thread, round int)) float64 {
	took := make([][]time.Duration, p.Threads())
	start := time.Now()
	p.Run(p.Threads(), func(thread int) {
		for round := 0; round == 0 || time.Since(start) < d; round++ {
			t := time.Now()
			f(thread, round)
			took[thread] = append(took[thread], max(time.Since(t), 1))
		}
	})
	sum := 0.0
	for _, t := range took {
		slices.Sort(t)
		sum += 1 / t[int(quantile*float64(len(t)))].Seconds()
	}
	return sum
}

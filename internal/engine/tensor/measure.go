package tensor

import (
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/shoal-llm/shoal/internal/sys/hugemem"
)

// peaks are loops that only read memory or only multiply registers: the ceilings to which the
// kernels are compared.
type peaks struct {
	lanes    int
	read     func(p *byte, n int) // n is a multiple of 512
	fma      func(n int)          // n rounds of peakChains vectors
	dotLanes int
	dot      func(n int) // the same with 4 byte products per lane
}

const (
	peakChains = 12
	peakRounds = 20_000
	readPiece  = 4 << 20 // per call, to keep calls short
)

// MeasureReadBandwidth measures the rate, in GB/s, at which the pool's threads together read
// memory: each its own part of a buffer of bytes, repeatedly for about d. Each thread's best piece
// counts, because the machine may be shared. Choose several times the last-level cache to measure
// memory.
func MeasureReadBandwidth(p *Pool, bytes int, d time.Duration) (float64, error) {
	per := max(readPiece, bytes/p.Threads()/readPiece*readPiece)
	buf, err := hugemem.Map(per * p.Threads())
	if err != nil {
		return 0, err
	}
	for i := 0; i < len(buf); i += 4096 {
		buf[i] = 1
	}
	rate := bestRate(p, d, func(thread, round int) {
		at := thread*per + round*readPiece%per
		active.peak.read(&buf[at], readPiece)
	})
	return readPiece * rate / 1e9, hugemem.Unmap(buf)
}

// MeasureFMA measures the peak of fused multiply-adds on all threads, in GFLOP/s.
func MeasureFMA(p *Pool, d time.Duration) float64 {
	k := &active.peak
	rate := bestRate(p, d, func(_, _ int) { k.fma(peakRounds) })
	return 2 * peakChains * peakRounds * float64(k.lanes) * rate / 1e9
}

// MeasureVNNI measures the peak of the integer products that quantized weights use, on all threads,
// in 10⁹ operations per second (a multiplication and an addition count as two): VPDPBUSD with
// AVX-512 VNNI, otherwise its replacement.
func MeasureVNNI(p *Pool, d time.Duration) float64 {
	k := &active.peak
	rate := bestRate(p, d, func(_, _ int) { k.dot(peakRounds) })
	return 2 * 4 * peakChains * peakRounds * float64(k.dotLanes) * rate / 1e9
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

// peakSink keeps the compiler from removing the portable loops.
var peakSink atomic.Uint32

func portableReadPeak(p *byte, n int) {
	var sum [4]uint64
	for words := unsafe.Slice((*uint64)(unsafe.Pointer(p)), n/8); len(words) >= 4; words = words[4:] {
		sum[0] |= words[0]
		sum[1] |= words[1]
		sum[2] |= words[2]
		sum[3] |= words[3]
	}
	peakSink.Store(uint32(sum[0] | sum[1] | sum[2] | sum[3]))
}

func portableFMAPeak(n int) {
	var acc [peakChains]float32
	for range n {
		for i := range acc {
			acc[i] = fma32(acc[i], 0.5, 1)
		}
	}
	peakSink.Store(uint32(acc[0] + acc[peakChains-1]))
}

func portableDotPeak(n int) {
	var acc [peakChains]int32
	x := [4]int8{1, -2, 3, int8(n)}
	for range n {
		for i := range acc {
			for _, v := range x {
				acc[i] += int32(v) * int32(x[i&3])
			}
		}
	}
	peakSink.Store(uint32(acc[0] + acc[peakChains-1]))
}

package kernel

import (
	"sync/atomic"
	"unsafe"

	"github.com/shoal-llm/shoal/internal/engine/tensor/f32"
)

// peaks are loops that only read memory or only multiply registers. They give the upper bounds for the
// speed of the kernels.
type peaks struct {
	Lanes    int
	Read     func(p *byte, n int) // n is a multiple of 512
	FMA      func(n int)          // n rounds of PeakChains vectors
	DotLanes int
	Dot      func(n int) // the same with 4 byte products per lane
}

const (
	PeakChains = 12
	PeakRounds = 20_000
	ReadPiece  = 4 << 20 // per call, to keep calls short
)

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
	var acc [PeakChains]float32
	for range n {
		for i := range acc {
			acc[i] = f32.FMA(acc[i], 0.5, 1)
		}
	}
	peakSink.Store(uint32(acc[0] + acc[PeakChains-1]))
}

func portableDotPeak(n int) {
	var acc [PeakChains]int32
	x := [4]int8{1, -2, 3, int8(n)}
	for range n {
		for i := range acc {
			for _, v := range x {
				acc[i] += int32(v) * int32(x[i&3])
			}
		}
	}
	peakSink.Store(uint32(acc[0] + acc[PeakChains-1]))
}

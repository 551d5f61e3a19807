package cluster

import (
	"math"
	"time"

	"github.com/shoal-llm/shoal/tensor"
)

// A node's share of the work, when nobody asked for one, is its measured speed:
// the rate at which its threads read memory, since decode reads every weight
// once a token. In units of 10 GB/s and rounded to quarters, so that noise does
// not cut equal machines unevenly; --share uses the same unit loosely: only the
// proportions matter.
func measuredShare(pool *tensor.Pool) float64 {
	rate, err := tensor.MeasureReadBandwidth(pool, speedBytes, speedTime)
	if err != nil || rate <= 0 {
		return 1
	}
	return max(0.25, math.Round(rate/shareUnit*4)/4)
}

const (
	shareUnit  = 10        // GB/s
	speedBytes = 128 << 20 // several times the last-level cache of an ordinary machine
	speedTime  = 60 * time.Millisecond
)

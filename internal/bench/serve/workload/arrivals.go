// Package workload draws the requests of a load test: when each arrives, how long its prompt and
// its answer are, and which prefix it shares. It is pure; a seed determines everything.
package workload

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"
)

// Arrivals is a process of arrivals with a mean rate.
type Arrivals struct {
	Rate  float64 // requests per second; 0: all at once, limited by the concurrency (closed loop)
	shape float64 // of the gamma distribution of gaps: 1 is Poisson, below 1 is burstier; +Inf: constant gaps
	burst int     // requests that arrive together
}

// ArrivalsUsage describes the syntax of ParseArrivals.
const ArrivalsUsage = "poisson, constant, gamma:SHAPE (below 1 is burstier than poisson) or burst:N (N requests at once)"

// Bounds of arrivals. Beyond them a machine cannot send, or waits for days.
const (
	minRate, maxRate   = 1e-3, 1e5
	minShape, maxShape = 0.01, 1e3
	maxBurst           = 4096
)

// ParseArrivals reads the name of a process.
func ParseArrivals(text string, rate float64) (Arrivals, error) {
	a := Arrivals{Rate: rate, shape: 1, burst: 1}
	if rate != 0 && !(rate >= minRate && rate <= maxRate) {
		return a, fmt.Errorf("rate %g: want %g to %g requests per second, or 0 for a closed loop", rate, minRate, maxRate)
	}
	name, value, _ := strings.Cut(text, ":")
	switch {
	case name == "poisson" && value == "":
	case name == "constant" && value == "":
		a.shape = math.Inf(1)
	case name == "gamma":
		v, err := strconv.ParseFloat(value, 64)
		if err != nil || !(v >= minShape && v <= maxShape) {
			return a, fmt.Errorf("arrival %q: want a shape of %g to %g", text, minShape, maxShape)
		}
		a.shape = v
	case name == "burst":
		v, err := strconv.Atoi(value)
		if err != nil || v < 1 || v > maxBurst {
			return a, fmt.Errorf("arrival %q: want bursts of 1 to %d requests", text, maxBurst)
		}
		a.burst = v
	default:
		return a, fmt.Errorf("arrival %q: want %s", text, ArrivalsUsage)
	}
	return a, nil
}

// times returns when n requests arrive, in ascending order.
func (a Arrivals) times(n int, r *rand.Rand) []time.Duration {
	out := make([]time.Duration, n)
	if a.Rate == 0 {
		return out
	}
	at := 0.0 // seconds
	for i := range out {
		if i%a.burst == 0 && i > 0 {
			gap := 1.0
			if !math.IsInf(a.shape, 1) {
				gap = gamma(a.shape, r) / a.shape
			}
			at += gap * float64(a.burst) / a.Rate
		}
		out[i] = time.Duration(at * float64(time.Second))
	}
	return out
}

// gamma draws from the gamma distribution with a shape and scale 1 (Marsaglia and Tsang, 2000).
func gamma(shape float64, r *rand.Rand) float64 {
	if shape < 1 {
		return gamma(shape+1, r) * math.Pow(1-r.Float64(), 1/shape)
	}
	d := shape - 1.0/3
	c := 1 / math.Sqrt(9*d)
	for {
		x := r.NormFloat64()
		v := 1 + c*x
		if v <= 0 {
			continue
		}
		v *= v * v
		if math.Log(1-r.Float64()) < x*x/2+d-d*v+d*math.Log(v) {
			return d * v
		}
	}
}

package workload

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
)

// Lengths is the distribution of the lengths of prompts and answers, in tokens.
type Lengths struct {
	kind          string
	input, output lognormal
	fixed         [2]int
	low           int // of uniform
	MaxInput      int // longer prompts are cut to this; 0: MaxTokens
	MaxOutput     int
}

// lognormal is a log-normal distribution given by its mean and the standard deviation of the
// logarithm.
type lognormal struct{ mean, sigma float64 }

func (l lognormal) draw(r *rand.Rand) float64 {
	return l.mean * math.Exp(l.sigma*r.NormFloat64()-l.sigma*l.sigma/2)
}

// MaxTokens bounds every length.
const MaxTokens = 1 << 20

// LengthsUsage describes the syntax of ParseLengths.
const LengthsUsage = "fixed:INPUT:OUTPUT, uniform:LOW:INPUT:OUTPUT (from LOW to each), lognormal:INPUT:OUTPUT:SIGMA (means), sharegpt " +
	"(lognormal, means 161 and 338), 10:1 (prompts of ten times the answer, means 1000 and 100) or 10:1:INPUT"

// The means of ShareGPT come from the vLLM paper (arXiv 2309.06180, section 6.1). A sigma of 1 is
// an approximation of the spread of its histogram.
const shareGPT = "lognormal:161.31:337.99:1"

// ParseLengths reads the name of a distribution.
func ParseLengths(text string) (Lengths, error) {
	l := Lengths{MaxInput: MaxTokens, MaxOutput: MaxTokens}
	full := text
	switch {
	case text == "sharegpt":
		full = shareGPT
	case text == "10:1":
		full = "ratio:1000"
	case strings.HasPrefix(text, "10:1:"):
		full = "ratio:" + strings.TrimPrefix(text, "10:1:")
	}
	f := strings.Split(full, ":")
	numbers := make([]float64, len(f)-1)
	for i := range numbers {
		v, err := strconv.ParseFloat(f[i+1], 64)
		if err != nil || !(v > 0 && v <= MaxTokens) {
			return l, fmt.Errorf("lengths %q: %q is not a number from 1 to %d", text, f[i+1], MaxTokens)
		}
		numbers[i] = v
	}
	l.kind = f[0]
	switch {
	case l.kind == "fixed" && len(numbers) == 2 && whole(numbers):
		l.fixed = [2]int{int(numbers[0]), int(numbers[1])}
	case l.kind == "uniform" && len(numbers) == 3 && whole(numbers) && numbers[0] <= min(numbers[1], numbers[2]):
		l.low, l.fixed = int(numbers[0]), [2]int{int(numbers[1]), int(numbers[2])}
	case l.kind == "lognormal" && len(numbers) == 3 && numbers[2] <= 3:
		l.input, l.output = lognormal{numbers[0], numbers[2]}, lognormal{numbers[1], numbers[2]}
	case l.kind == "ratio" && len(numbers) == 1 && numbers[0] >= 10:
		l.input = lognormal{numbers[0], 0.5}
	default:
		return l, fmt.Errorf("lengths %q: want %s", text, LengthsUsage)
	}
	return l, nil
}

func whole(numbers []float64) bool {
	for _, v := range numbers {
		if v != math.Trunc(v) {
			return false
		}
	}
	return true
}

// draw returns the lengths of one request, at least one token each.
func (l Lengths) draw(r *rand.Rand) (input, output int) {
	in, out := float64(l.fixed[0]), float64(l.fixed[1])
	switch l.kind {
	case "uniform":
		in = float64(l.low + r.IntN(l.fixed[0]-l.low+1))
		out = float64(l.low + r.IntN(l.fixed[1]-l.low+1))
	case "lognormal":
		in, out = l.input.draw(r), l.output.draw(r)
	case "ratio":
		in = l.input.draw(r)
		out = in / 10
	}
	clip := func(v float64, most int) int { return int(min(max(math.Round(v), 1), float64(most))) }
	return clip(in, l.MaxInput), clip(out, l.MaxOutput)
}

package bench

import (
	"cmp"
	"fmt"
	"os"
	"runtime"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// ratioRows are the rows of the table: decode of a batch, or a prompt if batch is 0.
var ratioRows = []struct {
	weights        tensor.DType
	context, batch int
	goal           float64
}{
	{tensor.Q8_0, 128, 1, 0.85}, {tensor.Q8_0, 4096, 1, 0.75}, {tensor.Q8_0, 16384, 1, 0.75},
	{tensor.Q8_0, 128, 16, 0.80}, {tensor.Q8_0, 128, 32, 0.80}, {tensor.Q8_0, 512, 0, 0.40},
	{tensor.Q4_0, 128, 1, 0.85}, {tensor.IQ4_NL, 128, 1, 0.85}, {tensor.BF16, 128, 1, 0.85}, {tensor.BF16, 512, 0, 0.65},
}

// BenchmarkRatios prints which fractions of this machine's limits whole steps reach, next to the
// goals, for SHOAL_BENCH_MODEL (default llama-3.2-1b).
func BenchmarkRatios(b *testing.B) {
	name, quiet := cmp.Or(os.Getenv("SHOAL_BENCH_MODEL"), "llama-3.2-1b"), func(string) {}
	for i, r := range ratioRows {
		o := Options{Model: name, Weights: r.weights, KV: tensor.BF16, Threads: runtime.GOMAXPROCS(0),
			Context: r.context, Batch: r.batch, Tokens: 12, Repeat: 2, Policy: "full"}
		var m Machine
		var ceiling Ceiling
		var best, median, rate float64
		what, limit := "", "bandwidth"
		if r.batch == 0 {
			p, err := RunPrefill(b.Context(), o, quiet)
			if err != nil {
				b.Fatal(err)
			}
			m, ceiling, best, rate, what, limit = p.Machine, p.Ceiling, p.PeakShare, p.TokensPerS,
				fmt.Sprintf("prefill %d tokens", r.context), "arithmetic"
			median = best * p.MedianPerS / p.TokensPerS
		} else {
			d, err := RunDecode(b.Context(), o, nil, quiet)
			if err != nil {
				b.Fatal(err)
			}
			m, ceiling, best, median, rate = d.Machine, d.Ceiling, d.Share, d.MedianShare, d.TokensPerS
			what = fmt.Sprintf("decode, context %d, batch %d", r.context, r.batch)
			if r.batch > 1 {
				best, median, limit = d.Roofline, d.Roofline*d.MedianPerS/d.TokensPerS, "roofline"
			}
		}
		if i == 0 {
			fmt.Printf("%v\nread %.1f GB/s, FMA %.0f GFLOP/s, VNNI %.0f GOP/s\n", m, ceiling.Read, ceiling.FMA, ceiling.VNNI)
			fmt.Printf("%s, cache bf16\n%-8s %-34s %12s %-12s %6s %7s %6s\n", name, "weights", "", "tokens/s", "share of", "best", "median", "goal")
		}
		fmt.Printf("%-8s %-34s %12.2f %-12s %6.2f %7.2f %6.2f\n", r.weights, what, rate, limit, best, median, r.goal)
	}
}

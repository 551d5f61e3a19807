package cli

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/shoal-llm/shoal/bench"
	"github.com/shoal-llm/shoal/tensor"
)

type benchRatiosCmd struct {
	Model   string `short:"m" env:"SHOAL_BENCH_MODEL" default:"llama-3.2-1b" placeholder:"SHAPE" help:"Shape of a public model, with random weights: ${shapes}."`
	Tokens  int    `default:"12" help:"Steps of decode that are measured."`
	Repeat  int    `default:"2" help:"Prompts that are measured."`
	Threads int    `help:"Compute threads (default: the processors)."`
}

func (c *benchRatiosCmd) Help() string {
	return `One table of the shares of this machine's limits that whole steps reach, each beside
what is aimed at. Run it on a machine that does nothing else; it takes minutes.`
}

// ratioRows are what the table holds: decode of a batch, or a prompt where batch is 0.
var ratioRows = []struct {
	weights        tensor.DType
	context, batch int
	goal           float64
}{
	{tensor.Q8_0, 128, 1, 0.85}, {tensor.Q8_0, 4096, 1, 0.75}, {tensor.Q8_0, 16384, 1, 0.75}, {tensor.Q8_0, 128, 16, 0.80}, {tensor.Q8_0, 128, 32, 0.80}, {tensor.Q8_0, 512, 0, 0.40},
	{tensor.Q4_0, 128, 1, 0.85}, {tensor.IQ4_NL, 128, 1, 0.85}, {tensor.BF16, 128, 1, 0.85}, {tensor.BF16, 512, 0, 0.65},
}

func (c *benchRatiosCmd) Run(e *env) error {
	if err := checkThreads(c.Threads); err != nil {
		return err
	}
	shape, err := shapeOf(c.Model)
	if err != nil {
		return err
	}
	if c.Tokens < 1 || c.Repeat < 1 {
		return fmt.Errorf("--tokens %d, --repeat %d: want at least 1 of each", c.Tokens, c.Repeat)
	}
	for _, r := range ratioRows {
		if r.context >= shape.MaxPositions {
			return fmt.Errorf("--model %s was made for %d tokens, the table measures a context of %d", c.Model, shape.MaxPositions, r.context)
		}
	}
	debug.SetGCPercent(400)
	for i, r := range ratioRows {
		o := bench.Options{Model: c.Model, Weights: r.weights, KV: tensor.BF16, Threads: c.Threads, Context: r.context, Batch: r.batch,
			Tokens: c.Tokens, Repeat: c.Repeat, Policy: "full"}
		if o.Threads == 0 {
			o.Threads = runtime.GOMAXPROCS(0)
		}
		var m bench.Machine
		var ceiling bench.Ceiling
		var best, median, rate float64
		what, limit := "", "bandwidth"
		if r.batch == 0 {
			p, err := bench.RunPrefill(e.ctx, o, func(string) {})
			if err != nil {
				return err
			}
			m, ceiling, best, rate, what, limit = p.Machine, p.Ceiling, p.PeakShare, p.TokensPerS, fmt.Sprintf("prefill %d tokens", r.context), "arithmetic"
			median = best * p.MedianPerS / p.TokensPerS
		} else {
			d, err := bench.RunDecode(e.ctx, o, func(string) {})
			if err != nil {
				return err
			}
			m, ceiling, best, median, rate = d.Machine, d.Ceiling, d.Share, d.MedianShare, d.TokensPerS
			what = fmt.Sprintf("decode, context %d, batch %d", r.context, r.batch)
			if r.batch > 1 {
				best, median, limit = d.Roofline, d.Roofline*d.MedianPerS/d.TokensPerS, "roofline"
			}
		}
		if i == 0 {
			printMachine(e.stdout, m, ceiling)
			fmt.Fprintf(e.stdout, "%s, cache bf16\n%-8s %-34s %12s %-12s %6s %7s %6s\n", c.Model, "weights", "", "tokens/s", "share of", "best", "median", "goal")
		}
		fmt.Fprintf(e.stdout, "%-8s %-34s %12.2f %-12s %6.2f %7.2f %6.2f\n", r.weights, what, rate, limit, best, median, r.goal)
	}
	return nil
}

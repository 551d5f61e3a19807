package lab

import (
	"fmt"
	"io"
	"slices"

	"github.com/shoal-llm/shoal/actors/socket/shard"
	"github.com/shoal-llm/shoal/internal/bench"
	"github.com/shoal-llm/shoal/internal/cli/ui"
)

type benchLoRACmd struct {
	benchFlags
	Adapters []int `default:"1,8,32" range:"1..256" help:"Comma-separated numbers of adapters in one step. Each is compared with the same step without adapters."`
	Rows     int   `default:"16" range:"1..512" help:"Sequences of each adapter."`
	Rank     int   `default:"16" range:"1..256" help:"Rank of the adapters, which change every projection."`
	Context  int   `default:"128" range:"1.." help:"Tokens in the cache of each sequence."`
	Rounds   int   `default:"3" range:"1.." help:"Rounds with and without adapters, in alternation."`
	Steps    int   `default:"8" range:"1.." help:"Decode steps to measure in each round."`
}

func (c *benchLoRACmd) Run(e *ui.Env) error {
	o, err := c.options()
	if err != nil {
		return err
	}
	if c.Rank > shard.MaxAdapterRank || slices.Max(c.Adapters)*c.Rows > 1<<15 {
		return fmt.Errorf("--adapters %v with --rows %d: want at most %d sequences in one step", c.Adapters, c.Rows, 1<<15)
	}
	l := bench.LoRAOptions{Counts: c.Adapters, Rank: c.Rank, Rows: c.Rows, Rounds: c.Rounds, StepsARound: c.Steps, ContextOfRow: c.Context}
	return runMeasurement(&c.benchFlags, e, func(progress func(string)) (*bench.LoRA, error) {
		return bench.RunLoRA(e.Ctx, o, l, progress)
	}, printLoRA)
}

func printLoRA(w io.Writer, l *bench.LoRA) {
	fmt.Fprintf(w, "%s %s, cache %s, %d threads, context %d, rank %d, %d rows of each adapter\n", l.Model, l.Weights,
		l.KV, l.Threads, l.Context, l.Rank, l.Rows)
	for _, r := range l.Counts {
		fmt.Fprintf(w, "  %3d adapters: %.1f tokens/s, without %.1f: %.2f (by processor time %.2f); an adapter has %.1f MB\n", r.Adapters,
			r.Adapted, r.Plain, r.Ratio, r.CPURatio, float64(r.Bytes)/1e6)
	}
}

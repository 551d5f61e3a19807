package lab

import (
	"fmt"
	"io"

	"github.com/shoal-llm/shoal/internal/bench"
	"github.com/shoal-llm/shoal/internal/cli/ui"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

type benchFormsCmd struct {
	shapeFlags
	Forms   []string `default:"q8_0,q4_0,iq4_nl,int4,mxfp4" help:"Comma-separated types of the weights in memory. The others are compared with the first. Published forms that are requantized have the speed of the type that holds them."`
	Context int      `default:"128" range:"1.." help:"Tokens in the cache of each sequence while decode is measured."`
	Batch   int      `default:"1" range:"1..4096" help:"Sequences in one decode step."`
	Tokens  int      `default:"32" range:"1.." help:"Decode steps to measure in each round."`
	Prompt  int      `default:"512" range:"1..65536" help:"Tokens of the prompt while prefill is measured."`
	Rounds  int      `default:"3" range:"1.." help:"Rounds over all types. Medians are reported."`
}

func (c *benchFormsCmd) Run(e *ui.Env) error {
	o, err := c.options()
	if err != nil {
		return err
	}
	var types []tensor.DType
	for _, name := range c.Forms {
		dt, err := parseWeights("--forms", name)
		if err != nil {
			return err
		}
		types = append(types, dt)
	}
	o.Context, o.Batch, o.Tokens, o.Nodes = c.Context, c.Batch, c.Tokens, 1
	return runMeasurement(&benchFlags{shapeFlags: c.shapeFlags}, e, func(progress func(string)) (*bench.Forms, error) {
		return bench.RunForms(e.Ctx, o, types, c.Prompt, c.Rounds, progress)
	}, printForms)
}

func printForms(w io.Writer, f *bench.Forms) {
	fmt.Fprintf(w, "%s, cache %s, %d threads, batch %d, context %d, prompt %d, medians of %d rounds\n", f.Model, f.KV,
		f.Threads, f.Batch, f.Context, f.Prompt, f.Rounds)
	first := f.Forms[0].Weights
	for _, x := range f.Forms {
		fmt.Fprintf(w, "  %-7s %8.1f MB  decode %8.2f tokens/s, %.2f times %s, %.0f %% of the read rate; prefill %8.1f tokens/s, %.2f times, "+
			"%.0f %% of the peak\n",
			x.Weights, float64(x.WeightBytes)/1e6, x.Decode, x.DecodeRatio, first, 100*x.BandwidthShare, x.Prefill, x.PrefillRatio, 100*x.PeakShare)
	}
}

package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/shoal-llm/shoal/internal/bench"
	"github.com/shoal-llm/shoal/internal/bench/forecast"
	"github.com/shoal-llm/shoal/internal/cli/models"
	"github.com/shoal-llm/shoal/internal/cli/ui"
	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/machine/costs"
	"github.com/shoal-llm/shoal/topology"
)

type benchForecastCmd struct {
	Model   string        `short:"m" default:"llama-3.2-1b" placeholder:"DIR|SHAPE" help:"Checkpoint folder, or shape of a public model; a shape has random weights: ${shapes}."`
	Nodes   []int         `short:"n" default:"1,2,4" range:"1..16" help:"Numbers of node processes. Each is measured by itself."`
	Rows    []int         `default:"1,4,8,16" range:"1..64" help:"Numbers of sequences in one decode step."`
	Prompt  []int         `default:"512,4096" range:"1.." help:"Prompt lengths in tokens. Each is measured with each number of rows, and the time to its first token."`
	Quant   string        `default:"q8_0" help:"Type of the weights in memory: f32, bf16, f16, q8_0, q4_0, iq4_nl, int4, mxfp4."`
	KVType  string        `name:"kv-type" default:"bf16" help:"Type of the cache: f32, bf16, int8."`
	Mapping string        `default:"auto" help:"How attention weights are split: gather, reduce, auto."`
	Tokens  int           `default:"48" range:"2.." help:"Tokens to decode per sequence."`
	Threads int           `range:"1..1024" placeholder:"N" help:"Compute threads per node (default: as for shoal up)."`
	Limit   time.Duration `default:"140s" range:"1s.." help:"Time limit. Numbers of nodes get equal parts of it; later measurements are left out."`
	JSON    bool          `name:"json" help:"Print JSON."`
}

func (c *benchForecastCmd) Help() string {
	return `Measures what computations and exchanges cost on this machine, forecasts decode steps and first tokens
from that (as shoal plan --measure does), measures the same over node processes, and prints the error of
each forecast. Decode steps are forecast with the number of threads that the nodes chose. Short prompts and
few rows come first.

  shoal lab forecast
  shoal lab forecast -n 2 --rows 1,8 --prompt 512 --json`
}

// forecasts is the comparison of forecasts with measurements.
type forecasts struct {
	Machine bench.Machine         `json:"machine"`
	Model   string                `json:"model"`
	Quant   string                `json:"quant"`
	KVType  string                `json:"kv_type"`
	Costs   map[int][]costs.Table `json:"costs"` // by number of nodes
	Cells   []forecast.Cell       `json:"cells"`
	Near    int                   `json:"near"` // forecasts with an error of at most forecast.Near
	Left    int                   `json:"left"` // cells that were not measured for lack of time
}

func (c *benchForecastCmd) Run(e *ui.Env) error {
	ck, dir, err := openShape(e, c.Model)
	if err != nil {
		return err
	}
	defer ck.Close()
	if most, prompt := ck.Config.MaxPositions, slices.Max(c.Prompt); prompt+c.Tokens >= most {
		return fmt.Errorf("--prompt %d, --tokens %d: %s supports %d tokens", prompt, c.Tokens, c.Model, most)
	}
	slices.Sort(c.Prompt)
	slices.Sort(c.Rows)
	f := &forecasts{Machine: bench.ThisMachine(), Model: c.Model, Quant: c.Quant, KVType: c.KVType, Costs: map[int][]costs.Table{}}
	end := time.Now().Add(c.Limit)
	for i, n := range c.Nodes {
		part := time.Until(end) / time.Duration(len(c.Nodes)-i)
		ctx, cancel := context.WithTimeoutCause(e.Ctx, part, errOutOfTime)
		err := c.measure(e.With(ctx), f, &ck.Config, dir, n)
		cancel()
		if err != nil && !(errors.Is(err, errOutOfTime) && e.Ctx.Err() == nil) {
			return err
		}
	}
	f.Near = forecast.CountNear(f.Cells)
	f.Left = len(c.Nodes)*len(c.Prompt)*(len(c.Rows)+1) - len(f.Cells)
	return printResult(e, c.JSON, f, nil, printForecasts)
}

var errOutOfTime = errors.New("lab: this number of nodes has used its part of the time")

// measure adds the cells of one number of nodes. It returns errOutOfTime if there was no time for all.
func (c *benchForecastCmd) measure(e *ui.Env, f *forecasts, cfg *model.Config, dir string, nodes int) error {
	l := benchClusterCmd{Model: c.Model, Nodes: nodes, Quant: c.Quant, KVType: c.KVType, Mapping: c.Mapping, Context: c.Prompt, Batch: c.Rows,
		Tokens: c.Tokens, Threads: c.Threads, Policy: "full", Prefill: "auto"}
	w, kv, err := l.types()
	if err != nil {
		return err
	}
	tables, err := models.MeasuredCosts(e.Ctx, cfg, w, kv, nodes, nodes, c.Threads)
	if err != nil {
		return outOfTime(e.Ctx, err)
	}
	f.Costs[nodes] = tables
	memory, err := l.memory(cfg)
	if err != nil {
		return err
	}
	up := l.up(dir, 2*memory) // prompts are also in the prefix cache
	if err := up.Check(); err != nil {
		return err
	}
	running, err := up.StartAndWait(e)
	if err != nil {
		return outOfTime(e.Ctx, err)
	}
	defer running.Stop()
	o := bench.ProcessOptions{Coordinator: running.Coordinator, PIDs: running.Children.PIDs, Model: c.Model, Weights: c.Quant, KV: c.KVType,
		Nodes: nodes, Threads: up.Speeds.Threads, Tokens: c.Tokens, Cached: true}
	mapping := running.Coordinator.Cluster().Mapping
	work := forecast.WorkOf(cfg, w, kv, topology.Mapping(mapping))
	of := forecast.ClusterOf(nodes, tables)
	o.First, o.Prompt, o.Repeat = len(c.Prompt)*slices.Max(c.Rows), c.Prompt[0], 1 // the first prompt of a cluster is slower
	if _, err := bench.ReadPrompts(e.Ctx, o); err != nil {
		return outOfTime(e.Ctx, err)
	}
	for i, prompt := range c.Prompt {
		read := 0
		for _, rows := range c.Rows {
			cell := forecast.Cell{Nodes: nodes, Threads: up.Speeds.Threads.Max, Mapping: mapping, Prompt: prompt}
			o.First = i*slices.Max(c.Rows) + read
			o.Prompt, o.Repeat = prompt, max(1, rows-read)
			p, err := bench.ReadPrompts(e.Ctx, o)
			if err != nil {
				return outOfTime(e.Ctx, err)
			}
			if read == 0 {
				cell.Forecast = work.Prompt(of, prompt, running.Coordinator.Chunk())
				cell.Measured = forecast.Parts{Step: p.Seconds, Compute: p.Compute, Wait: p.Wait, Control: p.Control}
				f.Cells = append(f.Cells, cell)
			}
			read = rows
			o.First, o.Prompt, o.Context, o.Batch = i*slices.Max(c.Rows), 0, prompt, rows
			d, err := bench.DecodeOfProcesses(e.Ctx, o)
			if err != nil {
				return outOfTime(e.Ctx, err)
			}
			cell.Rows, cell.Threads = rows, d.Threads
			cell.Forecast = work.Decode(forecast.ClusterOf(nodes, forecast.Chosen(tables, d.Threads)), rows, prompt+c.Tokens/2)
			cell.Measured = forecast.Parts{Step: d.StepMicros / 1e6, Compute: d.Compute / 1e6, Wait: d.Wait / 1e6, Control: d.Control / 1e6}
			f.Cells = append(f.Cells, cell)
		}
	}
	return nil
}

// outOfTime returns errOutOfTime if that is why something failed.
func outOfTime(ctx context.Context, err error) error {
	if errors.Is(context.Cause(ctx), errOutOfTime) {
		return errOutOfTime
	}
	return err
}

func printForecasts(w io.Writer, f *forecasts) {
	fmt.Fprintln(w, f.Machine)
	fmt.Fprintf(w, "%s %s, caches %s; forecast and measured times in ms: all (compute + wait + control)\n", f.Model, f.Quant, f.KVType)
	for _, nodes := range slices.Sorted(maps.Keys(f.Costs)) {
		for _, t := range f.Costs[nodes] {
			printCosts(w, nodes, &t)
		}
	}
	fmt.Fprintf(w, "  %5s %7s %7s %6s %5s  %34s  %34s  %7s\n", "nodes", "threads", "mapping",
		"prompt", "rows", "forecast", "measured", "error")
	for i := range f.Cells {
		c := &f.Cells[i]
		rows := "first"
		if c.Rows > 0 {
			rows = fmt.Sprint(c.Rows)
		}
		t, m := c.Forecast, c.Measured
		fmt.Fprintf(w, "  %5d %7d %7s %6d %5s  %34s  %34s  %+5.0f %%\n", c.Nodes, c.Threads, c.Mapping, c.Prompt, rows,
			partsText(t.Step, t.Compute, t.Wait, t.Control), partsText(m.Step, m.Compute, m.Wait, m.Control), 100*c.Error())
	}
	fmt.Fprintf(w, "%d of %d forecasts are within %.0f %%", f.Near, len(f.Cells), 100*forecast.Near)
	if f.Left > 0 {
		fmt.Fprintf(w, "; %d cells were not measured: raise --limit", f.Left)
	}
	fmt.Fprintln(w)
}

func partsText(all, compute, wait, control float64) string {
	return fmt.Sprintf("%.2f (%.2f + %.2f + %.2f)", 1e3*all, 1e3*compute, 1e3*wait, 1e3*control)
}

func printCosts(w io.Writer, nodes int, t *costs.Table) {
	fmt.Fprintf(w, "  1 of %d nodes, %d threads: billion multiply-adds/s by rows:", nodes, t.Threads)
	for i, rows := range costs.Rows {
		fmt.Fprintf(w, " %d: %.0f", rows, float64(rows)/t.Products[i]/1e9)
	}
	fmt.Fprintf(w, "; region %.1f us; 1024 slots of a row %.1f us, of a prompt's row %.1f us; exchange %.0f us, message %.1f us, 64 KiB "+
		"%.0f us, copy %.0f us; a token from all logits %.0f us; start of a product %.1f us, alone %.2f of the time; "+
		"1024 elements: norm %.2f us, quantization %.2f us\n",
		1e6*t.Region, 1024e6*t.Slot, 1024e6*t.PromptSlot, 1e6*t.Exchange, 1e6*t.Message, 65536e6*t.Byte, 65536e6*t.Copy, 1e6*t.Sample,
		1e6*t.Start, t.Alone, 1024e6*t.Element, 1024e6*t.Round)
}

package lab

import (
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/shoal-llm/shoal/cluster"
	"github.com/shoal-llm/shoal/internal/bench"
	"github.com/shoal-llm/shoal/internal/bench/forecast"
	"github.com/shoal-llm/shoal/internal/cli/launch"
	"github.com/shoal-llm/shoal/internal/cli/models"
	"github.com/shoal-llm/shoal/internal/cli/ui"
	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/options"
	"github.com/shoal-llm/shoal/topology"
)

type benchClusterCmd struct {
	Model      string        `short:"m" default:"bench160m" placeholder:"DIR|SHAPE" help:"Checkpoint folder, or shape of a public model; a shape has random weights: ${shapes}."`
	Nodes      int           `short:"n" default:"4" range:"1..64" help:"Node processes."`
	Quant      string        `default:"q8_0" help:"Type of the weights in memory: f32, bf16, f16, q8_0, q4_0, iq4_nl, int4, mxfp4."`
	KVType     string        `name:"kv-type" default:"bf16" help:"Type of the cache: f32, bf16, int8."`
	Mapping    string        `default:"auto" help:"How attention weights are split: gather, reduce, auto."`
	Context    []int         `default:"128" range:"1.." help:"Prompt lengths in tokens. Each is measured with each --batch."`
	Batch      []int         `default:"1" range:"1..64" help:"Numbers of sequences in one decode step. Each is measured by itself."`
	Tokens     int           `default:"64" range:"2.." help:"Tokens to decode per sequence."`
	Prompt     int           `range:"1.." placeholder:"LENGTH" help:"Measure prefill instead of decode: prompts of LENGTH tokens, one at a time."`
	Trials     int           `range:"16..1000" placeholder:"ROUNDS" help:"Measure the choice of threads instead of decode: try each number of threads ROUNDS times (16 to 1000). Reports the time of a step with each number, and how good a choice after eight rounds is."`
	Repeat     int           `default:"2" range:"1.." help:"With --prompt: number of prompts."`
	Chunk      int           `help:"With --prompt: prompt tokens per step (default: as for shoal up)."`
	Policy     string        `default:"full" help:"With --prompt: cache policy of the prompts."`
	Prefill    string        `default:"auto" oneof:"auto,chunks,layers" help:"With --prompt: how prompts are read, as for shoal up."`
	Threads    int           `range:"1..1024" placeholder:"N" help:"Compute threads per node (default: as for shoal up)."`
	Processors int           `hidden:"" help:"GOMAXPROCS of each node."`
	Limit      time.Duration `default:"5m" range:"1ms.." help:"Time limit for the whole measurement."`
	JSON       bool          `name:"json" help:"Print JSON."`
}

func (c *benchClusterCmd) Run(e *ui.Env) error {
	ck, dir, err := openShape(e, c.Model)
	if err != nil {
		return err
	}
	defer ck.Close()
	if c.Prompt > 0 && c.Nodes > 16 {
		return fmt.Errorf("--nodes %d: want at most 16 with --prompt", c.Nodes)
	}
	if most, context := ck.Config.MaxPositions,
		slices.Max(c.Context); c.Prompt >= most || c.Prompt == 0 && (context >= most || c.Tokens > most-context) {
		return fmt.Errorf("--prompt %d, --context %d, --tokens %d: %s supports %d tokens", c.Prompt, context, c.Tokens, c.Model, most)
	}
	if c.Trials != 0 && (c.Prompt > 0 || c.Threads > 0) {
		return fmt.Errorf("--trials %d: remove --prompt and --threads", c.Trials)
	}
	ctx, cancel := context.WithTimeoutCause(e.Ctx, c.Limit, fmt.Errorf("lab: not finished in %v: raise --limit", c.Limit))
	defer cancel()
	memory, err := c.memory(&ck.Config)
	if err != nil {
		return err
	}
	up := c.up(dir, memory)
	if err := up.Check(); err != nil {
		return err
	}
	of, err := c.forecasts(ctx, &ck.Config)
	if err != nil {
		return err
	}
	trials := &options.ThreadTrials{Rounds: c.Trials}
	l, err := up.StartAndWait(e.With(options.WithThreadTrials(ctx, trials)))
	if err != nil {
		return err
	}
	defer l.Stop()
	o := bench.ProcessOptions{Coordinator: l.Coordinator, PIDs: l.Children.PIDs, Model: c.Model, Weights: c.Quant, KV: c.KVType,
		Nodes: c.Nodes, Threads: up.Speeds.Threads,
		Tokens: c.Tokens, Prompt: c.Prompt, Repeat: c.Repeat}
	if c.Prompt > 0 {
		f, err := bench.PromptsOfProcesses(ctx, o)
		return printResult(e, c.JSON, f, err, printPrompts)
	}
	for _, o.Context = range c.Context {
		for _, o.Batch = range c.Batch {
			if c.Trials > 0 {
				f, err := bench.TrialsOfProcesses(ctx, o, trials)
				if err := printResult(e, c.JSON, f, err, printTrials); err != nil {
					return err
				}
				continue
			}
			f, err := bench.DecodeOfProcesses(ctx, o)
			if err := printResult(e, c.JSON, withForecast{f, of(f)}, err, printProcesses); err != nil {
				return err
			}
		}
	}
	return nil
}

// openShape opens a checkpoint's folder, or random weights of a shape.
func openShape(e *ui.Env, of string) (ck *checkpoint.Checkpoint, dir string, err error) {
	dir = of
	if !ui.Exists(dir) && !models.CanPull(dir) {
		if _, err := shapeOf(dir); err != nil {
			return nil, "", err
		}
		dir = checkpoint.RandomPrefix + dir
	}
	if dir, err = (models.ModelFlag{Model: dir}).Dir(e); err == nil {
		ck, err = checkpoint.Open(dir)
	}
	if err != nil {
		return nil, "", fmt.Errorf("--model: %w", err)
	}
	return ck, dir, nil
}

// up returns the cluster that is measured, with the bytes of caches of a node.
func (c *benchClusterCmd) up(dir string, memory int64) *launch.Up {
	up := benchCluster(c.Nodes, c.Threads, memory, dir, c.Quant, c.KVType)
	up.Serve.Mapping, up.Serve.Policy, up.Serve.Chunk, up.NoJobs, up.Processors = c.Mapping, c.Policy, c.Chunk, true, c.Processors
	up.Serve.Prefill = c.Prefill
	up.Serve.Queue, up.Serve.StepDeadline, up.Serve.SyncDeadline = 1024, time.Minute, 30*time.Second
	return up
}

// types returns the types of the weights and of the caches.
func (c *benchClusterCmd) types() (weights, kv tensor.DType, err error) {
	if weights, err = tensor.ParseDType(c.Quant); err != nil {
		return 0, 0, fmt.Errorf("--quant: %w", err)
	}
	if kv, err = tensor.ParseDType(c.KVType); err != nil {
		return 0, 0, fmt.Errorf("--kv-type: %w", err)
	}
	return weights, kv, nil
}

// memory returns the bytes for caches on a node: the default, or more if the largest batch
// needs it.
func (c *benchClusterCmd) memory(cfg *model.Config) (int64, error) {
	weights, kv, err := c.types()
	if err != nil {
		return 0, err
	}
	longest := 2 * (slices.Max(c.Context) + c.Tokens) // twice: other prompts are read meanwhile, and memory is allocated in blocks
	sequences := (slices.Max(c.Batch)-1)/max(1, c.Nodes) + 1
	return max(1<<30, int64(sequences)*bench.CostsOf(cfg, weights, kv).KVBytes(longest)), nil
}

// benchCluster returns the local cluster that a benchmark starts.
func benchCluster(nodes, threads int, memory int64, model, weights, kv string) *launch.Up {
	up := &launch.Up{Nodes: nodes, LogFlags: launch.LogFlags{LogLevel: "warn"},
		NodeFlags: launch.NodeFlags{Resources: cluster.Resources{KVMemory: memory, Threads: threads}}}
	up.Listen, up.Model, up.Quant, up.Serve.KV, up.Serve.StepTokens = "127.0.0.1:0", []string{model}, models.Quant(weights), kv, 512
	up.Serve.Speculate = "off" // text from random weights repeats itself, so drafts would distort the result
	return up
}

// withForecast is a measurement with the forecast of shoal plan.
type withForecast struct {
	*bench.Processes
	Forecast forecast.Time `json:"forecast"`
}

// forecasts measures this machine for decode, and returns the forecast of a measured step.
func (c *benchClusterCmd) forecasts(ctx context.Context, cfg *model.Config) (func(*bench.Processes) forecast.Time, error) {
	weights, kv, err := c.types()
	if err != nil || c.Prompt > 0 || c.Trials > 0 {
		return nil, err
	}
	tables, err := models.MeasuredCosts(ctx, cfg, weights, kv, c.Nodes, c.Nodes, c.Threads)
	if err != nil {
		return nil, err
	}
	return func(f *bench.Processes) forecast.Time {
		if f == nil {
			return forecast.Time{}
		}
		w := forecast.WorkOf(cfg, weights, kv, topology.Mapping(f.Mapping))
		return w.Decode(forecast.ClusterOf(f.Nodes, tables), f.Batch, f.Context+c.Tokens/2)
	}, nil
}

func printProcesses(w io.Writer, f withForecast) {
	fmt.Fprintln(w, f.Machine)
	fmt.Fprintf(w, "%s %s over %d processes, mapping %s, batch %d, context %d: %.1f tokens/s\n", f.Model, f.Quant, f.Nodes,
		f.Mapping, f.Batch, f.Context, f.TokensPerS)
	fmt.Fprintf(w, "  a step: %.0f us = compute %.0f (slowest node) + wait for collectives %.0f + control %.0f; %.1f kB sent per token\n",
		f.StepMicros, f.Compute, f.Wait, f.Control, f.WirePerToken/1e3)
	if t := f.Forecast; t.Step > 0 {
		fmt.Fprintf(w, "  forecast: %.0f us = compute %.0f + wait %.0f + control %.0f; %.1f kB sent per token; %d exchanges, %.0f messages\n",
			1e6*t.Step, 1e6*t.Compute, 1e6*t.Wait, 1e6*t.Control, t.Sent/float64(f.Batch)/1e3, t.Syncs, t.Messages)
	}
	printThreads(w, f.Shared)
}

func printTrials(w io.Writer, f *bench.Trials) {
	fmt.Fprintln(w, f.Machine)
	fmt.Fprintf(w, "%s %s over %d processes, mapping %s, batch %d, context %d, a step:", f.Model,
		f.Quant, f.Nodes, f.Mapping, f.Batch, f.Context)
	for i, threads := range f.Threads {
		fmt.Fprintf(w, " %.0f us with %d threads,", f.Micros[i], threads)
	}
	fmt.Fprintf(w, " of which %d are chosen\n  choices by eight of %d rounds: %.0f %% within 5 %% of the fastest, steps %.1f %% longer in "+
		"the mean\n", f.Chosen, f.Rounds, 100*f.Near, 100*f.Longer)
}

func printPrompts(w io.Writer, f *bench.ProcessPrompts) {
	fmt.Fprintln(w, f.Machine)
	fmt.Fprintf(w, "%s %s over %d processes, mapping %s, prompts of %d in %d steps: %.1f tokens/s\n", f.Model, f.Quant, f.Nodes,
		f.Mapping, f.Prompt, f.Steps, f.TokensPerS)
	fmt.Fprintf(w, "  the fastest: %.3f s = compute %.3f (slowest node) + wait for collectives %.3f + control %.3f; processor time of the "+
		"nodes %.2f s; %.1f MB sent\n",
		f.Seconds, f.Compute, f.Wait, f.Control, f.Processor, float64(f.Wire)/1e6)
	printThreads(w, f.Shared)
	fmt.Fprintf(w, "  floor: %.3f s of arithmetic on %d cores (%.0f VNNI GOP/s, %.0f FMA GFLOP/s); %.3f s of bus (%.0f MB/s sent, nothing "+
		"else running)\n",
		f.Arithmetic, f.Ceiling.Threads, f.Ceiling.VNNI, f.Ceiling.FMA, f.Bus, f.BusRate/1e6)
}

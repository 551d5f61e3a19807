package lab

import (
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/pprof"
	"strings"

	"github.com/shoal-llm/shoal/actors/batcher/booking"
	"github.com/shoal-llm/shoal/cluster"
	"github.com/shoal-llm/shoal/internal/bench"
	"github.com/shoal-llm/shoal/internal/cli/ui"
	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/kvpolicy"
	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/options"
	"github.com/shoal-llm/shoal/internal/sys/garbage"
	"github.com/shoal-llm/shoal/topology"
)

// benchFlags choose the model and the types to measure.
type benchFlags struct {
	shapeFlags
	Quant string `default:"q8_0" help:"Type of the weights in memory: f32, bf16, f16, q8_0, q4_0, iq4_nl, int4, mxfp4."`
}

// shapeFlags are benchFlags without the type of the weights.
type shapeFlags struct {
	Model      string `short:"m" default:"bench160m" placeholder:"SHAPE" help:"Shape of a public model; its weights are random: ${shapes}."`
	KVType     string `name:"kv-type" default:"bf16" help:"Type of the cache: f32, bf16, int8."`
	Threads    int    `range:"1..1024" placeholder:"N" help:"Compute threads (default: all CPUs)."`
	Device     string `default:"cpu" placeholder:"cpu|cuda:N" help:"Device: cpu, or the graphics card cuda:N. On a card, the share of the read is of its memory, and shares of the arithmetic peak are not measured."`
	CPUProfile string `type:"path" name:"cpuprofile" placeholder:"FILE" help:"Write a CPU profile to this file, for go tool pprof."`
	JSON       bool   `name:"json" help:"Print JSON."`
}

func (f *benchFlags) options() (o bench.Options, err error) {
	if o, err = f.shapeFlags.options(); err == nil {
		o.Weights, err = parseWeights("--quant", f.Quant)
	}
	return o, err
}

// parseWeights reads a type of weights that a flag names.
func parseWeights(flag, name string) (tensor.DType, error) {
	dt, err := tensor.ParseDType(name)
	if err != nil {
		return dt, fmt.Errorf("%s: %w", flag, err)
	}
	if tensor.WeightBytes(dt, 16, 32) == 0 {
		return dt, fmt.Errorf("%s %s is not a type of weights: want f32, bf16, f16, q8_0, q4_0, iq4_nl, int4 or mxfp4", flag, name)
	}
	return dt, nil
}

func (f *shapeFlags) options() (o bench.Options, err error) {
	o.Model, o.Threads, o.Device = f.Model, f.Threads, f.Device
	if _, card := cluster.CardIndex(f.Device); !card && f.Device != cluster.DeviceCPU {
		return o, fmt.Errorf("--device %q: want cpu or cuda:N, such as cuda:0", f.Device)
	}
	if o.Threads == 0 {
		o.Threads = runtime.GOMAXPROCS(0)
	}
	if _, err := shapeOf(f.Model); err != nil {
		return o, err
	}
	if o.KV, err = tensor.ParseDType(f.KVType); err != nil {
		return o, fmt.Errorf("--kv-type: %w", err)
	}
	if err := (tensor.KVLayout{Type: o.KV, KDim: 64, VDim: 64}).Validate(); err != nil {
		return o, fmt.Errorf("--kv-type: %w", err)
	}
	return o, nil
}

// shapeOf returns the config of the public model that --model names.
func shapeOf(name string) (*model.Config, error) {
	ck, err := checkpoint.Random(name)
	if err != nil {
		return nil, fmt.Errorf("--model: %w (weights are random: no folder is read; lab batch reads one)", err)
	}
	return &ck.Config, nil
}

// runMeasurement runs a measurement with the garbage collector settings of a node, and writes
// a CPU profile if --cpuprofile is set. It shows progress and prints the result.
func runMeasurement[T any](f *benchFlags, e *ui.Env, run func(progress func(string)) (T, error), text func(io.Writer, T)) error {
	defer garbage.Limit(cluster.GarbageBytes)()
	if f.CPUProfile != "" {
		file, err := os.Create(f.CPUProfile)
		if err != nil {
			return fmt.Errorf("--cpuprofile: %w", err)
		}
		defer file.Close()
		if err := pprof.StartCPUProfile(file); err != nil {
			return err
		}
		defer pprof.StopCPUProfile()
	}
	line := ui.NewStatusLine(e, true)
	v, err := run(func(s string) { line.Set(s + " ...") })
	line.End()
	return printResult(e, f.JSON, v, err, text)
}

// printResult prints a result as JSON or as text, or returns err.
func printResult[T any](e *ui.Env, json bool, v T, err error, text func(io.Writer, T)) error {
	switch {
	case err != nil:
		return err
	case json:
		return ui.PrintJSON(e.Stdout, v)
	}
	text(e.Stdout, v)
	return nil
}

type benchDecodeCmd struct {
	benchFlags
	Context int      `default:"128" range:"1.." help:"Tokens in the cache of each sequence."`
	Batch   int      `default:"1" range:"1..4096" help:"Sequences in one decode step."`
	Tokens  int      `default:"64" range:"1.." help:"Decode steps to measure."`
	Nodes   int      `short:"n" default:"1" range:"1..64" help:"Tensor-parallel ranks in this process, each with --threads threads. They exchange over NATS, and sequences are assigned to them in turn."`
	Mapping string   `default:"reduce" help:"With --nodes: how attention weights are split, gather or reduce."`
	Policy  []string `default:"full" sep:"none" help:"Cache policy to measure, compared with full in the same run. Repeat the flag for several."`
}

func (c *benchDecodeCmd) Run(e *ui.Env) error {
	o, err := c.options()
	if err != nil {
		return err
	}
	for _, p := range c.Policy {
		if _, err := kvpolicy.Parse(p); err != nil {
			return fmt.Errorf("--policy: %w", err)
		}
	}
	o.Context, o.Batch, o.Tokens, o.Nodes = c.Context, c.Batch, c.Tokens, c.Nodes
	if o.Mapping, err = topology.ParseMapping(c.Mapping); err != nil {
		return fmt.Errorf("--mapping: %w", err)
	}
	if c.Threads == 0 && c.Nodes > 1 {
		o.Threads = topology.ThreadsOf(runtime.GOMAXPROCS(0), c.Nodes).Max
	}
	return runMeasurement(&c.benchFlags, e, func(progress func(string)) (*bench.Decode, error) {
		return bench.RunDecode(e.Ctx, o, c.Policy, progress)
	}, printDecode)
}

func printDecode(w io.Writer, d *bench.Decode) {
	printMachine(w, d.Machine, d.Ceiling)
	if d.Baseline != nil {
		printDecodeFigures(w, d.Baseline)
	}
	for _, d := range append([]*bench.Decode{d}, d.Others...) {
		printDecodeFigures(w, d)
		if d.Times > 0 {
			fmt.Fprintf(w, "  reads %.1f %% of the cache (%.1f of %.1f MB a token); %.2f times full, and the bytes of both would give %.2f\n",
				100*d.CacheShare, d.CacheBytes/1e6, d.CacheBytes/d.CacheShare/1e6, d.Times, d.Bound)
		}
	}
}

func printDecodeFigures(w io.Writer, d *bench.Decode) {
	fmt.Fprintf(w, "%s %s, cache %s, policy %s, batch %d, context %d", d.Model, d.Weights, d.KV, d.Policy, d.Batch, d.Context)
	if d.Nodes > 1 {
		fmt.Fprintf(w, ", over %d sockets, mapping %s", d.Nodes, d.Mapping)
	}
	fmt.Fprintln(w)
	fmt.Fprintf(w, "  %.2f tokens/s (median step %.2f, mean %.2f)\n", d.TokensPerS, d.MedianPerS, d.MeanPerS)
	fmt.Fprintf(w, "  %.1f MB a token, %.1f of %.1f GB/s that the same threads read between the steps: %.0f %% (median step %.0f %%, by "+
		"processor time %.0f %%), %.0f %% of the arithmetic peak, %.0f %% of the roofline\n",
		d.PerToken/1e6, d.Bandwidth, d.Read, 100*d.Share, 100*d.MedianShare, 100*d.CPUShare, 100*d.PeakShare, 100*d.Roofline)
	printStages(w, d.Stages)
	printThreads(w, d.Shared)
}

type benchPrefillCmd struct {
	benchFlags
	Context int    `default:"512" range:"1..1048576" help:"Prompt length in tokens."`
	Chunk   int    `range:"1.." help:"Prompt tokens per step (default: the whole prompt; layer by layer: 256)."`
	Policy  string `default:"full" help:"Cache policy. Its work at the end of the prompt is part of the measurement."`
	Repeat  int    `default:"5" range:"1.." help:"Prompts to measure."`
	Prefill string `default:"chunks" oneof:"chunks,layers" help:"How prompts are read: chunks, or layers (one layer after another, under a policy that drops tokens)."`
	Layers  int    `range:"1.." placeholder:"N" help:"With --prefill layers: only the first N layers read the prompt, which shows the peak of memory in less time. Tokens per second are those of all layers (default: all)."`
	KVDisk  string `name:"kv-disk" type:"path" placeholder:"DIR" help:"With --prefill layers: folder for the residual stream."`

	SwiftKV []float64 `name:"swiftkv" placeholder:"SHARE,..." help:"Fractions of the layers to skip for all prompt tokens but the last (SwiftKV), such as 0.5. Each is compared with 0."`
	Group   int       `default:"1" help:"With --swiftkv: number of adjacent skipped layers that share one cache (AcrossKV)."`
}

func (c *benchPrefillCmd) Run(e *ui.Env) error {
	o, err := c.options()
	if err != nil {
		return err
	}
	if _, err := kvpolicy.Parse(c.Policy); err != nil {
		return fmt.Errorf("--policy: %w", err)
	}
	o.Context, o.Chunk, o.Policy, o.Repeat = c.Context, c.Chunk, c.Policy, c.Repeat
	o.Prefill, o.Layers, o.KVDisk = c.Prefill, c.Layers, c.KVDisk
	if c.Prefill != booking.Layers && (c.Layers > 0 || c.KVDisk != "") {
		return errors.New("--layers and --kv-disk are for --prefill layers")
	}
	if c.Prefill == booking.Layers && c.Chunk == 0 {
		o.Chunk = 256
	}
	if len(c.SwiftKV) > 0 {
		return runMeasurement(&c.benchFlags, e, func(progress func(string)) (*bench.SwiftKV, error) {
			return bench.RunSwiftKV(e.Ctx, o, c.SwiftKV, c.Group, progress)
		}, printSwiftKV)
	}
	return runMeasurement(&c.benchFlags, e,
		func(progress func(string)) (*bench.Prefill, error) { return bench.RunPrefill(e.Ctx, o, progress) }, printPrefill)
}

func printSwiftKV(w io.Writer, s *bench.SwiftKV) {
	printMachine(w, s.Machine, s.Ceiling)
	fmt.Fprintf(w, "%s %s, cache %s, policy %s, prompt of %d tokens in chunks of %d, the best of %d in turn\n", s.Model, s.Weights,
		s.KV, s.Policy, s.Tokens, s.Chunk, s.Repeat)
	fmt.Fprintf(w, "  %8s  %6s  %6s  %12s  %10s  %6s  %10s  %12s  %11s\n", "left out", "layers", "caches", "cache, token", "tokens/s", "times",
		"arithmetic", "median tok/s", "processor s")
	for _, r := range s.Rows {
		fmt.Fprintf(w, "  %6.1f %%  %6d  %6d  %12s  %10.1f  %6.2f  %10.2f  %12.1f  %11.2f\n", 100*r.Share, r.Layers, r.Caches,
			options.SizeText(r.TokenBytes), r.TokensPerS, r.Times, r.Arithmetic, r.MedianPerS, r.Processor)
	}
	for _, r := range s.Rows {
		fmt.Fprintf(w, "left out %.1f %%\n", 100*r.Share)
		printStages(w, r.Stages)
	}
}

func printPrefill(w io.Writer, p *bench.Prefill) {
	printMachine(w, p.Machine, p.Ceiling)
	fmt.Fprintf(w, "%s %s, cache %s, policy %s, prompt of %d tokens in chunks of %d", p.Model, p.Weights, p.KV, p.Policy, p.Tokens, p.Chunk)
	if p.Layers > 0 {
		fmt.Fprintf(w, ", layer by layer through %d layers", p.Layers)
	}
	fmt.Fprintf(w, "\n  peak of the caches %s, booked %s", options.SizeText(p.Memory.Caches), options.SizeText(p.Memory.Ledger))
	if p.Memory.Process > 0 {
		fmt.Fprintf(w, "; resident memory of the process rose by %s", options.SizeText(p.Memory.Process))
	}
	fmt.Fprintln(w)
	fmt.Fprintf(w, "  %.1f tokens/s (median prompt %.1f), %.0f GFLOP/s: %.0f %% of the peak (matrices %.0f %%, attention %.0f %%)\n",
		p.TokensPerS, p.MedianPerS, p.GFLOPS, 100*p.PeakShare, 100*p.MatShare, 100*p.AttnShare)
	printStages(w, p.Stages)
	printThreads(w, p.Shared)
}

func printMachine(w io.Writer, m bench.Machine, c bench.Ceiling) {
	fmt.Fprintln(w, m)
	printCeiling(w, c)
}

func printCeiling(w io.Writer, c bench.Ceiling) {
	fmt.Fprintf(w, "ceilings of %d threads: read %.1f GB/s, FMA %.0f GFLOP/s, VNNI %.0f GOP/s\n", c.Threads, c.Read, c.FMA, c.VNNI)
}

func printStages(w io.Writer, s bench.Stages) {
	for _, l := range []struct {
		name string
		us   float64
	}{{"projection", s.Projection}, {"attention", s.Attention}, {"ffn", s.FFN}, {"head", s.Head}, {"begin", s.Begin},
		{" wait", s.Wait}, {"other", s.Other},
		{"compression", s.Compression}, {" observation", s.Observation}, {" votes", s.Votes},
		{" selection", s.Selection}, {" shipping", s.Shipping}} {
		if l.us == 0 && strings.HasPrefix(l.name, " ") {
			continue
		}
		fmt.Fprintf(w, "  %-12s %12.1f us %5.1f %%\n", l.name, l.us, 100*l.us/s.Step)
	}
}

// printThreads prints how the threads spent their time. It prints nothing for a single thread.
func printThreads(w io.Writer, t bench.Threads) {
	if t.Runs == 0 {
		return
	}
	fmt.Fprintf(w, "  threads: %.0f shared runs of %.1f us, %.0f us of one thread alone; in the runs work %.1f %%, late %.1f %%, absent "+
		"%.1f %%, uneven %.1f %%, end %.1f %%; %.1f parts done again\n",
		t.Runs, t.Run, t.Solo, 100*t.Work, 100*t.Late, 100*t.Absent, 100*t.Uneven, 100*t.End, t.Again)
}

package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"time"

	"github.com/shoal-llm/shoal/actors/socket/shard"
	"github.com/shoal-llm/shoal/cluster"
	"github.com/shoal-llm/shoal/internal/bench"
	"github.com/shoal-llm/shoal/internal/cli/models"
	"github.com/shoal-llm/shoal/internal/cli/ui"
	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/kvpolicy"
	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/topology"
)

type benchBatchCmd struct {
	Model    string   `short:"m" placeholder:"DIR|SHAPE" help:"Checkpoint folder, or a shape with random weights: ${shapes} (default: the bundled model)."`
	Quant    string   `placeholder:"TYPE" help:"Type of the weights in memory (default: as stored)."`
	KVType   string   `name:"kv-type" placeholder:"TYPE" help:"Type of the cache: f32, bf16, int8 (default: the type of the stored weights)."`
	KVMemory int64    `type:"size" name:"kv-memory" default:"256MiB" help:"Memory of the caches, per node."`
	Fit      int      `range:"1.." placeholder:"N" help:"Instead of --kv-memory: choose the memory so that the first policy holds N sequences on all nodes together, but not N+1."`
	Nodes    int      `short:"n" default:"1" range:"1..64" help:"Node processes; 1 runs the cluster in this process."`
	Filled   bool     `help:"Shapes only, one node: fill the caches with random rows instead of reading prompts. The ledger determines the number of sequences."`
	Threads  int      `range:"1..1024" placeholder:"N" help:"Compute threads per node (default: all CPUs, divided evenly)."`
	Requests int      `default:"24" range:"1..4096" help:"Requests to send at once."`
	Prompt   int      `default:"4096" range:"64.." help:"Prompt length in tokens."`
	Output   int      `default:"64" range:"1.." help:"Tokens to generate per request."`
	Policy   []string `sep:"none" placeholder:"POLICY" help:"Cache policy to compare; repeat the flag for several (default: full, and snapstream with a quarter of the prompt)."`
	JSON     bool     `name:"json" help:"Print JSON."`

	KVDisk     string `name:"kv-disk" type:"path" placeholder:"DIR" help:"One node: folder for the cache rows that do not fit in memory."`
	KVDiskSize int64  `type:"size" name:"kv-disk-size" default:"64GiB" help:"Maximum size of these files."`
}

func (c *benchBatchCmd) Run(e *ui.Env) error {
	if c.KVDisk != "" && c.Nodes > 1 {
		return fmt.Errorf("--kv-disk works with one node: set --nodes 1")
	}
	if c.Filled && c.Nodes > 1 {
		return fmt.Errorf("--nodes %d: want 1 with --filled", c.Nodes)
	}
	if c.Threads == 0 {
		c.Threads = topology.ThreadsOf(runtime.GOMAXPROCS(0), c.Nodes).Max
	}
	shape := c.Model
	if slices.Contains(checkpoint.Shapes(), c.Model) {
		c.Model = checkpoint.RandomPrefix + c.Model
	} else if c.Filled {
		return fmt.Errorf("--filled: --model must be a shape: %s", models.ShapeNames())
	}
	dir, err := models.ModelFlag{Model: c.Model}.Dir(e)
	if err != nil {
		return err
	}
	if len(c.Policy) == 0 {
		kept := c.Prompt / 4
		c.Policy = []string{"full", fmt.Sprintf("snapstream:sink=4,recent=%d,topk=%d,obs=32,pool=7", kept/2-4, kept-kept/2)}
	}
	for _, p := range c.Policy {
		if _, err := kvpolicy.Parse(p); err != nil {
			return fmt.Errorf("--policy: %w", err)
		}
	}
	o := bench.BatchOptions{Model: dir, Weights: c.Quant, KV: c.KVType, Threads: c.Threads, Memory: c.KVMemory,
		Requests: c.Requests, Prompt: c.Prompt, Output: c.Output, Policies: c.Policy, Nodes: c.Nodes, KVDisk: c.KVDisk, KVDiskSize: c.KVDiskSize}
	if o.Memory, err = c.memory(&o); err != nil {
		return err
	}
	if c.Nodes > 1 {
		o.Start = c.processes(e, o)
	}
	run := bench.RunBatch
	if c.Filled {
		o.Model, run = shape, bench.RunFilled
	}
	line := ui.NewStatusLine(e, true)
	b, err := run(e.Ctx, o, func(s string) { line.Set(s + " ...") })
	line.End()
	return printResult(e, c.JSON, b, err, printBatch)
}

func printBatch(w io.Writer, b *bench.Batch) {
	fmt.Fprintf(w, "%v\n%s %s, cache %s in %.1f MiB on each of %d nodes, %d threads each: %d + %d tokens, %d requests at once (0: caches "+
		"filled)\n",
		b.Machine, b.Model, b.Weights, b.KV, float64(b.Memory)/(1<<20), b.Nodes, b.Threads, b.Prompt, b.Output, b.Requests)
	fmt.Fprintf(w, "  %-56s %6s %8s %6s %6s %9s %6s %9s %6s %9s %8s %8s %6s %7s\n", "policy", "smaller", "MB/seq", "most", "x", "decode/s",
		"x", "median", "x", "peak MB", "s", "tok/s", "x", "TTFT s")
	for _, r := range b.Rows {
		fmt.Fprintf(w, "  %-56s %7.2f %8.1f %6d %6.2f %9.2f %6.2f %9.2f %6.2f %9.1f %8.1f %8.2f %6.2f %7.1f\n", r.Policy, r.Compression,
			float64(r.Resident)/1e6, r.Sequences, r.OverFull, r.DecodePerS, r.DecodeOver, r.MedianPerS, r.MedianOver,
			float64(r.PeakBytes)/1e6, r.Seconds, r.TokensPerS, r.TokensOver, r.TTFT)
		if r.Failed > 0 {
			fmt.Fprintf(w, "    %d requests failed\n", r.Failed)
		}
	}
}

// memory returns --kv-memory. With --fit it returns slightly less than the first policy needs
// for one sequence more. It also sets the types of the weights and the cache in o.
func (c *benchBatchCmd) memory(o *bench.BatchOptions) (int64, error) {
	ck, err := checkpoint.Open(o.Model)
	if errors.Is(err, model.ErrMissing) {
		return 0, fmt.Errorf("%w, or one of the shapes %s", err, models.ShapeNames())
	} else if err != nil {
		return 0, err
	}
	defer ck.Close()
	s := cluster.ServeConfig{Model: o.Model, Weights: o.Weights, KV: o.KV}
	cluster.Identify(ck, &s)
	o.Weights, o.KV = s.Weights, s.KV
	if err := s.Validate(&ck.Config); err != nil {
		return 0, err
	}
	if c.Fit == 0 {
		return o.Memory, nil
	}
	kv, err := tensor.ParseDType(s.KV)
	if err != nil {
		return 0, err
	}
	p, err := kvpolicy.Parse(o.Policies[0])
	if err != nil {
		return 0, err
	}
	p = p.For(o.Prompt)
	g := shard.GeometryOf(&ck.Config, kv)
	first, last := kvcache.ResidentBytes(g, o.Prompt, o.Prompt, p), kvcache.ResidentBytes(g, o.Prompt, o.Prompt+o.Output-1, p)
	own := int64((c.Fit + c.Nodes - 1) / c.Nodes) // one node owns all of a sequence
	return max((own+1)*first-first/64, own*last), nil
}

// processes returns a function that starts a cluster of node processes with a policy.
func (c *benchBatchCmd) processes(e *ui.Env, o bench.BatchOptions) func(context.Context, string) (bench.BatchEngine, func(), error) {
	return func(ctx context.Context, policy string) (bench.BatchEngine, func(), error) {
		up := benchCluster(c.Nodes, c.Threads, o.Memory, o.Model, o.Weights, o.KV)
		up.Serve.Mapping, up.Serve.Policy, up.NoJobs = "auto", policy, true
		up.Serve.MaxSequences, up.Serve.Queue, up.Serve.StepDeadline, up.Serve.SyncDeadline = 256, o.Requests+1, 10*time.Minute, 5*time.Minute
		l, err := up.StartAndWait(e.With(ctx))
		if err != nil {
			return nil, nil, err
		}
		return l.Coordinator, l.Stop, nil
	}
}

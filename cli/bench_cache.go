package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"time"

	"github.com/shoal-llm/shoal/actors/socket"
	"github.com/shoal-llm/shoal/bench"
	"github.com/shoal-llm/shoal/cluster"
	"github.com/shoal-llm/shoal/kvcache"
	"github.com/shoal-llm/shoal/model"
	"github.com/shoal-llm/shoal/tensor"
)

type benchCacheCmd struct {
	Update benchCacheUpdateCmd `cmd:"" help:"Evict and insert tokens: in place against shift-and-append and gather-and-append."`
	Decode benchCacheDecodeCmd `cmd:"" help:"Whole decode steps of StreamingLLM: in place against shift-and-append, rotate-half cache on and off."`
}

type benchCacheUpdateCmd struct {
	Evict   []int         `default:"1,64" help:"Tokens that are evicted at once."`
	Threads int           `help:"Compute threads (default: the processors)."`
	Time    time.Duration `default:"200ms" help:"How long each figure is measured."`
	JSON    bool          `name:"json" help:"Print JSON."`
}

func (c *benchCacheUpdateCmd) Run(e *env) error {
	if err := checkThreads(c.Threads); err != nil {
		return err
	}
	if c.Threads == 0 {
		c.Threads = runtime.GOMAXPROCS(0)
	}
	pool := tensor.NewPool(c.Threads)
	defer pool.Close()
	m := bench.ThisMachine()
	if !c.JSON {
		fmt.Fprintf(e.stdout, "%v; %d threads, bf16, 1024 slots\n", m, c.Threads)
		fmt.Fprintf(e.stdout, "%6s %6s %6s %6s %11s %11s %11s %11s %8s %8s %8s %11s %11s %8s\n", "batch", "heads", "size", "evict", "new cache", "two in turn", "shift us", "in place", "x new", "x two", "x shift", "gather us", "in place", "x")
	}
	var rows []bench.CacheUpdate
	for _, evict := range c.Evict {
		for _, s := range bench.CacheShapes {
			if err := e.ctx.Err(); err != nil {
				return err
			}
			u, err := bench.RunCacheUpdate(pool, s[0], s[1], s[2], evict, c.Time)
			if err != nil {
				return err
			}
			rows = append(rows, u)
			if !c.JSON {
				fmt.Fprintf(e.stdout, "%6d %6d %6d %6d %11.0f %11.0f %11.0f %11.0f %8.2f %8.2f %8.2f %11.0f %11.0f %8.2f\n", u.Batch, u.Heads, u.HeadSize, u.Evict, u.Publish, u.Append, u.Shift, u.Ring, u.OverPub, u.OverApp, u.OverStr, u.Gather, u.Scatter, u.OverH2O)
			}
		}
	}
	if c.JSON {
		return printJSON(e.stdout, map[string]any{"threads": c.Threads, "rows": rows, "machine": m})
	}
	return nil
}

type benchCacheDecodeCmd struct {
	benchFlags
	Slots  int `default:"1024" help:"Slots in the cache of every sequence."`
	Batch  int `default:"8" help:"Sequences that are decoded together."`
	Tokens int `default:"24" help:"Steps that are measured."`
}

func (c *benchCacheDecodeCmd) Run(e *env) error {
	o, err := c.options()
	if err != nil {
		return err
	}
	o.Context, o.Batch, o.Tokens = c.Slots, c.Batch, c.Tokens
	if o.Context < 64 || o.Context > 1<<20 || o.Batch < 1 || o.Batch > 4096 || o.Tokens < 1 {
		return fmt.Errorf("--slots %d, --batch %d, --tokens %d: want 64 slots or more, a batch of 1 to 4096, and a step", c.Slots, c.Batch, c.Tokens)
	}
	return measured(&c.benchFlags, e, func(note func(string)) (*bench.CacheDecode, error) { return bench.RunCacheDecode(e.ctx, o, note) }, printCacheDecode)
}

func printCacheDecode(w io.Writer, d *bench.CacheDecode) {
	fmt.Fprintf(w, "%v\n%s %s, cache %s, batch %d, %d slots, %d threads\n", d.Machine, d.Model, d.Weights, d.KV, d.Batch, d.Slots, d.Threads)
	fmt.Fprintf(w, "  %-72s %9s %9s %7s %7s %9s\n", "", "best ms", "median", "x", "median", "cache MB")
	for _, way := range d.Ways {
		fmt.Fprintf(w, "  %-72s %9.2f %9.2f %7.2f %7.2f %9.1f\n", way.Name, way.BestMS, way.MedianMS, way.Speedup, way.Median, way.CacheMB)
	}
}

type benchBatchCmd struct {
	Model    string   `short:"m" env:"SHOAL_BENCH_MODEL" placeholder:"DIR|SHAPE" help:"Checkpoint folder, or a shape with random weights: ${shapes} (default: the bundled model)."`
	Quant    string   `placeholder:"TYPE" help:"Type of the weights (default: as stored)."`
	KVType   string   `name:"kv-type" placeholder:"TYPE" help:"Type of the cache: f32, bf16, int8 (default: as the weights are stored)."`
	KVMemory size     `name:"kv-memory" default:"256MiB" help:"Memory of the caches, per node."`
	Fit      int      `placeholder:"N" help:"Instead of --kv-memory: as much, over all nodes, as lets the first policy hold N sequences and not N+1."`
	Nodes    int      `short:"n" default:"1" help:"Node processes; 1: a cluster in this process."`
	Filled   bool     `help:"Shapes only, one node: fill caches with random rows instead of reading prompts; the number of sequences is what the ledger admits."`
	Threads  int      `help:"Compute threads, of a node (default: the processors, shared out)."`
	Requests int      `default:"24" help:"Requests that are sent at once."`
	Prompt   int      `default:"4096" help:"Tokens of each prompt."`
	Output   int      `default:"64" help:"Tokens that each generates."`
	Policy   []string `sep:"none" placeholder:"POLICY" help:"Cache policies to compare; may be given several times (default: full, and a snapstream of a quarter of the prompt)."`
	JSON     bool     `name:"json" help:"Print JSON."`
}

func (c *benchBatchCmd) Run(e *env) error {
	if c.Nodes < 1 || c.Nodes > 64 || c.Filled && c.Nodes > 1 || c.Fit < 0 {
		return fmt.Errorf("--nodes %d, --fit %d: want 1 to 64 nodes, one with --filled, and nothing negative", c.Nodes, c.Fit)
	}
	if c.Threads == 0 {
		c.Threads = max(1, runtime.GOMAXPROCS(0)/c.Nodes)
	}
	if c.Requests < 1 || c.Requests > 4096 || c.Prompt < 64 || c.Output < 1 || c.Threads < 1 || c.Threads > 1024 {
		return fmt.Errorf("--requests %d, --prompt %d, --output %d, --threads %d: want 1 to 4096 requests, prompts of 64 tokens or more, and at least 1 of the others", c.Requests, c.Prompt, c.Output, c.Threads)
	}
	shape := c.Model
	if slices.Contains(model.Shapes(), c.Model) {
		c.Model = model.RandomPrefix + c.Model
	} else if c.Filled {
		return fmt.Errorf("--filled: --model must be a shape: %s", shapeNames())
	}
	dir, err := modelFlag{Model: c.Model}.dir()
	if err != nil {
		return err
	}
	if len(c.Policy) == 0 {
		kept := c.Prompt / 4
		c.Policy = []string{"full", fmt.Sprintf("snapstream:sink=4,recent=%d,topk=%d,obs=32,pool=7", kept/2-4, kept-kept/2)}
	}
	for _, p := range c.Policy {
		if _, err := kvcache.Parse(p); err != nil {
			return fmt.Errorf("--policy: %w", err)
		}
	}
	o := bench.BatchOptions{Model: dir, Weights: c.Quant, KV: c.KVType, Threads: c.Threads, Memory: int64(c.KVMemory),
		Requests: c.Requests, Prompt: c.Prompt, Output: c.Output, Policies: c.Policy, Nodes: c.Nodes}
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
	b, err := run(e.ctx, o, func(s string) { note(e, s+" ...") })
	note(e, "")
	return report(e, c.JSON, b, err, printBatch)
}

func printBatch(w io.Writer, b *bench.Batch) {
	fmt.Fprintf(w, "%v\n%s %s, cache %s in %.1f MiB on each of %d nodes, %d threads each: %d + %d tokens, %d requests at once (0: caches filled)\n",
		b.Machine, b.Model, b.Weights, b.KV, float64(b.Memory)/(1<<20), b.Nodes, b.Threads, b.Prompt, b.Output, b.Requests)
	fmt.Fprintf(w, "  %-56s %6s %8s %6s %6s %9s %6s %9s %6s %9s %8s %8s %6s %7s\n", "policy", "smaller", "MB/seq", "most", "x", "decode/s", "x", "median", "x", "peak MB", "s", "tok/s", "x", "TTFT s")
	for _, r := range b.Rows {
		fmt.Fprintf(w, "  %-56s %7.2f %8.1f %6d %6.2f %9.2f %6.2f %9.2f %6.2f %9.1f %8.1f %8.2f %6.2f %7.1f\n", r.Policy, r.Compression, float64(r.Resident)/1e6, r.Sequences, r.OverFull, r.DecodePerS, r.DecodeOver, r.MedianPerS, r.MedianOver,
			float64(r.PeakBytes)/1e6, r.Seconds, r.TokensPerS, r.TokensOver, r.TTFT)
		if r.Failed > 0 {
			fmt.Fprintf(w, "    %d requests failed\n", r.Failed)
		}
	}
}

// memory is --kv-memory, or with --fit just less than the first policy needs for one
// sequence more. It fills in the types.
func (c *benchBatchCmd) memory(o *bench.BatchOptions) (int64, error) {
	ck, err := model.Open(o.Model)
	if errors.Is(err, model.ErrMissing) {
		return 0, fmt.Errorf("%w, or one of the shapes %s", err, shapeNames())
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
	p, err := kvcache.Parse(o.Policies[0])
	if err != nil {
		return 0, err
	}
	g := socket.GeometryOf(&ck.Config, kv)
	first, last := kvcache.ResidentBytes(g, o.Prompt, o.Prompt, p), kvcache.ResidentBytes(g, o.Prompt, o.Prompt+o.Output-1, p)
	own := int64((c.Fit + c.Nodes - 1) / c.Nodes) // sequences are owned whole
	return max((own+1)*first-first/64, own*last), nil
}

// processes starts the cluster of shoal up for a policy.
func (c *benchBatchCmd) processes(e *env, o bench.BatchOptions) func(context.Context, string) (bench.BatchEngine, func(), error) {
	return func(ctx context.Context, policy string) (bench.BatchEngine, func(), error) {
		up := benchCluster(c.Nodes, c.Threads, o.Memory, o.Model, o.Weights, o.KV)
		up.Mapping, up.Policy, up.noJobs = "auto", policy, true
		up.MaxSequences, up.Queue, up.StepDeadline, up.SyncDeadline = 256, o.Requests+1, 10*time.Minute, 5*time.Minute
		l, err := up.ready(&env{ctx: ctx, stdin: e.stdin, stdout: e.stdout, stderr: e.stderr})
		if err != nil {
			return nil, nil, err
		}
		return l.coordinator, l.stop, nil
	}
}

package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"shoal/api"
	"shoal/bench"
	"shoal/cluster"
	"shoal/model"
	"shoal/sampler"
)

type benchCollectiveCmd struct {
	Nodes  int    `short:"n" default:"4" help:"Servers of the mesh, 2 to 16, in this process."`
	Sizes  []size `default:"1KiB,16KiB,64KiB,256KiB" help:"Bytes that a rank gives (all-gather), or of the vector (all-reduce)."`
	Repeat int    `default:"200" help:"Operations that are measured of each kind and size."`
	JSON   bool   `name:"json" help:"Print JSON."`
}

func (c *benchCollectiveCmd) Run(e *env) error {
	if c.Nodes < 2 || c.Nodes > 16 || c.Repeat < 1 || len(c.Sizes) == 0 {
		return fmt.Errorf("--nodes %d, --repeat %d, %d sizes: want 2 to 16 nodes and at least one of each", c.Nodes, c.Repeat, len(c.Sizes))
	}
	var sizes []int
	for _, s := range c.Sizes {
		if s < 4 || s > 8<<20 {
			return fmt.Errorf("--sizes: %d: want 4 bytes to 8 MiB", s)
		}
		sizes = append(sizes, int(s))
	}
	if !c.JSON {
		fmt.Fprintf(e.stdout, "%-12s %10s %10s %10s %10s   (us, %d nodes, until all ranks are done)\n", "", "bytes", "best", "median", "p99", c.Nodes)
	}
	all, err := bench.RunCollective(e.ctx, c.Nodes, sizes, c.Repeat, func(r bench.Collective) {
		if !c.JSON {
			fmt.Fprintf(e.stdout, "%-12s %10d %10.0f %10.0f %10.0f\n", r.Op, r.Bytes, r.BestUS, r.MedianUS, r.P99US)
		}
	})
	if err == nil && c.JSON {
		err = printJSON(e.stdout, map[string]any{"machine": bench.ThisMachine(), "collectives": all})
	}
	return err
}

type benchClusterCmd struct {
	Model   string        `short:"m" default:"bench160m" placeholder:"SHAPE" help:"Shape of a public model, with random weights: ${shapes}."`
	Nodes   int           `short:"n" default:"4" help:"Node processes."`
	Quant   string        `default:"q8_0" help:"Type of the weights: f32, bf16, f16, q8_0, q4_0, iq4_nl."`
	KVType  string        `name:"kv-type" default:"bf16" help:"Type of the cache."`
	Mapping string        `default:"auto" help:"gather, reduce or auto."`
	Context int           `default:"128" help:"Tokens of every prompt."`
	Batch   int           `default:"1" help:"Sequences decoded together."`
	Tokens  int           `default:"64" help:"Tokens decoded of each."`
	Prompt  int           `placeholder:"LENGTH" help:"Instead of decoding: read prompts of this many tokens, one at a time."`
	Repeat  int           `default:"2" help:"With --prompt: prompts that are read."`
	Chunk   int           `help:"With --prompt: tokens of a prompt in a step (default: as shoal up)."`
	Threads int           `help:"Compute threads per node (default: the processors, shared out)."`
	Limit   time.Duration `default:"5m" help:"Give up after this long."`
	JSON    bool          `name:"json" help:"Print JSON."`
}

// clusterFigures are what a decode step over processes costs.
type clusterFigures struct {
	Machine      bench.Machine `json:"machine"`
	Model        string        `json:"model"`
	Quant        string        `json:"quant"`
	Mapping      string        `json:"mapping"`
	Nodes        int           `json:"nodes"`
	Batch        int           `json:"batch"`
	Context      int           `json:"context"`
	Steps        uint64        `json:"steps"`
	TokensPerS   float64       `json:"tokens_per_s"`
	StepMicros   float64       `json:"step_us"`
	Compute      float64       `json:"compute_us"` // of the slowest node
	Wait         float64       `json:"wait_us"`    // for collectives, of that node
	Control      float64       `json:"control_us"` // the rest: step messages, scheduling
	WirePerToken float64       `json:"wire_bytes_per_token"`
}

func (c *benchClusterCmd) Run(e *env) error {
	shape, err := shapeOf(c.Model)
	if err != nil {
		return err
	}
	if c.Prompt < 0 || c.Repeat < 1 || c.Prompt > 0 && c.Nodes > 16 {
		return fmt.Errorf("--prompt %d, --repeat %d, --nodes %d: want a length, a prompt or more, and at most 16 nodes with them", c.Prompt, c.Repeat, c.Nodes)
	}
	if c.Batch < 1 || c.Batch > 64 || c.Context < 1 || c.Tokens < 2 {
		return fmt.Errorf("--batch %d, --context %d, --tokens %d: want a batch of 1 to 64, 1 token of prompt, 2 of answer", c.Batch, c.Context, c.Tokens)
	}
	if most := shape.MaxPositions; c.Prompt >= most || c.Prompt == 0 && (c.Context >= most || c.Tokens > most-c.Context) {
		return fmt.Errorf("--prompt %d, --context %d, --tokens %d: %s was made for %d tokens", c.Prompt, c.Context, c.Tokens, c.Model, most)
	}
	if c.Limit <= 0 {
		return fmt.Errorf("--limit %v: want a time, as in 5m", c.Limit)
	}
	ctx, cancel := context.WithTimeoutCause(e.ctx, c.Limit, fmt.Errorf("bench: not done in %v (--limit)", c.Limit))
	defer cancel()
	up := upCmd{Nodes: c.Nodes, logFlags: logFlags{LogLevel: "error"}, nodeFlags: nodeFlags{KVMemory: 1 << 30, Threads: c.Threads}}
	up.Listen, up.Model, up.Quant, up.KVType, up.Mapping, up.Policy = "127.0.0.1:0", model.RandomPrefix+c.Model, c.Quant, c.KVType, c.Mapping, "full"
	up.StepTokens, up.Queue, up.StepDeadline, up.SyncDeadline, up.Chunk = 512, 1024, time.Minute, 30*time.Second, c.Chunk
	if err := up.check(); err != nil {
		return err
	}
	l, err := up.start(&env{ctx: ctx, stdin: e.stdin, stdout: e.stdout, stderr: e.stderr})
	if err != nil {
		return err
	}
	defer l.stop()
	if err := l.waitReady(e); err != nil {
		return err
	}
	if c.Prompt > 0 {
		return c.reading(ctx, e, l)
	}
	f, err := c.measure(ctx, l.coordinator)
	if err != nil {
		return err
	}
	if c.JSON {
		return printJSON(e.stdout, f)
	}
	fmt.Fprintf(e.stdout, "%s, %d cores, %s, load %s\n", f.Machine.CPU, f.Machine.Cores, f.Machine.Go, f.Machine.Load)
	fmt.Fprintf(e.stdout, "%s %s over %d processes, mapping %s, batch %d, context %d: %.1f tokens/s\n", f.Model, f.Quant, f.Nodes, f.Mapping, f.Batch, f.Context, f.TokensPerS)
	fmt.Fprintf(e.stdout, "  a step: %.0f us = compute %.0f (slowest node) + wait for collectives %.0f + control %.0f; %.1f kB sent per token\n",
		f.StepMicros, f.Compute, f.Wait, f.Control, f.WirePerToken/1e3)
	return nil
}

// benchRequest is the i-th request, greedy.
func benchRequest(i, prompt, output, vocab int) *api.Request {
	r := &api.Request{ID: fmt.Sprintf("bench-%d", i), Prompt: make([]int32, prompt), MaxTokens: output, Sampling: sampler.Default(), IgnoreEOS: true, PromptLogprobs: -1}
	for j := range r.Prompt {
		r.Prompt[j] = int32((j*7919 + i*104729) % vocab)
	}
	r.Sampling.Temperature = 0
	return r
}

// measure decodes a batch and takes the steps between every sequence's second
// token and the first end.
func (c *benchClusterCmd) measure(ctx context.Context, co *cluster.Coordinator) (*clusterFigures, error) {
	vocab := co.Checkpoint().Config.Vocab
	streams := make([]<-chan api.Event, c.Batch)
	for i := range streams {
		var err error
		if streams[i], err = co.Submit(ctx, benchRequest(i, c.Context, c.Tokens+2, vocab)); err != nil {
			return nil, err
		}
	}
	next := func(n int) error { // n events of every sequence
		for _, s := range streams {
			for range n {
				ev, open := <-s
				if !open {
					return errors.Join(errors.New("bench: a sequence ended early"), context.Cause(ctx))
				}
				if ev.Err != nil {
					return ev.Err
				}
			}
		}
		return nil
	}
	if err := next(2); err != nil {
		return nil, err
	}
	from, began := co.StepTotals(), time.Now()
	if err := next(c.Tokens - 1); err != nil {
		return nil, err
	}
	took, d := time.Since(began), co.StepTotals().Sub(from)
	for _, s := range streams {
		for range s {
		}
	}
	per := func(t time.Duration) float64 { return float64(t.Microseconds()) / float64(max(d.Steps, 1)) }
	tokens := float64(c.Batch * (c.Tokens - 1))
	return &clusterFigures{Machine: bench.ThisMachine(), Model: c.Model, Quant: c.Quant, Mapping: co.Cluster().Mapping, Nodes: c.Nodes, Batch: c.Batch, Context: c.Context,
		Steps: d.Steps, TokensPerS: tokens / took.Seconds(), StepMicros: per(d.Wall), Compute: per(d.Compute), Wait: per(d.Wait),
		Control: per(d.Wall - d.Compute - d.Wait), WirePerToken: float64(d.Wire) / (float64(c.Batch) * float64(max(d.Steps, 1)))}, nil
}

package lab

import (
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/shoal-llm/shoal/internal/bench"
	"github.com/shoal-llm/shoal/internal/cli/ui"
	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/kvpolicy"
)

type benchPrefixCmd struct {
	Model    string        `short:"m" default:"bench160m" placeholder:"SHAPE" help:"Shape of a public model; its weights are random: ${shapes}."`
	Nodes    []int         `short:"n" default:"1" range:"1..16" help:"Comma-separated numbers of node processes. Each is measured on a cluster of its own."`
	Quant    string        `default:"q8_0" help:"Type of the weights in memory: f32, bf16, f16, q8_0, q4_0, iq4_nl, int4, mxfp4."`
	KVType   string        `name:"kv-type" default:"bf16" help:"Type of the cache: f32, bf16, int8."`
	KVMemory int64         `type:"size" name:"kv-memory" default:"1GiB" help:"Memory for the caches, per node."`
	Mapping  string        `default:"auto" help:"How attention weights are split: gather, reduce, auto."`
	Prompt   []int         `default:"4096" range:"200.." help:"Comma-separated prompt lengths in tokens. The last 1% of a warm prompt is new."`
	Policies []string      `name:"policies" sep:";" default:"full;snapstream:sink=4,recent=252,topk=256" help:"Semicolon-separated cache policies."`
	Repeat   int           `default:"3" range:"1.." help:"Rounds. Each measures one cold prompt, and one warm prompt per policy."`
	Turns    int           `default:"8" range:"0.." help:"Turns of a conversation to measure with and without the cache. A turn has 256 prompt tokens and 64 answer tokens; 0 skips it."`
	Misses   int           `default:"0" range:"0.." help:"Pairs of 512-token prompts that are not cached, to measure with and without the cache."`
	Threads  int           `range:"1..1024" placeholder:"N" help:"Compute threads per node (default: all CPUs, divided evenly)."`
	Limit    time.Duration `default:"10m" range:"1ms.." help:"Time limit for the whole measurement."`
	JSON     bool          `name:"json" help:"Print JSON."`
}

func (c *benchPrefixCmd) Run(e *ui.Env) error {
	shape, err := shapeOf(c.Model)
	if err != nil {
		return err
	}
	if slices.Max(c.Prompt) >= shape.MaxPositions || 320*c.Turns >= shape.MaxPositions {
		return fmt.Errorf("--prompt %v, --turns %d: want prompts of 200 to %d tokens for %s, and turns of 320 tokens that fit in the context",
			c.Prompt, c.Turns, shape.MaxPositions-1, c.Model)
	}
	for _, p := range c.Policies {
		if _, err := kvpolicy.Parse(p); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeoutCause(e.Ctx, c.Limit, fmt.Errorf("lab: not finished in %v: raise --limit", c.Limit))
	defer cancel()
	var all []*bench.Prefix
	for _, nodes := range c.Nodes {
		list, err := c.over(ctx, e, nodes)
		if err != nil {
			return err
		}
		all = append(all, list...)
	}
	if c.JSON {
		return ui.PrintJSON(e.Stdout, all)
	}
	return nil
}

// over measures prompts of every length on one cluster. It measures turns and misses only once,
// with the first length.
func (c *benchPrefixCmd) over(ctx context.Context, e *ui.Env, nodes int) (list []*bench.Prefix, err error) {
	up := benchCluster(nodes, c.Threads, c.KVMemory, checkpoint.RandomPrefix+c.Model, c.Quant, c.KVType)
	up.Serve.Mapping, up.Serve.Policy = c.Mapping, "full"
	up.Serve.Queue, up.Serve.StepDeadline, up.Serve.SyncDeadline = 1024, time.Minute, 30*time.Second
	if err := up.Check(); err != nil {
		return nil, err
	}
	l, err := up.StartAndWait(e.With(ctx))
	if err != nil {
		return nil, err
	}
	defer l.Stop()
	more := bench.PrefixOptions{Policies: c.Policies, Turns: c.Turns, Misses: c.Misses}
	for _, prompt := range c.Prompt {
		o := bench.ProcessOptions{Coordinator: l.Coordinator, Model: c.Model, Weights: c.Quant, KV: c.KVType,
			Nodes: nodes, Prompt: prompt, Repeat: c.Repeat}
		f, err := bench.MeasurePrefix(ctx, o, more)
		if err != nil {
			return nil, err
		}
		if more.Turns, more.Misses = 0, 0; !c.JSON {
			printPrefix(e.Stdout, f)
		}
		list = append(list, f)
	}
	return list, nil
}

func printPrefix(w io.Writer, f *bench.Prefix) {
	fmt.Fprintln(w, f.Machine)
	fmt.Fprintf(w, "%s %s over %d processes, mapping %s, prompts of %d tokens: %.3f s to the first token cold, medians of %d\n", f.Model,
		f.Quant, f.Nodes, f.Mapping, f.Prompt, f.Cold, len(f.Colds))
	for _, r := range f.Rows {
		fmt.Fprintf(w, "  %-44s %d tokens cached, %8.3f s, %.1f%% of cold\n", r.Policy, r.Cached, r.Warm, 100*r.Share)
	}
	if m := f.Misses; m != nil {
		fmt.Fprintf(w, "  %d pairs of prompts of %d tokens that are not cached: %.2f s, without the cache %.2f; median of the ratios %+.2f%%\n",
			m.Pairs, m.Prompt, m.With, m.Plain, 100*(m.Ratio-1))
	}
	for _, c := range f.Chat {
		fmt.Fprintf(w, "  %d turns under %s: %.2f s, without the cache %.2f (%.2f times); %d of %d tokens cached, the same answers\n", c.Turns,
			c.Policy, c.With, c.Plain, c.Plain/c.With, c.Cached, c.Read)
	}
}

package cli

import (
	"context"
	"fmt"
	"io"
	"time"

	"shoal/bench"
	"shoal/kvcache"
	"shoal/model"
)

type benchPrefixCmd struct {
	Model    string        `short:"m" default:"bench160m" placeholder:"SHAPE" help:"Shape of a public model, with random weights: ${shapes}."`
	Nodes    int           `short:"n" default:"1" help:"Node processes."`
	Quant    string        `default:"q8_0" help:"Type of the weights: f32, bf16, f16, q8_0, q4_0, iq4_nl."`
	KVType   string        `name:"kv-type" default:"bf16" help:"Type of the cache."`
	KVMemory size          `name:"kv-memory" default:"1GiB" help:"Memory of the caches, per node."`
	Mapping  string        `default:"auto" help:"gather, reduce or auto."`
	Prompt   int           `default:"4096" help:"Tokens of every prompt; the last hundredth is new in the warm ones."`
	Policies []string      `name:"policies" sep:";" default:"full;snapstream:sink=4,recent=252,topk=256" help:"Cache policies, apart by semicolons."`
	Repeat   int           `default:"3" help:"Rounds of a prompt without the cache, a cold and a warm one."`
	Turns    int           `default:"8" help:"Turns of a conversation, each of 128 tokens asked and answered; 0: none."`
	Threads  int           `help:"Compute threads per node (default: the processors, shared out)."`
	Limit    time.Duration `default:"10m" help:"Give up after this long."`
	JSON     bool          `name:"json" help:"Print JSON."`
}

func (c *benchPrefixCmd) Run(e *env) error {
	shape, err := shapeOf(c.Model)
	if err != nil {
		return err
	}
	if c.Prompt < 200 || c.Prompt >= shape.MaxPositions || c.Repeat < 1 || c.Turns < 0 || 256*c.Turns >= shape.MaxPositions || c.Limit <= 0 || c.Nodes > 16 {
		return fmt.Errorf("--prompt %d, --repeat %d, --turns %d, --limit %v, --nodes %d: want 200 tokens to the %d of %s, a round or more, turns of 256 tokens within that, some time, at most 16 nodes", c.Prompt, c.Repeat, c.Turns, c.Limit, c.Nodes, shape.MaxPositions-1, c.Model)
	}
	for _, p := range c.Policies {
		if _, err := kvcache.Parse(p); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeoutCause(e.ctx, c.Limit, fmt.Errorf("bench: not done in %v (--limit)", c.Limit))
	defer cancel()
	up := benchCluster(c.Nodes, c.Threads, int64(c.KVMemory), model.RandomPrefix+c.Model, c.Quant, c.KVType)
	up.Mapping, up.Policy = c.Mapping, "full"
	up.Queue, up.StepDeadline, up.SyncDeadline = 1024, time.Minute, 30*time.Second
	if err := up.check(); err != nil {
		return err
	}
	l, err := up.ready(&env{ctx: ctx, stdin: e.stdin, stdout: e.stdout, stderr: e.stderr})
	if err != nil {
		return err
	}
	defer l.stop()
	o := bench.ProcessOptions{Coordinator: l.coordinator, Model: c.Model, Weights: c.Quant, KV: c.KVType, Nodes: c.Nodes, Prompt: c.Prompt, Repeat: c.Repeat}
	f, err := bench.MeasurePrefix(ctx, o, c.Policies, c.Turns)
	return report(e, c.JSON, f, err, printPrefix)
}

func printPrefix(w io.Writer, f *bench.Prefix) {
	fmt.Fprintln(w, f.Machine)
	fmt.Fprintf(w, "%s %s over %d processes, mapping %s, prompts of %d tokens: seconds to the first token, medians of %d\n", f.Model, f.Quant, f.Nodes, f.Mapping, f.Prompt, len(f.Rows[0].Colds))
	for _, r := range f.Rows {
		fmt.Fprintf(w, "  %-44s without the cache %8.3f   cold %8.3f   %d tokens cached %8.3f, %.1f%% of cold\n", r.Policy, r.Plain, r.Cold, r.Cached, r.Warm, 100*r.Share)
		if len(r.Chat) == 2 {
			fmt.Fprintf(w, "  %-44s %d turns %.3f, without the cache %.3f\n", "", f.Turns, r.Chat[0], r.Chat[1])
		}
	}
}

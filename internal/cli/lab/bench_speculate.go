package lab

import (
	"fmt"
	"io"
	"log/slog"
	"runtime"
	"time"

	"github.com/shoal-llm/shoal/cluster"
	"github.com/shoal-llm/shoal/internal/bench"
	"github.com/shoal-llm/shoal/internal/cli/models"
	"github.com/shoal-llm/shoal/internal/cli/ui"
	"github.com/shoal-llm/shoal/internal/engine/speculate"
	"github.com/shoal-llm/shoal/internal/server/engine"
	"github.com/shoal-llm/shoal/topology"
)

type benchSpeculateCmd struct {
	Model   []string      `short:"m" placeholder:"DIR|SHAPE" help:"Checkpoint folders, or shapes of public models (default: the bundled model). A shape has random weights and uses the tokenizer of the bundled model: ${shapes}."`
	Quant   string        `placeholder:"TYPE" help:"Type of the weights in memory (default: as stored)."`
	Nodes   []int         `short:"n" default:"1" range:"0..16" help:"Numbers of node processes; 0 runs the cluster in this process, and reports its CPU time as well."`
	Threads int           `range:"1..1024" placeholder:"N" help:"Compute threads per node (default: all CPUs, divided evenly)."`
	Batch   []int         `default:"1,4,16" range:"1..64" help:"Numbers of concurrent requests."`
	Text    []string      `default:"chat,again,edit,retrieval,random" help:"Kinds of text: chat (sampled answers to questions), again (a second turn that repeats the question), code (a file copied from the prompt), edit (a copy with one name changed and one line added), retrieval (answers from a text), random (unpredictable tokens). The model generates the answers. For edit and random, and for every kind with random weights, a prepared answer replaces the sampled tokens at the same cost."`
	Mode    []string      `default:"suffix" help:"Draft modes to compare with off: lookup, suffix, model. suffix:4 always drafts four tokens per sequence."`
	Draft   string        `placeholder:"DIR|mtp" help:"Draft model for --mode model, as for shoal up."`
	Tokens  int           `default:"192" range:"2..4096" help:"Maximum tokens per answer."`
	Round   int           `name:"round-tokens" range:"1.." placeholder:"N" help:"Maximum tokens of all answers of a round together, but at least 16 per answer; 0 sets no limit."`
	Rounds  int           `default:"5" range:"1..99" help:"Minimum number of rounds, after one round of warm-up. Each round runs every mode. Reports the median and the quartiles of the ratios to off in the same round."`
	For     time.Duration `default:"3s" range:"0s..1h" help:"Time for further rounds, per text and batch."`
	JSON    bool          `name:"json" help:"Print JSON."`
}

func (c *benchSpeculateCmd) Run(e *ui.Env) error {
	if len(c.Mode) > 7 {
		return fmt.Errorf("--mode %v: want at most 7 modes", c.Mode)
	}
	for _, m := range c.Mode {
		if _, err := speculate.Parse(m); err != nil {
			return fmt.Errorf("--mode: %w", err)
		}
	}
	draft, err := models.FindDraft(e, c.Draft)
	if err != nil {
		return err
	}
	c.Draft = draft
	if len(c.Model) == 0 {
		c.Model = []string{""}
	}
	var all []map[string]any
	for _, name := range c.Model {
		for _, nodes := range c.Nodes {
			one, err := c.measure(e, name, nodes)
			if err != nil {
				return err
			}
			all = append(all, one)
		}
	}
	if c.JSON {
		return ui.PrintJSON(e.Stdout, map[string]any{"machine": bench.ThisMachine(), "runs": all})
	}
	return nil
}

// measure measures one model with a number of node processes.
func (c *benchSpeculateCmd) measure(e *ui.Env, name string, nodes int) (map[string]any, error) {
	threads := c.Threads
	if threads == 0 {
		threads = topology.ThreadsOf(runtime.GOMAXPROCS(0), nodes).Max
	}
	fixtures, err := newFixtures(e, name)
	if err != nil {
		return nil, err
	}
	engine, stop, err := c.engine(e, fixtures.dir, nodes, threads)
	if err != nil {
		return nil, err
	}
	defer stop()
	if !c.JSON {
		where := fmt.Sprintf("%d node processes", nodes)
		if nodes == 0 {
			where = "this process"
		}
		fmt.Fprintf(e.Stdout, "%v; %s in %s, %d threads each\n", bench.ThisMachine(), fixtures.dir, where, threads)
		fmt.Fprintf(e.Stdout, "%-10s %5s %-8s %8s %8s %6s %11s %5s %6s %6s %8s\n", "text", "batch", "mode", "off t/s", "on t/s", "x off",
			"half within", "pairs", "cpu x", "right", "tok/row")
	}
	var all []bench.Speculate
	for _, kind := range c.Text {
		text, err := fixtures.text(e, engine, kind)
		if err != nil {
			return nil, err
		}
		for _, batch := range c.Batch {
			text.Tokens = c.Tokens
			if c.Round > 0 {
				text.Tokens = min(c.Tokens, max(16, c.Round/batch))
			}
			rows, err := bench.RunSpeculate(e.Ctx, bench.SpeculateOptions{Engine: engine, Texts: []bench.SpeculateText{text}, Batch: []int{batch},
				Modes: c.Mode, Rounds: c.Rounds, For: c.For, Alone: nodes == 0}, func(r bench.Speculate) {
				if !c.JSON && r.Mode != "off" {
					printSpeculate(e.Stdout, r)
				}
			})
			if err != nil {
				return nil, err
			}
			all = append(all, rows...)
		}
	}
	return map[string]any{"model": fixtures.dir, "nodes": nodes, "threads": threads, "rows": all}, nil
}

func printSpeculate(w io.Writer, r bench.Speculate) {
	worked := "-"
	if r.Work > 0 {
		worked = fmt.Sprintf("%.2f", r.Work)
	}
	fmt.Fprintf(w, "%-10s %5d %-8s %8.1f %8.1f %6.2f %5.2f %5.2f %5d %6s %5.0f%% %8.2f\n", r.Text, r.Batch, r.Mode, r.Off, r.TokensPerS,
		r.Over, r.Low, r.High, len(r.Pairs), worked, 100*r.Acceptance, r.PerStep)
}

// engine starts the cluster to measure.
func (c *benchSpeculateCmd) engine(e *ui.Env, dir string, nodes, threads int) (engine.Engine, func(), error) {
	if nodes == 0 {
		l, err := cluster.New(e.Ctx,
			cluster.LocalConfig{KVBudget: 1 << 30, Threads: threads, Draft: c.Draft,
				Serve: cluster.ServeConfig{Model: dir, Weights: c.Quant, PrefixCache: cluster.PrefixShared, Logger: slog.New(slog.DiscardHandler),
					StepDeadline: 10 * time.Minute, SyncDeadline: 10 * time.Minute}})
		if err != nil {
			return nil, nil, err
		}
		return l, l.Close, nil
	}
	up := benchCluster(nodes, threads, 1<<30, dir, c.Quant, "")
	up.Draft = c.Draft
	up.Serve.Mapping, up.Serve.Policy, up.Serve.PrefixCache, up.NoJobs = "auto", "full", cluster.PrefixShared, true
	up.Serve.Queue, up.Serve.StepDeadline, up.Serve.SyncDeadline = 1024, 10*time.Minute, 5*time.Minute
	l, err := up.StartAndWait(e.With(e.Ctx))
	if err != nil {
		return nil, nil, err
	}
	return l.Coordinator, l.Stop, nil
}

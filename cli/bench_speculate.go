package cli

import (
	"fmt"
	"io"
	"log/slog"
	"runtime"
	"slices"
	"time"

	"github.com/shoal-llm/shoal/api"
	"github.com/shoal-llm/shoal/bench"
	"github.com/shoal-llm/shoal/cluster"
	"github.com/shoal-llm/shoal/eval"
	"github.com/shoal-llm/shoal/model"
	"github.com/shoal-llm/shoal/sampler"
	"github.com/shoal-llm/shoal/speculate"
	"github.com/shoal-llm/shoal/tokenizer"
)

type benchSpeculateCmd struct {
	Model   []string `short:"m" env:"SHOAL_BENCH_MODEL" placeholder:"DIR|SHAPE" help:"Checkpoint folders, or shapes with random weights: ${shapes} (default: the bundled model). The texts are tokenized by the bundled model's tokenizer if a shape has none."`
	Quant   string   `placeholder:"TYPE" help:"Type of the weights (default: as stored)."`
	Nodes   []int    `short:"n" default:"1" help:"Node processes; 1: a cluster in this process."`
	Threads int      `help:"Compute threads, of a node (default: the processors, shared out)."`
	Batch   []int    `default:"1,4,16" help:"Requests together."`
	Text    []string `default:"chat,code,retrieval" help:"Kinds of text: chat (questions, sampled), code (a file that is written again), retrieval (answers from a text of 1,500 tokens)."`
	Mode    []string `default:"lookup,suffix" help:"Ways to draft that off is compared with: lookup, suffix, model; suffix:4 has four drafts a row, whatever they cost."`
	Draft   string   `placeholder:"DIR|mtp" help:"Small model for --mode model, as of up."`
	Tokens  int      `default:"192" help:"Tokens of an answer, at most."`
	Rounds  int      `default:"3" help:"Rounds of all modes in turn, of which the median counts, after one that does not."`
	JSON    bool     `name:"json" help:"Print JSON."`
}

func (c *benchSpeculateCmd) Run(e *env) error {
	if c.Tokens < 2 || c.Tokens > 4096 || c.Rounds < 1 || c.Rounds > 100 || len(c.Mode) > 7 {
		return fmt.Errorf("--tokens %d, --rounds %d, --mode %v: want 2 to 4096 tokens, 1 to 100 rounds, at most 7 modes", c.Tokens, c.Rounds, c.Mode)
	}
	for _, m := range c.Mode {
		if _, err := speculate.Parse(m); err != nil {
			return fmt.Errorf("--mode: %w", err)
		}
	}
	for _, b := range c.Batch {
		if b < 1 || b > 64 {
			return fmt.Errorf("--batch %d: want 1 to 64 requests", b)
		}
	}
	for _, n := range c.Nodes {
		if n < 1 || n > 16 {
			return fmt.Errorf("--nodes %d: want 1 to 16", n)
		}
	}
	if err := checkThreads(c.Threads); err != nil {
		return err
	}
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
		return printJSON(e.stdout, map[string]any{"machine": bench.ThisMachine(), "runs": all})
	}
	return nil
}

// measure is one model over so many nodes.
func (c *benchSpeculateCmd) measure(e *env, name string, nodes int) (map[string]any, error) {
	threads := c.Threads
	if threads == 0 {
		threads = max(1, runtime.GOMAXPROCS(0)/nodes)
	}
	dir, texts, err := c.texts(name)
	if err != nil {
		return nil, err
	}
	engine, stop, err := c.engine(e, dir, nodes, threads)
	if err != nil {
		return nil, err
	}
	defer stop()
	if !c.JSON {
		fmt.Fprintf(e.stdout, "%v; %s over %d nodes, %d threads each; of %d rounds, each beside off\n", bench.ThisMachine(), dir, nodes, threads, c.Rounds)
		fmt.Fprintf(e.stdout, "%-10s %5s %-7s %9s %6s %6s %6s %7s %8s\n", "text", "batch", "mode", "tokens/s", "x off", "worst", "cpu x", "right", "tok/row")
	}
	all, err := bench.RunSpeculate(e.ctx, bench.SpeculateOptions{Engine: engine, Texts: texts, Batch: c.Batch, Modes: c.Mode, Rounds: c.Rounds, Alone: nodes == 1}, func(r bench.Speculate) {
		if !c.JSON {
			printSpeculate(e.stdout, r)
		}
	})
	return map[string]any{"model": dir, "nodes": nodes, "threads": threads, "rows": all}, err
}

func printSpeculate(w io.Writer, r bench.Speculate) {
	fmt.Fprintf(w, "%-10s %5d %-7s %9.1f %6.2f %6.2f %6.2f %6.0f%% %8.2f\n", r.Text, r.Batch, r.Mode, r.TokensPerS, r.Over, r.Worst, r.Work, 100*r.Acceptance, r.PerStep)
}

// engine is the cluster that is asked.
func (c *benchSpeculateCmd) engine(e *env, dir string, nodes, threads int) (api.Engine, func(), error) {
	if nodes == 1 {
		l, err := cluster.New(e.ctx, cluster.LocalConfig{KVBudget: 1 << 30, Threads: threads, Draft: c.Draft, Serve: cluster.ServeConfig{Model: dir, Weights: c.Quant, Logger: slog.New(slog.DiscardHandler), StepDeadline: 10 * time.Minute, SyncDeadline: 10 * time.Minute}})
		if err != nil {
			return nil, nil, err
		}
		return l, l.Close, nil
	}
	up := benchCluster(nodes, threads, 1<<30, dir, c.Quant, "")
	up.Draft = c.Draft
	up.Mapping, up.Policy, up.noJobs = "auto", "full", true
	up.Queue, up.StepDeadline, up.SyncDeadline = 1024, 10*time.Minute, 5*time.Minute
	l, err := up.ready(&env{ctx: e.ctx, stdin: e.stdin, stdout: e.stdout, stderr: e.stderr})
	if err != nil {
		return nil, nil, err
	}
	return l.coordinator, l.stop, nil
}

// texts are the prompts, of the corpus that the evaluation has.
func (c *benchSpeculateCmd) texts(name string) (dir string, texts []bench.SpeculateText, err error) {
	var from string
	if slices.Contains(model.Shapes(), name) {
		dir = model.RandomPrefix + name
		from, err = modelFlag{}.dir()
	} else {
		dir, err = modelFlag{Model: name}.dir()
		from = dir
	}
	if err != nil {
		return "", nil, err
	}
	tok, err := tokenizer.Load(from)
	if err != nil {
		return "", nil, err
	}
	chat, err := tokenizer.LoadChatTemplate(from)
	if err != nil {
		return "", nil, err
	}
	gen, err := eval.NewGenerator(tok, chat, nil, 1)
	if err != nil {
		return "", nil, err
	}
	for _, kind := range c.Text {
		t := bench.SpeculateText{Kind: kind, Tokens: c.Tokens, Sampling: func(int) sampler.Params {
			p := sampler.Default()
			p.Temperature = 0
			return p
		}}
		switch kind {
		case "chat":
			t.Sampling = func(i int) sampler.Params {
				p := sampler.Default()
				p.Temperature, p.Seed = 0.7, uint64(i)
				return p
			}
			for _, q := range chatQuestions {
				r, err := chat.Render([]tokenizer.Message{{Role: "user", Content: q}}, tokenizer.RenderOptions{AddGenerationPrompt: true})
				if err != nil {
					return "", nil, err
				}
				t.Prompts = append(t.Prompts, tok.Encode(r.String(), false))
			}
		case "code":
			code := tok.EncodeLiteral(eval.OwnCorpus().Code)
			for i := range 24 {
				file := code[i*1500%(len(code)-1000):][:600]
				t.Prompts = append(t.Prompts, slices.Concat(tok.Encode("", true), file, file[:60]))
			}
		case "retrieval":
			t.ToEnd = true
			for i := range 24 {
				s, err := gen.Sample([]string{"niah_multivalue", "vt", "niah_multikey"}[i%3], 1500, i)
				if err != nil {
					return "", nil, err
				}
				t.Prompts = append(t.Prompts, s.Prompt)
			}
		default:
			return "", nil, fmt.Errorf("--text %q: known are chat, code, retrieval", kind)
		}
		texts = append(texts, t)
	}
	return dir, texts, nil
}

// chatQuestions are asked of a model that was trained on few: what it says comes again.
var chatQuestions = []string{
	"Write a Go function that reverses a string.", "What is a goroutine?", "What is the difference between a slice and an array?",
	"Write a test for a function that adds two numbers.", "How do I read a file line by line?", "What does defer do?",
	"Write a program that prints the numbers from 1 to 100.", "Explain what an interface is.", "How do I sort a slice of strings?",
	"What is a channel?", "Write a loop that sums the values of a map.", "How do I handle errors in Go?",
	"Write a struct for a point with a method that moves it.", "What is a mutex for?", "How do I make an HTTP request?", "Tell me what a pointer is.",
}

package lab

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/shoal-llm/shoal/internal/cli/ui"
	"github.com/shoal-llm/shoal/internal/eval"
	"github.com/shoal-llm/shoal/internal/eval/suite"
)

type evalSuiteCmd struct {
	evalTarget
	Suite       string   `arg:"" help:"Benchmark: longbench, longbench-v2, infinitebench, ruler, gsm8k, math, long."`
	Data        string   `type:"path" placeholder:"DIR" help:"Folder with the published files (default: small files of the same form that come with Shoal; they test the command and not the model)."`
	Tasks       []string `placeholder:"TASK" help:"Tasks to run (default: all whose files exist)."`
	Limit       int      `short:"n" placeholder:"N" help:"Questions per task (default: all)."`
	Policy      []string `sep:"none" placeholder:"POLICY" help:"Cache policies to compare, as for lab ruler (default: full, or the server's own)."`
	MaxPrompt   int      `placeholder:"TOKENS" help:"Maximum prompt length. The middle of longer prompts is removed, as in LongBench (default: no limit)."`
	MaxTokens   int      `short:"t" placeholder:"TOKENS" help:"Maximum tokens per answer, below the benchmark's own (default: the benchmark's)."`
	NoChat      bool     `help:"Send plain prompts, although the model has a chat template."`
	Samples     int      `default:"1" help:"Answers per question, for pass@k. Several need a --temperature."`
	Temperature float64  `placeholder:"T" help:"Sampling temperature (default: 0, greedy)."`
	Pass        []int    `placeholder:"K" help:"Report pass@K: the probability that one of K samples is right (default: the mean score)."`
	Seed        uint64   `default:"1" help:"Seed of the first sample of a question."`
	By          string   `enum:"group,task,set" default:"group" help:"Columns of the table: group (of the papers' tables), task, set (length or level)."`
	Out         string   `short:"o" type:"path" placeholder:"DIR" help:"Folder for the answers. A run with the same folder continues the last one."`
	JSON        bool     `name:"json" help:"Print the table as JSON."`
	Markdown    bool     `help:"Print the table as Markdown."`
}

func (c *evalSuiteCmd) Help() string {
	return `Asks the questions of a published benchmark and scores the answers by its own rules. Nothing is
downloaded: --data names a folder with the files. Decoding is greedy unless --temperature is set.

  shoal lab suite longbench                             the small files that come with Shoal
  shoal lab suite longbench --data ~/LongBench/data --max-prompt 31500 --server 127.0.0.1:8080 \
      -m ~/models/X --policy "full snapstream:llama" -o results
  shoal lab suite gsm8k --data ~/gsm8k --samples 8 --temperature 0.7 --pass 1,8
  shoal lab suite longbench-v2 --data ~/LongBench-v2 --by set
  shoal lab suite long -m elver --policy "full streaming:recent=512 snapstream:recent=256,topk=256"

With -o DIR the command appends each answer to DIR/results.jsonl when it arrives.

Benchmarks:
` + suite.Help() + eval.LongHelp()
}

func (c *evalSuiteCmd) Run(e *ui.Env) error {
	cfg, err := c.config()
	if err != nil {
		return err
	}
	s, questions, err := c.load()
	if err != nil {
		return err
	}
	store, err := openSuiteStore(c.Out)
	if err != nil {
		return err
	}
	defer store.Close()
	a, err := c.open(e)
	if err != nil {
		return err
	}
	defer a.close()
	if !c.NoChat {
		cfg.Chat = a.chat
	}
	bar := ui.NewBar(e, "eval", !c.JSON)
	cfg.Progress = bar.Set
	records, err := eval.RunSuite(e.Ctx, a.client, a.tok, s.Name, questions, store, cfg)
	bar.End()
	if err != nil {
		return resumeHint(e, c.Out, err)
	}
	g := eval.SummarizeSuite(s, records, cfg.Policies, eval.SuiteColumns(c.By), c.Pass)
	name, _ := a.client.Model()
	g.Title = fmt.Sprintf("%s, %s, %d questions, percent", s.Name, name, len(questions))
	return printGrid(e, g, c.JSON, c.Markdown)
}

// load returns the suite and its questions.
func (c *evalSuiteCmd) load() (*suite.Suite, []suite.Question, error) {
	if c.Suite == eval.LongName {
		if c.Data != "" || len(c.Tasks) > 0 {
			return nil, nil, fmt.Errorf("%s generates its questions, of all of its tasks: remove --data and --tasks", c.Suite)
		}
		return eval.LongSuite(cmp.Or(c.Limit, 4), cmp.Or(c.MaxTokens, eval.LongTokens), c.Seed)
	}
	s, err := suite.Find(c.Suite)
	if err != nil {
		return nil, nil, fmt.Errorf("%w, %s", err, eval.LongName)
	}
	questions, err := loadSuite(s, c.Data, "", c.Tasks, c.Limit)
	return s, questions, err
}

// config checks the flags before a model is loaded.
func (c *evalSuiteCmd) config() (eval.SuiteConfig, error) {
	cfg := eval.SuiteConfig{MaxPrompt: c.MaxPrompt, MaxTokens: c.MaxTokens, Samples: c.Samples, Temperature: c.Temperature,
		Seed: c.Seed, Concurrency: c.Concurrency}
	policies := c.Policy
	if len(policies) == 0 && c.Server == "" {
		policies = []string{"full"}
	}
	var err error
	if cfg.Policies, err = c.parsePolicies(policies); err != nil {
		return cfg, err
	}
	if err := cfg.Validate(); err != nil {
		return cfg, err
	}
	if k := slices.IndexFunc(c.Pass, func(k int) bool { return k < 1 || k > cfg.Samples }); k >= 0 {
		return cfg, fmt.Errorf("--pass %d: want 1 to %d, the number of --samples", c.Pass[k], cfg.Samples)
	}
	return cfg, nil
}

// openSuiteStore opens results.jsonl in a folder, or a store in memory.
func openSuiteStore(dir string) (*eval.SuiteStore, error) {
	if dir == "" {
		return eval.OpenSuiteStore("")
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	return eval.OpenSuiteStore(filepath.Join(dir, "results.jsonl"))
}

func printGrid(e *ui.Env, g *eval.Grid, asJSON, markdown bool) error {
	switch {
	case asJSON:
		return ui.PrintJSON(e.Stdout, g)
	case markdown:
		g.WriteMarkdown(e.Stdout)
	default:
		g.WriteTable(e.Stdout)
	}
	return nil
}

package lab

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/shoal-llm/shoal/internal/cli/models"
	"github.com/shoal-llm/shoal/internal/cli/ui"
	"github.com/shoal-llm/shoal/internal/eval"
	"github.com/shoal-llm/shoal/internal/eval/suite"
)

type evalTableCmd struct {
	evalTarget
	Table     string `arg:"" help:"Paper's table: snapstream, snapstream-r1, shadowkv, squeezed, equip, swiftkv."`
	Data      string `type:"path" placeholder:"DIR" help:"Folder with a folder for each benchmark, named as in lab suite (default: small files of the same form that come with Shoal)."`
	Limit     int    `short:"n" default:"4" help:"Questions per task of a benchmark, and samples per generated task. 0: all questions of a file."`
	Length    int    `short:"l" default:"2048" help:"Length of generated prompts, in tokens."`
	MaxPrompt int    `placeholder:"TOKENS" help:"Maximum length of a benchmark's prompt; the middle is removed (default: no limit)."`
	MaxTokens int    `short:"t" default:"64" help:"Maximum tokens per answer of a benchmark. 0: the benchmark's own."`
	Seed      uint64 `default:"1" help:"Seed of generated prompts."`
	Text      string `type:"path" placeholder:"FILE" help:"Text whose perplexity table equip measures (default: prose that comes with Shoal)."`
	Windows   int    `default:"4" help:"Windows of --length tokens of that text."`
	Out       string `short:"o" type:"path" placeholder:"DIR" help:"Folder for the answers. A run with the same folder continues the last one."`
	JSON      bool   `name:"json" help:"Print the table as JSON."`
	Markdown  bool   `help:"Print the table as Markdown."`
}

func (c *evalTableCmd) Help() string {
	return `Measures a table of one of the papers in kind: its policies at its shares of the context, and its
tasks. The defaults are small, for the bundled models; with --data, -n 0, -t 0 and a long --length
the size is that of the paper.

  shoal lab table snapstream
  shoal lab table shadowkv -m models/dace -l 4096 -n 16 -o results
  shoal lab table squeezed --server 127.0.0.1:8080 -m ~/models/X --data ~/benchmarks \
      -n 0 -t 0 -l 32768 --max-prompt 31500

Tables:
` + eval.TableHelp()
}

func (c *evalTableCmd) Run(e *ui.Env) error {
	t, err := eval.FindTable(c.Table)
	if err != nil {
		return err
	}
	if c.Out != "" {
		if err := os.MkdirAll(c.Out, 0o755); err != nil {
			return err
		}
	}
	targets, err := c.targets(t)
	if err != nil {
		return err
	}
	var all *eval.Grid
	for i, rows := range t.Groups() {
		policies, err := t.Policies(rows)
		if err != nil {
			return err
		}
		g, err := c.rows(e, t, &targets[i], policies)
		if err != nil {
			return err
		}
		if all == nil {
			all = g
		} else {
			all.Rows = append(all.Rows, g.Rows...)
		}
	}
	all.Title = t.About
	return printGrid(e, all, c.JSON, c.Markdown)
}

// targets returns the model of each group of rows: the target's, or with a SwiftKV adapter that comes
// with Shoal.
func (c *evalTableCmd) targets(t *eval.Table) (out []evalTarget, err error) {
	for _, rows := range t.Groups() {
		target := c.evalTarget
		if adapter := rows[0].Adapter; adapter != "" {
			if c.Server != "" || c.SwiftKV != "" {
				return nil, fmt.Errorf("table %s compares adapters of the model in this process: remove --server and --swiftkv", t.Name)
			}
			if target.SwiftKV = models.FindBundled(adapter); target.SwiftKV == "" {
				return nil, fmt.Errorf("the adapter %s was not found in the working directory, the folder of the program, or a folder above them",
					adapter)
			}
		}
		out = append(out, target)
	}
	return out, nil
}

// rows measures the rows of one model.
func (c *evalTableCmd) rows(e *ui.Env, t *eval.Table, target *evalTarget, policies []eval.Policy) (*eval.Grid, error) {
	if t.Parts[0].Suite == eval.Perplexities {
		return c.perplexities(e, target, policies)
	}
	a, err := target.open(e)
	if err != nil {
		return nil, err
	}
	defer a.close()
	all := &eval.Grid{Digits: 1}
	for _, p := range policies {
		all.Rows = append(all.Rows, eval.GridRow{Name: p.Name, Spec: p.Spec})
	}
	for _, part := range t.Parts {
		measure := c.suite
		if part.Suite == eval.GeneratedRuler {
			measure = c.ruler
		}
		g, err := measure(e, a, part, policies)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", part.Suite, err)
		}
		all.Join(g)
	}
	return all, nil
}

func (c *evalTableCmd) suite(e *ui.Env, a *evalModel, part eval.TablePart, policies []eval.Policy) (_ *eval.Grid, err error) {
	s, err := suite.Find(part.Suite)
	if err != nil {
		return nil, err
	}
	dir := s.StandIns()
	if c.Data != "" {
		dir = os.DirFS(filepath.Join(c.Data, s.Name))
	}
	questions, err := s.Load(dir, part.Tasks, c.Limit)
	if err != nil {
		return nil, err
	}
	path := ""
	if c.Out != "" {
		path = filepath.Join(c.Out, "suites.jsonl")
	}
	store, err := eval.OpenSuiteStore(path)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	bar := ui.NewBar(e, s.Name, !c.JSON)
	defer bar.End()
	records, err := eval.RunSuite(e.Ctx, a.client, a.tok, s.Name, questions, store, eval.SuiteConfig{Policies: policies, Chat: a.chat,
		MaxPrompt: c.MaxPrompt, MaxTokens: c.MaxTokens, Concurrency: c.Concurrency, Progress: bar.Set})
	if err != nil {
		return nil, err
	}
	return eval.SummarizeSuite(s, records, policies, part.By, nil), nil
}

func (c *evalTableCmd) ruler(e *ui.Env, a *evalModel, part eval.TablePart, policies []eval.Policy) (_ *eval.Grid, err error) {
	cfg := eval.Config{Lengths: []int{c.Length}, Samples: cmp.Or(c.Limit, 100), Policies: policies, Concurrency: c.Concurrency}
	for _, column := range part.Columns {
		cfg.Tasks = append(cfg.Tasks, column.Tasks...)
	}
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	path := ""
	if c.Out != "" {
		path = filepath.Join(c.Out, "ruler.jsonl")
	}
	store, err := eval.OpenStore(path)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	g, err := eval.NewGenerator(a.tok, a.chat, nil, c.Seed)
	if err != nil {
		return nil, err
	}
	bar := ui.NewBar(e, "ruler", !c.JSON)
	defer bar.End()
	cfg.Progress = bar.Set
	records, err := eval.Run(e.Ctx, a.client, a.tok, g, store, cfg)
	if err != nil {
		return nil, err
	}
	return eval.RulerGrid(eval.Summarize(records, cfg), part.Columns), nil
}

// perplexities measures the table of perplexities, in this process.
func (c *evalTableCmd) perplexities(e *ui.Env, target *evalTarget, policies []eval.Policy) (*eval.Grid, error) {
	text := eval.OwnCorpus().English
	if c.Text != "" {
		var err error
		if text, err = readText(c.Text); err != nil {
			return nil, err
		}
	}
	ppl := evalPPLCmd{evalTarget: *target, Window: c.Length, Windows: c.Windows, JSON: c.JSON}
	list, err := ppl.measure(e, text, policies)
	if err != nil {
		return nil, err
	}
	return eval.PerplexityGrid(list), nil
}

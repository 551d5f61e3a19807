package lab

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/shoal-llm/shoal/internal/cli/models"
	"github.com/shoal-llm/shoal/internal/cli/ui"
	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
	"github.com/shoal-llm/shoal/internal/eval"
)

type evalTableCmd struct {
	evalTarget
	Table     string `arg:"" help:"Paper's table: snapstream, snapstream-r1, shadowkv, squeezed, equip, swiftkv."`
	Data      string `type:"path" placeholder:"DIR" help:"Folder with a folder for each benchmark, named as in lab suite (default: small files of the same form that come with Shoal)."`
	Limit     int    `short:"n" default:"4" range:"0.." help:"Questions per task of a benchmark, and samples per generated task. 0: all questions of a file, 100 samples."`
	Length    int    `short:"l" default:"2048" help:"Length of generated prompts, in tokens."`
	MaxPrompt int    `range:"0.." placeholder:"TOKENS" help:"Maximum length of a benchmark's prompt; the middle is removed (default: no limit)."`
	MaxTokens int    `short:"t" default:"64" range:"0.." help:"Maximum tokens per answer of a benchmark. 0: the benchmark's own."`
	Seed      uint64 `default:"1" help:"Seed of generated prompts."`
	Text      string `type:"path" placeholder:"FILE" help:"Text whose perplexity table equip measures (default: prose that comes with Shoal)."`
	Windows   int    `default:"4" range:"0.." help:"Windows of --length tokens of that text. 0: all."`
	Out       string `short:"o" type:"path" placeholder:"DIR" help:"Folder for the answers. A run with the same folder continues the last one."`
	JSON      bool   `name:"json" help:"Print the table as JSON."`
	Markdown  bool   `help:"Print the table as Markdown."`
}

func (c *evalTableCmd) Help() string {
	return `Measures the rows of a paper's table for any model: its policies at its shares of the context, and its
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
	parts, err := c.parts(t)
	if err != nil {
		return err
	}
	targets, err := c.targets(e, t)
	if err != nil {
		return err
	}
	if c.Out != "" {
		if err := os.MkdirAll(c.Out, 0o755); err != nil {
			return err
		}
	}
	all, err := c.measure(e, t, targets, parts)
	if err != nil {
		return resumeHint(e, c.Out, err)
	}
	all.Title = t.About
	return printGrid(e, all, c.JSON, c.Markdown)
}

// measure measures all rows, group by group.
func (c *evalTableCmd) measure(e *ui.Env, t *eval.Table, targets []evalTarget, parts []tablePart) (*eval.Grid, error) {
	var all *eval.Grid
	groups := t.Groups()
	for i, rows := range groups {
		policies, err := t.Policies(rows)
		if err != nil {
			return nil, err
		}
		for k := range parts {
			parts[k].label = fmt.Sprintf("%s (%d of %d)", parts[k].Suite, i*len(parts)+k+1, len(groups)*len(parts))
		}
		g, err := c.rows(e, &targets[i], parts, policies)
		if err != nil {
			return nil, err
		}
		if all == nil {
			all = g
		} else {
			all.Rows = append(all.Rows, g.Rows...)
		}
	}
	return all, nil
}

// targets returns the model of each group of rows: the target's, or with a SwiftKV adapter that comes
// with Shoal. It checks that the adapters fit the model.
func (c *evalTableCmd) targets(e *ui.Env, t *eval.Table) (out []evalTarget, err error) {
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
			if err := fits(e, &target); err != nil {
				return nil, err
			}
		}
		out = append(out, target)
	}
	return out, nil
}

// fits returns an error if the target's adapter does not fit its model.
func fits(e *ui.Env, target *evalTarget) error {
	dir, err := target.Dir(e)
	if err != nil {
		return err
	}
	ck, err := checkpoint.OpenSwiftKV(dir, target.SwiftKV)
	if err != nil {
		return err
	}
	return ck.Close()
}

// rows measures the rows of one model.
func (c *evalTableCmd) rows(e *ui.Env, target *evalTarget, parts []tablePart, policies []eval.Policy) (*eval.Grid, error) {
	if parts[0].Suite == eval.Perplexities {
		return c.perplexities(e, target, &parts[0], policies)
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
	for k := range parts {
		measure := c.suite
		if parts[k].Suite == eval.GeneratedRuler {
			measure = c.ruler
		}
		g, err := measure(e, a, &parts[k], policies)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", parts[k].Suite, err)
		}
		all.Join(g)
	}
	return all, nil
}

func (c *evalTableCmd) suite(e *ui.Env, a *evalModel, part *tablePart, policies []eval.Policy) (_ *eval.Grid, err error) {
	store, err := eval.OpenSuiteStore(c.file("suites.jsonl"))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	bar := ui.NewBar(e, part.label, !c.JSON)
	defer bar.End()
	records, err := eval.RunSuite(e.Ctx, a.client, a.tok, part.suite.Name, part.questions, store, eval.SuiteConfig{Policies: policies,
		Chat: a.chat, MaxPrompt: c.MaxPrompt, MaxTokens: c.MaxTokens, Concurrency: c.Concurrency, Progress: bar.Set})
	if err != nil {
		return nil, err
	}
	return eval.SummarizeSuite(part.suite, records, policies, part.By, nil), nil
}

func (c *evalTableCmd) ruler(e *ui.Env, a *evalModel, part *tablePart, policies []eval.Policy) (_ *eval.Grid, err error) {
	store, err := eval.OpenStore(c.file("ruler.jsonl"))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	g, err := eval.NewGenerator(a.tok, a.chat, nil, c.Seed)
	if err != nil {
		return nil, err
	}
	bar := ui.NewBar(e, part.label, !c.JSON)
	defer bar.End()
	cfg := part.generated
	cfg.Policies, cfg.Progress = policies, bar.Set
	records, err := eval.Run(e.Ctx, a.client, a.tok, g, store, cfg)
	if err != nil {
		return nil, err
	}
	return eval.RulerGrid(eval.Summarize(records, cfg), part.Columns), nil
}

// perplexities measures the table of perplexities, in this process.
func (c *evalTableCmd) perplexities(e *ui.Env, target *evalTarget, part *tablePart, policies []eval.Policy) (_ *eval.Grid, err error) {
	store, err := eval.OpenWindowStore(c.file("windows.jsonl"))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	ppl := evalPPLCmd{evalTarget: *target, Window: c.Length, Windows: c.Windows, JSON: c.JSON}
	list, err := ppl.measure(e, part.text, policies, store)
	if err != nil {
		return nil, err
	}
	return eval.PerplexityGrid(list), nil
}

// file returns the path of a file of answers in the folder of --out, or "" without one.
func (c *evalTableCmd) file(name string) string {
	if c.Out == "" {
		return ""
	}
	return filepath.Join(c.Out, name)
}

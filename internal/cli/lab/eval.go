package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/shoal-llm/shoal/cluster"
	"github.com/shoal-llm/shoal/internal/cli/models"
	"github.com/shoal-llm/shoal/internal/cli/ui"
	"github.com/shoal-llm/shoal/internal/eval"
	"github.com/shoal-llm/shoal/internal/text/tokenizer"
)

// evalTarget selects the model: that of a server, or one in this process.
type evalTarget struct {
	models.ModelFlag
	Server      string        `placeholder:"URL" help:"URL of an OpenAI-compatible server to evaluate (default: a cluster in this process). --model must then name a folder with the tokenizer of the served model."`
	APIKey      string        `name:"api-key" help:"API key of the server, if it requires one."`
	ServedModel string        `placeholder:"NAME" help:"Model name on the server (default: the first that it lists)."`
	Concurrency int           `short:"c" default:"4" help:"Concurrent requests."`
	Timeout     time.Duration `default:"10m" range:"1ms.." help:"Time limit for one request."`
	Sockets     int           `default:"1" help:"Without --server: tensor-parallel ranks. Does not change the output."`
	Threads     int           `range:"1..1024" placeholder:"N" help:"Without --server: compute threads (default: all CPUs)."`
	KVMemory    int64         `type:"size" name:"kv-memory" default:"1GiB" help:"Without --server: memory for the caches, per rank."`
	Quant       string        `placeholder:"TYPE" help:"Without --server: type of the weights in memory: f32, bf16, f16, q8_0, q4_0, iq4_nl, int4, mxfp4 (default: as stored)."`
	KVType      string        `name:"kv-type" placeholder:"TYPE" help:"Without --server: type of the cache: f32, bf16, int8."`
}

// parsePolicies parses policies. Without --server it refuses unknown ones.
func (t *evalTarget) parsePolicies(list []string) ([]eval.Policy, error) {
	policies, err := eval.ParsePolicies(list)
	if err != nil || t.Server != "" {
		return policies, err
	}
	return policies, eval.CheckPolicies(policies)
}

// evalModel is a model that is ready for requests.
type evalModel struct {
	client *eval.Client
	tok    *tokenizer.Tokenizer
	chat   *tokenizer.ChatTemplate // nil if the model has none
	close  func()
}

func (t *evalTarget) open(e *ui.Env) (_ *evalModel, err error) {
	dir, err := t.Dir(e)
	if err != nil {
		return nil, err
	}
	a := &evalModel{close: func() {}}
	if a.tok, err = tokenizer.Load(dir); err != nil {
		return nil, err
	}
	if a.chat, err = loadChat(dir); err != nil {
		return nil, err
	}
	server := t.Server
	if server == "" {
		ctx, cancel := context.WithTimeout(e.Ctx, 5*time.Minute)
		defer cancel()
		c, err := eval.StartEmbedded(ctx, cluster.LocalConfig{Sockets: t.Sockets, Threads: t.Threads, KVBudget: t.KVMemory,
			Serve: cluster.ServeConfig{Model: dir, SwiftKV: t.SwiftKV, Weights: t.Quant, KV: t.KVType}})
		if err != nil {
			return nil, err
		}
		server = c.Address
		a.close = func() {
			if err := c.Close(); err != nil {
				fmt.Fprintln(e.Stderr, "shoal: stopping the API of this process:", err)
			}
		}
	}
	defer func() {
		if err != nil {
			a.close()
		}
	}()
	if a.client, err = eval.NewClient(e.Ctx, server, t.APIKey, t.ServedModel, t.Timeout); err != nil {
		return nil, err
	}
	stop := a.close
	a.close = func() { a.client.Close(); stop() }
	const probe = "Shoal: func main() { fmt.Println(1234567) } // grüße\n"
	if same, known := a.client.SameTokens(e.Ctx, probe, a.tok.Encode(probe, false)); known && !same {
		return nil, fmt.Errorf("the server's tokenizer differs from the one in %s: set --model to the folder of the served model", dir)
	}
	return a, nil
}

type evalRulerCmd struct {
	evalTarget
	Policy   []string `sep:"none" placeholder:"POLICY" help:"Cache policies to compare on the same prompts; repeat the flag for several (default: full, or the server's own)."`
	Length   []int    `short:"l" default:"4096" help:"Prompt lengths in tokens."`
	Samples  int      `short:"n" default:"20" range:"1.." help:"Samples per task and length."`
	Tasks    []string `placeholder:"TASK" help:"Tasks to run (default: all but those that must be named)."`
	Seed     uint64   `default:"1" help:"Seed of the prompts. The same seed gives the same prompts."`
	Text     string   `type:"path" placeholder:"PATH" help:"Text that hides the needles: a file, or a folder of .go, .md and .txt files (default: a text that comes with Shoal)."`
	QA       string   `name:"qa" type:"path" placeholder:"FILE" help:"Paragraphs of the task qa: a JSON file of SQuAD, or JSON lines with context, question and answers (default: documents with a needle each)."`
	Out      string   `short:"o" type:"path" placeholder:"DIR" help:"Folder for results and summary. A run with the same folder continues the last one."`
	Together bool     `help:"Run in this process and read each prompt once for all policies. Gives the same answers in less time. Runs --workers prompts at a time, with one thread each."`
	Workers  int      `help:"With --together: concurrent prompts (default: the number of CPUs)."`
	Prompts  string   `type:"path" placeholder:"FILE" help:"JSON file of prompts from train/evalgen.py, gzipped or plain. Implies --together."`
	Write    string   `name:"write-prompts" type:"path" placeholder:"FILE" help:"Write the prompts to this file as gzipped JSON, for --prompts and train/evalpol.py, and stop."`
	JSON     bool     `name:"json" help:"Print the summary as JSON."`
	Markdown bool     `help:"Print the summary as a Markdown table."`
}

func (c *evalRulerCmd) Help() string {
	return `Asks the model to find facts in prompts of exactly --length tokens. Decoding is greedy, and an
answer counts only if all of it matches. Without --server the model runs in this process.

  shoal lab ruler                                     the bundled model, all tasks at 4096
  shoal lab ruler -l 512 -n 2 --tasks passkey,vt      a quick look
  shoal lab ruler -l 4096,8192 -n 100 -o results \
      --policy "full streaming/512 snapkv/512 snapstream/512 snapstream/1024"
  shoal lab ruler --policy snapstream:sink=4,recent=64,topk=444,obs=32,pool=7
  shoal lab ruler --tasks qa --qa squad.json -l 8192  RULER's question answering
  shoal lab ruler --server 127.0.0.1:8080             a running cluster, its own policy
  shoal lab ruler --server http://gpu:8000/v1 --model ~/models/Llama-3.1-8B-Instruct -l 32768

With -o DIR the command appends each answer to DIR/results.jsonl when it arrives, so Ctrl-C
loses nothing. It also writes DIR/summary.json. In a checkout of Shoal's sources,
"go run ./internal/tools/rulerplot DIR" plots it.

Tasks:
` + eval.TaskHelp() + `
Policies: full, any policy of the server with its parameters, default (the server's own), or a
policy with a budget in tokens:
` + eval.PolicyHelp()
}

func (c *evalRulerCmd) Run(e *ui.Env) error {
	policies := c.Policy
	if len(policies) == 0 && c.Server == "" {
		policies = []string{"full"}
	}
	var err error
	cfg := eval.Config{Tasks: c.Tasks, Lengths: c.Length, Samples: c.Samples, Concurrency: c.Concurrency}
	if cfg.Policies, err = c.parsePolicies(policies); err != nil {
		return err
	}
	if err := cfg.Validate(); err != nil { // before loading a model
		return err
	}
	var corpus *eval.Corpus
	if c.Text != "" {
		if corpus, err = eval.ReadCorpus(c.Text); err != nil {
			return err
		}
	}
	if c.Write != "" {
		return c.write(e, corpus, &cfg)
	}
	path := ""
	if c.Out != "" {
		if err := os.MkdirAll(c.Out, 0o755); err != nil {
			return err
		}
		path = filepath.Join(c.Out, "results.jsonl")
	}
	store, err := eval.OpenStore(path)
	if err != nil {
		return err
	}
	run := c.runOnline
	if c.Together || c.Prompts != "" {
		run = c.runOffline
	}
	records, err := run(e, corpus, store, &cfg)
	if closed := store.Close(); err == nil {
		err = closed
	}
	if err != nil {
		return resumeHint(e, c.Out, err)
	}
	return c.report(e.Stdout, eval.Summarize(records, cfg))
}

func (c *evalRulerCmd) runOnline(e *ui.Env, corpus *eval.Corpus, store *eval.Store, cfg *eval.Config) ([]eval.Record, error) {
	a, err := c.open(e)
	if err != nil {
		return nil, err
	}
	defer a.close()
	g, err := c.generator(a.tok, a.chat, corpus)
	if err != nil {
		return nil, err
	}
	if len(c.Tasks) == 0 && a.chat == nil {
		cfg.Tasks = slices.DeleteFunc(cfg.Tasks, eval.NeedsChat)
		fmt.Fprintln(e.Stderr, "the model has no chat template: chat tasks are skipped")
	}
	bar := ui.NewBar(e, "eval", !c.JSON)
	defer bar.End()
	cfg.Progress = bar.Set
	return eval.Run(e.Ctx, a.client, a.tok, g, store, *cfg)
}

// runOffline runs the model in this process, without a server.
func (c *evalRulerCmd) runOffline(e *ui.Env, corpus *eval.Corpus, store *eval.Store, cfg *eval.Config) ([]eval.Record, error) {
	if c.Server != "" {
		return nil, errors.New("--together and --prompts run the model in this process: remove --server")
	}
	dir, err := c.Dir(e)
	if err != nil {
		return nil, err
	}
	tok, err := tokenizer.Load(dir)
	if err != nil {
		return nil, err
	}
	source, err := c.source(dir, tok, corpus, cfg)
	if err != nil {
		return nil, err
	}
	bar := ui.NewBar(e, "eval", !c.JSON)
	defer bar.End()
	cfg.Progress = bar.Set
	return eval.RunTogether(e.Ctx, tok, source, store, *cfg,
		eval.TogetherConfig{Model: dir, SwiftKV: c.SwiftKV, Weights: c.Quant, KV: c.KVType, Workers: c.Workers})
}

// write generates the prompts and writes them to the file of --write-prompts.
func (c *evalRulerCmd) write(e *ui.Env, corpus *eval.Corpus, cfg *eval.Config) (err error) {
	dir, err := c.Dir(e)
	if err != nil {
		return err
	}
	tok, err := tokenizer.Load(dir)
	if err != nil {
		return err
	}
	source, err := c.source(dir, tok, corpus, cfg)
	if err != nil {
		return err
	}
	f, err := ui.OpenOutput(c.Write)
	if err != nil {
		return fmt.Errorf("--write-prompts: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return eval.WritePrompts(f, source, cfg.Tasks, cfg.Lengths, cfg.Samples)
}

// source returns the samples: those of the file of --prompts, or generated ones.
func (c *evalRulerCmd) source(dir string, tok *tokenizer.Tokenizer, corpus *eval.Corpus, cfg *eval.Config) (eval.Source, error) {
	if c.Prompts != "" {
		p, err := eval.ReadPrompts(c.Prompts, tok)
		if err != nil {
			return nil, err
		}
		if len(c.Tasks) == 0 {
			cfg.Tasks = p.Tasks()
		}
		if !slices.ContainsFunc(cfg.Lengths, func(l int) bool { return slices.Contains(p.Lengths(), l) }) {
			cfg.Lengths = p.Lengths()
		}
		cfg.Samples = min(cfg.Samples, p.Samples())
		return p, nil
	}
	chat, err := loadChat(dir)
	if err != nil {
		return nil, err
	}
	if len(c.Tasks) == 0 && chat == nil {
		cfg.Tasks = slices.DeleteFunc(cfg.Tasks, eval.NeedsChat)
	}
	return c.generator(tok, chat, corpus)
}

func (c *evalRulerCmd) generator(tok *tokenizer.Tokenizer, chat *tokenizer.ChatTemplate, corpus *eval.Corpus) (*eval.Generator, error) {
	g, err := eval.NewGenerator(tok, chat, corpus, c.Seed)
	if err != nil || c.QA == "" {
		return g, err
	}
	list, err := eval.ReadParagraphs(c.QA)
	if err == nil {
		g.SetParagraphs(list)
	}
	return g, err
}

func (c *evalRulerCmd) report(w io.Writer, s *eval.Summary) error {
	if c.Out != "" {
		if err := s.Write(c.Out); err != nil {
			return err
		}
		if !c.JSON {
			defer fmt.Fprintf(w, "\nin %s: results.jsonl summary.json\n", c.Out)
		}
	}
	switch {
	case c.JSON:
		return ui.PrintJSON(w, s)
	case c.Markdown:
		s.WriteMarkdown(w)
	default:
		s.WriteTable(w)
	}
	return nil
}

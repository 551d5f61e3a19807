package lab

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/shoal-llm/shoal/internal/cli/ui"
	"github.com/shoal-llm/shoal/internal/eval"
	"github.com/shoal-llm/shoal/internal/eval/score"
	"github.com/shoal-llm/shoal/internal/options"
	"github.com/shoal-llm/shoal/internal/text/tokenizer"
)

func loadChat(dir string) (*tokenizer.ChatTemplate, error) {
	t, err := tokenizer.LoadChatTemplate(dir)
	if errors.Is(err, tokenizer.ErrNoChatTemplate) {
		return nil, nil
	}
	return t, err
}

type evalPPLCmd struct {
	evalTarget
	Text     string   `required:"" type:"existingfile" placeholder:"FILE" help:"Text file to measure."`
	Window   int      `default:"2048" help:"Window length in tokens."`
	Stride   int      `help:"Distance of two windows in tokens; each token is scored once (default: --window, without overlap)."`
	Policy   []string `sep:"none" placeholder:"POLICY" help:"Measure under these cache policies, as for lab ruler, in this process. The start of each window is then read as a prompt, and the other tokens are decoded (default: none; the text is read as a prompt)."`
	Prefix   int      `placeholder:"TOKENS" help:"With --policy: tokens of each window that are read as a prompt (default: half the window)."`
	Windows  int      `placeholder:"N" help:"With --policy: maximum number of windows (default: the whole text)."`
	Workers  int      `help:"With --policy: concurrent windows, with one thread each (default: the number of CPUs)."`
	JSON     bool     `name:"json" help:"Print the result as JSON."`
	Markdown bool     `help:"With --policy: print the result as a Markdown table."`
}

func (c *evalPPLCmd) Help() string {
	return `Splits the text into windows and scores each token by its log probability (/v1/completions
with echo and logprobs). A prompt is read with full attention. A cache policy affects what
follows: with --policy the first half of each window is read as a prompt, and the other tokens
are given one after the other. The table has perplexity, nats a token, and the percentage of
tokens after which the most likely token is that of full attention.

  shoal lab ppl --text README.md
  shoal lab ppl --text book.txt --window 8192 --stride 4096 --server 127.0.0.1:8080
  shoal lab ppl --text README.md --policy "full streaming/256 h2o_step/256 snapstream/256"`
}

// maxText is the maximum size in bytes of a text to measure.
const maxText = 256 << 20

// readText reads a file of at most maxText bytes.
func readText(path string) (string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return "", err
	}
	if info.Size() > maxText {
		return "", fmt.Errorf("%s has %s; the limit is %s: use a part of the text", path,
			options.SizeText(info.Size()), options.SizeText(maxText))
	}
	text, err := os.ReadFile(path)
	return string(text), err
}

func (c *evalPPLCmd) Run(e *ui.Env) error {
	text, err := readText(c.Text)
	if err != nil {
		return err
	}
	if len(c.Policy) > 0 {
		return c.underPolicies(e, text)
	}
	a, err := c.open(e)
	if err != nil {
		return err
	}
	defer a.close()
	bar := ui.NewBar(e, "ppl", !c.JSON)
	p, err := eval.MeasurePerplexity(e.Ctx, a.client, a.tok, text,
		eval.PerplexityConfig{Window: c.Window, Stride: c.Stride, Concurrency: c.Concurrency, Progress: bar.Set})
	bar.End()
	if err != nil {
		return err
	}
	if c.JSON {
		return ui.PrintJSON(e.Stdout, p)
	}
	name, _ := a.client.Model()
	fmt.Fprintf(e.Stdout, "%s on %s: perplexity %.4f (%.4f nats a token), %.4f bits a byte; %d tokens, %d windows\n", name, c.Text,
		p.Perplexity, p.NLL, p.BitsPerByte, p.Tokens, p.Windows)
	return nil
}

// underPolicies measures in this process.
func (c *evalPPLCmd) underPolicies(e *ui.Env, text string) error {
	policies, err := c.parsePolicies(c.Policy)
	if err != nil {
		return err
	}
	list, err := c.measure(e, text, policies, nil)
	if err != nil {
		return err
	}
	if c.JSON {
		return ui.PrintJSON(e.Stdout, list)
	}
	return printGrid(e, eval.PerplexityGrid(list), false, c.Markdown)
}

// measure measures in this process. store keeps the scores of windows; nil: in memory only.
func (c *evalPPLCmd) measure(e *ui.Env, text string, policies []eval.Policy, store *eval.WindowStore) ([]eval.PolicyPerplexity, error) {
	if c.Server != "" || c.Stride != 0 {
		return nil, errors.New("perplexity under policies runs the model in this process, in windows without overlap: remove --server and " +
			"--stride")
	}
	dir, err := c.Dir(e)
	if err != nil {
		return nil, err
	}
	tok, err := tokenizer.Load(dir)
	if err != nil {
		return nil, err
	}
	bar := ui.NewBar(e, "ppl", !c.JSON)
	defer bar.End()
	return eval.MeasurePolicyPerplexity(e.Ctx, tok, text,
		eval.PolicyPerplexityConfig{Window: c.Window, Prefix: c.Prefix, Windows: c.Windows, Policies: policies, Store: store,
			Progress: bar.Set},
		eval.TogetherConfig{Model: dir, SwiftKV: c.SwiftKV, Weights: c.Quant, KV: c.KVType, Workers: c.Workers})
}

type evalJSONLCmd struct {
	evalTarget
	File      string   `arg:"" type:"existingfile" help:"File of JSON lines: input and outputs (RULER), or context, input and answers (LongBench)."`
	Metric    string   `enum:"${metrics}" default:"contains" help:"Score of an answer, by name: ${enum}."`
	Template  string   `placeholder:"TEXT" help:"Prompt template with {context} and {input} (default: both, separated by an empty line)."`
	Chat      bool     `help:"Send each question as a message in the model's chat template."`
	MaxTokens int      `short:"t" default:"64" help:"Maximum tokens per answer."`
	MaxPrompt int      `placeholder:"TOKENS" help:"Maximum prompt length. The middle of longer prompts is removed, as in LongBench (default: no limit)."`
	Limit     int      `placeholder:"N" help:"Number of questions to ask (default: all)."`
	Policy    []string `sep:"none" placeholder:"POLICY" help:"Cache policies, as for lab ruler (default: the server's own)."`
	Out       string   `short:"o" type:"path" placeholder:"FILE" help:"File for the answers, one JSON line each."`
	JSON      bool     `name:"json" help:"Print the scores as JSON."`
}

func (c *evalJSONLCmd) Help() string {
	return `Asks the questions of a file and scores the answers. shoal lab suite knows the prompts and
scores of published benchmarks; this command takes any file of their form.

  shoal lab jsonl niah_single_1/validation.jsonl --server 127.0.0.1:8080 -m ~/models/X -t 128
  shoal lab jsonl hotpotqa.jsonl --metric f1 --chat --max-prompt 31500 \
      --template "Answer from the passages.\n{context}\nQuestion: {input}" \
      --policy "full snapstream/4096"

Metrics:
` + score.Help()
}

func (c *evalJSONLCmd) Run(e *ui.Env) (err error) {
	policies, err := c.parsePolicies(c.Policy)
	if err != nil {
		return err
	}
	questions, err := c.read()
	if err != nil {
		return err
	}
	out, err := ui.OpenOutput(c.Out)
	if err != nil {
		return fmt.Errorf("--out: %w", err)
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	a, err := c.open(e)
	if err != nil {
		return err
	}
	defer a.close()
	cfg := eval.QuestionConfig{Metric: c.Metric, Template: c.Template, MaxTokens: c.MaxTokens, MaxPrompt: c.MaxPrompt,
		Policies: policies, Concurrency: c.Concurrency}
	if c.Chat {
		if cfg.Chat = a.chat; a.chat == nil {
			return errors.New("--chat: the model has no chat template")
		}
	}
	bar := ui.NewBar(e, "eval", !c.JSON)
	cfg.Progress = bar.Set
	answers, err := eval.SendQuestions(e.Ctx, a.client, a.tok, questions, cfg)
	bar.End()
	if err != nil {
		return err
	}
	if err := writeLines(out, answers); err != nil {
		return fmt.Errorf("--out: %w", err)
	}
	rows := eval.SummarizeAnswers(answers)
	if c.JSON {
		return ui.PrintJSON(e.Stdout, map[string]any{"metric": c.Metric, "rows": rows})
	}
	eval.WriteAnswerTable(e.Stdout, c.Metric, rows)
	return nil
}

func (c *evalJSONLCmd) read() ([]eval.Question, error) {
	f, err := os.Open(c.File)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	q, err := eval.ReadQuestions(io.Reader(f))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c.File, err)
	}
	if c.Limit > 0 && c.Limit < len(q) {
		q = q[:c.Limit]
	}
	return q, nil
}

func writeLines(w io.Writer, answers []eval.Answered) error {
	out := json.NewEncoder(w)
	for _, a := range answers {
		if err := out.Encode(a); err != nil {
			return err
		}
	}
	return nil
}

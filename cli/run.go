package cli

import (
	"fmt"
	"io"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/shoal-llm/shoal/model"
)

// modelLike is how models are named elsewhere: llama3, llama3:8b, org/model-7b.
var modelLike = regexp.MustCompile(`^([\w.-]+/)?[A-Za-z]+[\w.-]*\d[\w.-]*(:[\w.-]+)?$`)

// isCheckpoint tells whether a text is the path of one.
func isCheckpoint(text string) bool {
	return text != "" && len(text) < 4096 && (exists(filepath.Join(text, "config.json")) || model.IsLoRA(text) || strings.EqualFold(filepath.Ext(text), ".gguf") && exists(text))
}

// sampleFlags are the sampling parameters of run and chat.
type sampleFlags struct {
	MaxTokens   int      `short:"t" default:"256" help:"Most tokens of an answer."`
	Temperature *float64 `help:"0 is greedy (default: the model's)."`
	TopP        *float64 `help:"Nucleus sampling."`
	Seed        *int64   `help:"The same seed gives the same tokens, on any cluster."`
	Policy      string   `name:"kv-policy" help:"Cache policy of this request: ${policies}."`
}

func (f sampleFlags) body() map[string]any {
	b := map[string]any{"max_tokens": f.MaxTokens}
	if f.Temperature != nil {
		b["temperature"] = *f.Temperature
	}
	if f.TopP != nil {
		b["top_p"] = *f.TopP
	}
	if f.Seed != nil {
		b["seed"] = *f.Seed
	}
	if f.Policy != "" {
		b["kv_policy"] = f.Policy
	}
	return b
}

type runCmd struct {
	serverFlags
	sampleFlags
	startFlags
	Model *string  `arg:"" optional:"" help:"A checkpoint, or a model that comes with the program; or the first word of the text."`
	Text  []string `arg:"" optional:"" help:"What is continued; standard input when it is absent or -."`
	Stats bool     `help:"Print timings to standard error."`
}

func (c *runCmd) Help() string {
	return `Continues a text on a running cluster, or with a model named first on one that serves it; if
the server does not, one is started on this machine for as long as the command runs. A model
and no text, at a terminal, is talked to, as with shoal chat.

  shoal run "func add(a, b int) int {"
  shoal run --temperature 0.8 --seed 7 < notes.txt
  shoal run fry "package main"
  shoal run ~/models/Llama-3.2-1B-Instruct`
}

// words are two arguments, so that flags may stand between them.
func (c *runCmd) words() []string {
	if c.Model == nil {
		return c.Text
	}
	return append([]string{*c.Model}, c.Text...)
}

func (c *runCmd) Run(e *env) error {
	checkpoint, words := split(c.words())
	if checkpoint != "" && len(words) == 0 && isTerminal(e.stdin) {
		return (&chatCmd{serverFlags: c.serverFlags, sampleFlags: c.sampleFlags, startFlags: c.startFlags, Model: *c.Model}).Run(e)
	}
	prompt := strings.Join(words, " ")
	switch {
	case len(words) == 0 || prompt == "-":
		if isTerminal(e.stdin) {
			fmt.Fprintln(e.stderr, "the prompt, please; Ctrl-D on a line of its own ends it")
		}
		b, err := await(e.ctx, func() ([]byte, error) { return io.ReadAll(e.stdin) }, func() {})
		if err != nil {
			return err
		}
		prompt = string(b)
	case checkpoint == "" && len(words) == 1 && modelLike.MatchString(prompt):
		fmt.Fprintf(e.stderr, "%q is taken as the prompt; a model here is a folder, a .gguf file or fry\n", prompt)
	}
	body := c.body()
	body["prompt"] = prompt
	cl, end, err := c.begin(e, c.serverFlags, checkpoint)
	if err != nil {
		return err
	}
	defer end()
	f, err := stream(e.ctx, cl, "/v1/completions", body, func(t string) { fmt.Fprint(e.stdout, t) })
	if err != nil {
		return err
	}
	fmt.Fprintln(e.stdout)
	f.sayIfCut(e.stderr)
	if c.Stats {
		printRate(e.stderr, f)
	}
	return nil
}

package cli

import (
	"fmt"
	"io"
	"path/filepath"
	"regexp"
	"strings"
)

// modelLike is how models are named elsewhere: llama3, llama3:8b, org/model-7b.
var modelLike = regexp.MustCompile(`^([\w.-]+/)?[A-Za-z]+[\w.-]*\d[\w.-]*(:[\w.-]+)?$`)

// isCheckpoint tells whether a text is the path of one.
func isCheckpoint(text string) bool {
	return text != "" && len(text) < 4096 && (exists(filepath.Join(text, "config.json")) || strings.EqualFold(filepath.Ext(text), ".gguf") && exists(text))
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
	Prompt []string `arg:"" optional:"" help:"Text to continue; standard input when absent or -."`
	Stats  bool     `help:"Print timings to standard error."`
}

func (c *runCmd) Help() string {
	return `Continues a text on a running cluster (shoal up starts one).

  shoal run "func add(a, b int) int {"
  shoal run --temperature 0.8 --seed 7 < notes.txt`
}

func (c *runCmd) Run(e *env) error {
	prompt := strings.Join(c.Prompt, " ")
	switch {
	case len(c.Prompt) == 0 || prompt == "-":
		if isTerminal(e.stdin) {
			fmt.Fprintln(e.stderr, "the prompt, please; Ctrl-D on a line of its own ends it")
		}
		b, err := await(e.ctx, func() ([]byte, error) { return io.ReadAll(e.stdin) }, func() {})
		if err != nil {
			return err
		}
		prompt = string(b)
	case isCheckpoint(prompt):
		return fmt.Errorf("%s is a model, and run takes a prompt for the model that a cluster serves: `shoal up --model %s` serves it, then `shoal run \"Once upon\"`, `shoal chat`", prompt, prompt)
	case len(c.Prompt) == 1 && modelLike.MatchString(prompt):
		fmt.Fprintf(e.stderr, "%q is taken as the prompt; a model is named where it is served: shoal up --model DIR\n", prompt)
	}
	body := c.body()
	body["prompt"] = prompt
	cl := c.client()
	cl.notice = e.stderr
	f, err := cl.stream(e.ctx, "/v1/completions", body, func(t string) { fmt.Fprint(e.stdout, t) })
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

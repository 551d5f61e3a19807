package cli

import (
	"fmt"
	"io"
	"strings"
)

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
	if len(c.Prompt) == 0 || prompt == "-" {
		b, err := io.ReadAll(e.stdin)
		if err != nil {
			return err
		}
		prompt = string(b)
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
	if c.Stats {
		printRate(e.stderr, f)
	}
	return nil
}

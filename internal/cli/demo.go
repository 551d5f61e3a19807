package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/shoal-llm/shoal/client"
	"github.com/shoal-llm/shoal/internal/cli/launch"
	"github.com/shoal-llm/shoal/internal/cli/models"
	"github.com/shoal-llm/shoal/internal/cli/ui"
)

type demoCmd struct {
	launch.ServeFlags
	launch.NodeFlags
	Nodes  int    `short:"n" default:"4" range:"1..64" help:"Node processes."`
	Prompt string `help:"Question to ask instead of the demo's own."`
	Tokens int    `default:"160" range:"1.." help:"Maximum tokens per answer."`
}

func (c *demoCmd) Help() string {
	return "Downloads nothing and leaves nothing running. The answers are bit-identical for every --nodes."
}

// questions returns questions that suit the training of the bundled model: one about Go, and
// one about a fact in a long text.
func questions() []question {
	return []question{
		{"Write a Go function that reverses a string.", ""},
		{"What is the special magic number for " + needleKey + " mentioned in the provided text?", haystack()},
	}
}

// weather is a function that the model can call; weatherQuestion needs it.
const (
	weather         = `{"type":"function","function":{"name":"get_weather","description":"The weather in a city.","parameters":{"type":"object","properties":{"city":{"type":"string"}},"required":["city"]}}}`
	weatherQuestion = "What is the weather in Lisbon?"
	weatherResult   = `{"sky": "fog", "degrees": 17}`
)

// question is one question of the demo. The demo prints text, and sends context before it.
type question struct{ text, context string }

func (c *demoCmd) Run(e *ui.Env) error {
	up := launch.Up{NoJobs: true, ServeFlags: c.ServeFlags, NodeFlags: c.NodeFlags, Nodes: c.Nodes,
		LogFlags: launch.LogFlags{LogLevel: "error"}}
	up.Listen = "127.0.0.1:0"
	if len(c.Model) > 1 {
		return errors.New("shoal demo shows one model: give --model once; shoal up serves several")
	}
	calls := len(c.Model) == 0 && c.Prompt == ""
	if tools := models.FindBundled(models.BundledTools); len(c.Model) == 0 && tools != "" { // the bundled model with an adapter for tool calls
		up.Model = []string{tools}
	}
	began := time.Now()
	serve, err := up.Prepare(e)
	if err != nil {
		return err
	}
	l, err := up.StartPrivate(e, serve)
	if err != nil {
		return err
	}
	defer l.Stop()
	if err := l.WaitReady(e); err != nil {
		return err
	}
	addr, unserve, err := l.Serve(e.Ctx)
	if err != nil {
		return err
	}
	defer unserve()
	ctx := e.Ctx
	cl := &client.Client{Server: addr}
	state, err := cl.Cluster(ctx)
	if err != nil {
		return err
	}
	fmt.Fprintf(e.Stdout, "%d processes up in %.1f s, with one model split across them\n\n", c.Nodes, time.Since(began).Seconds())
	printStatus(e.Stdout, state)
	ask := questions()
	if c.Prompt != "" {
		ask = []question{{c.Prompt, ""}}
	}
	for _, q := range ask {
		if err := c.answer(ctx, e.Stdout, cl, q); err != nil {
			return err
		}
	}
	if calls && len(up.Model) > 0 {
		if err := c.call(ctx, e.Stdout, cl); err != nil {
			return err
		}
	}
	fmt.Fprintf(e.Stdout, "\nnext: shoal up, then shoal chat (or `go run ./cmd/shoal up`)\n")
	return nil
}

func (c *demoCmd) answer(ctx context.Context, w io.Writer, cl *client.Client, q question) error {
	fmt.Fprintf(w, "\n> %s", q.text)
	if q.context != "" {
		fmt.Fprintf(w, "   (after a text of %d characters)", len(q.context))
	}
	fmt.Fprintln(w)
	f, err := stream(ctx, cl, "/v1/chat/completions", map[string]any{
		"messages":   []map[string]string{{"role": "user", "content": q.context + q.text}},
		"max_tokens": c.Tokens,
	}, func(text string) { fmt.Fprint(w, text) }, w)
	if err != nil {
		return err
	}
	fmt.Fprintln(w)
	printRate(w, f)
	return nil
}

// call lets the model call a function and answer with its result.
func (c *demoCmd) call(ctx context.Context, w io.Writer, cl *client.Client) error {
	fmt.Fprintf(w, "\n> %s   (with a function get_weather)\n", weatherQuestion)
	messages := []any{map[string]any{"role": "user", "content": weatherQuestion}}
	for range 2 {
		f, err := stream(ctx, cl, "/v1/chat/completions",
			map[string]any{"messages": messages, "tools": []any{json.RawMessage(weather)}, "max_tokens": c.Tokens, "temperature": 0},
			func(text string) { fmt.Fprint(w, text) }, w)
		if err != nil {
			return err
		}
		if len(f.Calls) == 0 {
			fmt.Fprintln(w)
			printRate(w, f)
			return nil
		}
		messages = append(messages, map[string]any{"role": "assistant", "content": nil, "tool_calls": f.Calls})
		for _, call := range f.Calls {
			fmt.Fprintf(w, "%s(%s) -> %s\n", call.Function.Name, call.Function.Arguments, weatherResult)
			messages = append(messages, map[string]any{"role": "tool", "tool_call_id": call.ID, "content": weatherResult})
		}
	}
	return nil
}

// printRate prints the times and the rate of an answer.
func printRate(w io.Writer, f streamResult) {
	decode := (f.Total - f.First).Seconds()
	rate := 0.0
	if f.Usage.Completion > 1 && decode > 0 {
		rate = float64(f.Usage.Completion-1) / decode
	}
	if f.First == 0 { // the answer has no text
		fmt.Fprintf(w, "[%d prompt tokens, %d tokens, no text, %.2f s]\n", f.Usage.Prompt, f.Usage.Completion, f.Total.Seconds())
		return
	}
	fmt.Fprintf(w, "[%d prompt tokens, first token after %.2f s, %d tokens, %.0f tokens/s]\n", f.Usage.Prompt,
		f.First.Seconds(), f.Usage.Completion, rate)
}

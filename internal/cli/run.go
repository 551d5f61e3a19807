package cli

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"github.com/shoal-llm/shoal/client"
	"github.com/shoal-llm/shoal/internal/cli/launch"
	"github.com/shoal-llm/shoal/internal/cli/models"
	"github.com/shoal-llm/shoal/internal/cli/ui"
	"github.com/shoal-llm/shoal/internal/engine/lora"
	"github.com/shoal-llm/shoal/internal/hub/layout"
)

// isCheckpoint reports whether a text is the path of a checkpoint.
func isCheckpoint(text string) bool {
	if at, err := layout.Locate(text); err == nil {
		text = at
	}
	return text != "" && len(text) < 4096 && (ui.Exists(filepath.Join(text, "config.json")) || lora.IsFolder(text) ||
		strings.EqualFold(filepath.Ext(text), ".gguf") && ui.Exists(text))
}

// defaultAnswer is the default limit of tokens per answer.
const defaultAnswer = 256

// sampleFlags are the sampling parameters of run and chat.
type sampleFlags struct {
	System      string   `help:"System message."`
	MaxTokens   int      `short:"t" default:"${answer}" help:"Maximum tokens of the answer."`
	Temperature *float64 `help:"Sampling temperature; 0 is greedy (default: the model's)."`
	TopP        *float64 `help:"Probability mass for nucleus sampling (default: the model's)."`
	Seed        *int64   `help:"Sampling seed. The same seed gives the same tokens on any cluster (default: random)."`
	Policy      string   `name:"kv-policy" help:"Cache policy, as for --policy of shoal up (default: the server's)."`
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
	launch.ServerFlags
	sampleFlags
	startFlags
	Model *string  `arg:"" optional:"" help:"Model: a path, org/name of a hub, a model that comes with the program, or a name on the server. Otherwise the first word of the text."`
	Text  []string `arg:"" optional:"" help:"Question for the model; - reads standard input (default: standard input)."`
	Raw   bool     `help:"Complete the text without the model's chat template."`
	Stats bool     `help:"Print timings to standard error."`
}

func (c *runCmd) Help() string {
	return `Asks a model one question and streams the answer. The text is sent as a message in the model's
chat template. With --raw, or without a chat template, the model completes the text.

  shoal run "What is a goroutine?"             the model on 127.0.0.1:8080
  shoal run fry "What is a goroutine?"         a model by name or path
  shoal run Qwen/Qwen3-0.6B "And a channel?"   a model of a hub, which is pulled first
  shoal run ~/models/Llama-3.2-1B-Instruct     no text, at a terminal: the same as shoal chat
  shoal run --raw "func add(a, b int) int {"
  shoal run --temperature 0.8 --seed 7 < notes.txt

Thoughts of a model that thinks first are printed on standard error.

If the server does not have the model, the command starts a cluster on this machine and stops
it at the end. The first argument is the model if it names a checkpoint or a model on the
server. An argument that looks like a model but names none is an error: a path, a .gguf file,
a name such as llama3, or one word before more text. So put quotes around a text.`
}

// words joins the two arguments. There are two, so that flags can follow the first.
func (c *runCmd) words() []string {
	if c.Model == nil {
		return c.Text
	}
	return append([]string{*c.Model}, c.Text...)
}

func (c *runCmd) Run(e *ui.Env) error {
	if c.Raw && c.System != "" {
		return errors.New("--raw has no system message: remove --system")
	}
	ask, err := understand(c.words(), localCheckpoint,
		func(name string) bool { return serverHasModel(e.Ctx, c.Client(), name) }, models.CanPull)
	if err != nil {
		return err
	}
	if ask.pull != "" {
		if ask.checkpoint, err = models.FindFiles(e, ask.pull); err != nil {
			return err
		}
	}
	if (ask.checkpoint != "" || ask.served != "") && ask.text == nil && !c.Raw && ui.IsTerminal(e.Stdin) {
		return (&chatCmd{ServerFlags: c.ServerFlags, sampleFlags: c.sampleFlags, startFlags: c.startFlags, Model: *c.Model}).Run(e)
	}
	text := strings.Join(ask.text, " ")
	if ask.text == nil {
		if text, err = c.readText(e); err != nil {
			return err
		}
	} else if ask.checkpoint == "" && ask.served == "" && len(ask.text) == 1 && oneWord.MatchString(text) {
		fmt.Fprintf(e.Stderr, "%q is used as the text, since no model has this name\n", text)
	}
	cl, end, err := c.connect(e, c.ServerFlags, ask.checkpoint)
	if err != nil {
		return err
	}
	defer end()
	f, err := c.complete(e, cl, ask.served, text)
	if err != nil {
		return err
	}
	fmt.Fprintln(e.Stdout)
	f.printIfTruncated(e.Stderr)
	if c.Stats {
		printRate(e.Stderr, f)
	}
	return nil
}

// readText reads the text from standard input.
func (c *runCmd) readText(e *ui.Env) (string, error) {
	if ui.IsTerminal(e.Stdin) {
		fmt.Fprintln(e.Stderr, "Type the text, and end it with Ctrl-D on a line of its own.")
	}
	b, err := ui.Await(e.Ctx, func() ([]byte, error) { return io.ReadAll(e.Stdin) }, func() {})
	if err != nil || c.Raw {
		return string(b), err
	}
	if text := strings.TrimSpace(string(b)); text != "" {
		return text, nil
	}
	return "", errors.New("there is no text: pass it as an argument or on standard input")
}

// complete sends a text and streams the answer. The text is a message in the model's chat template, or
// a prompt to complete.
func (c *runCmd) complete(e *ui.Env, cl *client.Client, name, text string) (streamResult, error) {
	out := ui.TextWriter(e.Stdout)
	emit := func(t string) { fmt.Fprint(out, t) }
	body := c.body()
	if name != "" {
		body["model"] = name
	}
	if !c.Raw {
		var turns []turn
		if c.System != "" {
			turns = append(turns, turn{"system", c.System})
		}
		body["messages"] = append(turns, turn{"user", text})
		f, err := stream(e.Ctx, cl, "/v1/chat/completions", body, emit, ui.TextWriter(e.Stderr))
		if !isNoTemplate(err) || c.System != "" {
			return f, err
		}
		delete(body, "messages")
	}
	body["prompt"] = text
	return stream(e.Ctx, cl, "/v1/completions", body, emit, nil)
}

// isNoTemplate reports whether a server refused a chat because the model has no chat template.
func isNoTemplate(err error) bool {
	var refused *client.Error
	return errors.As(err, &refused) && refused.Code == "no_chat_template"
}

package cli

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"github.com/shoal-llm/shoal/client"
	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/hub/layout"
)

// isCheckpoint tells whether a text is the path of one.
func isCheckpoint(text string) bool {
	if at, err := layout.Locate(text); err == nil {
		text = at
	}
	return text != "" && len(text) < 4096 && (exists(filepath.Join(text, "config.json")) || model.IsLoRA(text) || strings.EqualFold(filepath.Ext(text), ".gguf") && exists(text))
}

// defaultAnswer is the most tokens of an answer unless a flag gives another number.
const defaultAnswer = 256

// sampleFlags are the sampling parameters of run and chat.
type sampleFlags struct {
	MaxTokens   int      `short:"t" default:"${answer}" help:"Most tokens of an answer."`
	Temperature *float64 `help:"0 is greedy (default: the model's)."`
	TopP        *float64 `help:"Nucleus sampling."`
	Seed        *int64   `help:"The same seed gives the same tokens, on any cluster."`
	Policy      string   `name:"kv-policy" help:"Cache policy of this request, as --policy of shoal up has them (default: the server's)."`
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
	Model  *string  `arg:"" optional:"" help:"A path, org/name of a hub, a model that comes with the program, or a name that the server serves; or the first word of the text."`
	Text   []string `arg:"" optional:"" help:"Question for the model (default, and with -: standard input)."`
	System string   `help:"System message."`
	Raw    bool     `help:"Continue the text without the chat template of the model."`
	Stats  bool     `help:"Print timings to standard error."`
}

func (c *runCmd) Help() string {
	return `Asks a model one question and prints the answer as it comes. The text is a message in the
model's chat template; with --raw, or where the model has no template, it is continued.

  shoal run "What is a goroutine?"             the model that 127.0.0.1:8080 serves
  shoal run fry "What is a goroutine?"         a model by name or path
  shoal run Qwen/Qwen3-0.6B "And a channel?"   a model of a hub, which is pulled first
  shoal run ~/models/Llama-3.2-1B-Instruct     no text, at a terminal: as shoal chat
  shoal run --raw "func add(a, b int) int {"
  shoal run --temperature 0.8 --seed 7 < notes.txt

If the server does not serve the named model, a cluster is started on this machine for as
long as the command runs. The first argument is the model if it names a checkpoint or a model
of the server. It is an error if it can only be meant as a model: a path, a .gguf file, a name
such as llama3, or one word before more text. So quote a text of several words.`
}

// words are two arguments, so that flags may stand between them.
func (c *runCmd) words() []string {
	if c.Model == nil {
		return c.Text
	}
	return append([]string{*c.Model}, c.Text...)
}

func (c *runCmd) Run(e *env) error {
	if c.Raw && c.System != "" {
		return errors.New("--raw continues the text alone: leave --system out")
	}
	ask, err := understand(c.words(), localCheckpoint, func(name string) bool { return serverHasModel(e.ctx, c.client(), name) }, canPull)
	if err != nil {
		return err
	}
	if ask.pull != "" {
		if ask.checkpoint, err = findFiles(e, ask.pull); err != nil {
			return err
		}
	}
	if (ask.checkpoint != "" || ask.served != "") && ask.text == nil && !c.Raw && isTerminal(e.stdin) {
		return (&chatCmd{serverFlags: c.serverFlags, sampleFlags: c.sampleFlags, startFlags: c.startFlags, System: c.System, Model: *c.Model}).Run(e)
	}
	text := strings.Join(ask.text, " ")
	if ask.text == nil {
		if text, err = c.readText(e); err != nil {
			return err
		}
	} else if ask.checkpoint == "" && ask.served == "" && len(ask.text) == 1 && oneWord.MatchString(text) {
		fmt.Fprintf(e.stderr, "%q is taken as the text, since no model is called so\n", text)
	}
	cl, end, err := c.connect(e, c.serverFlags, ask.checkpoint)
	if err != nil {
		return err
	}
	defer end()
	f, err := c.ask(e, cl, ask.served, text)
	if err != nil {
		return err
	}
	fmt.Fprintln(e.stdout)
	f.printIfTruncated(e.stderr)
	if c.Stats {
		printRate(e.stderr, f)
	}
	return nil
}

// readText reads the text from standard input.
func (c *runCmd) readText(e *env) (string, error) {
	if isTerminal(e.stdin) {
		fmt.Fprintln(e.stderr, "Type the text; Ctrl-D on a line of its own ends it.")
	}
	b, err := await(e.ctx, func() ([]byte, error) { return io.ReadAll(e.stdin) }, func() {})
	if err != nil || c.Raw {
		return string(b), err
	}
	if text := strings.TrimSpace(string(b)); text != "" {
		return text, nil
	}
	return "", errors.New("there is no text: give it as an argument or on standard input")
}

// ask streams the answer to a text: a message in the model's chat template, or its
// continuation.
func (c *runCmd) ask(e *env, cl *client.Client, name, text string) (streamResult, error) {
	emit := func(t string) { fmt.Fprint(e.stdout, t) }
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
		f, err := stream(e.ctx, cl, "/v1/chat/completions", body, emit)
		if !isNoTemplate(err) || c.System != "" {
			return f, err
		}
		delete(body, "messages")
	}
	body["prompt"] = text
	return stream(e.ctx, cl, "/v1/completions", body, emit)
}

// isNoTemplate tells whether a chat was refused since the model has no chat template.
func isNoTemplate(err error) bool {
	var refused *client.Error
	return errors.As(err, &refused) && refused.Code == "no_chat_template"
}

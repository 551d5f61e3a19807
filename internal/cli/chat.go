package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/shoal-llm/shoal/client"
	"github.com/shoal-llm/shoal/internal/cli/launch"
	"github.com/shoal-llm/shoal/internal/cli/models"
	"github.com/shoal-llm/shoal/internal/cli/ui"
)

type chatCmd struct {
	launch.ServerFlags
	sampleFlags
	startFlags
	Model  string `arg:"" optional:"" help:"Model to chat with: a checkpoint, a model that comes with the program, or a name on the server (default: the server's model)."`
	served string // name of the model on the server; "" for its default
}

const chatHelp = `/clear            start a new conversation (also /reset)
/set              show the settings; /set NAME VALUE changes one: system, temperature, top_p,
                  seed, max_tokens, kv_policy; /set NAME restores its default
/save FILE        write the conversation to a file, as JSON
/load FILE        continue a conversation from a file
/help             print this text
/exit             leave (also /bye, Ctrl-D, and Ctrl-C twice at an empty prompt)

Put """ around a message of several lines, or end each line but the last with \. Pasted text
is one message. Ctrl-C stops an answer, or clears the line. The arrow keys move the cursor
and recall messages of this chat and of earlier ones.`

func (c *chatCmd) Help() string {
	return `Starts a conversation with the model of a running cluster, or with MODEL. If the server does
not have MODEL, the command starts a cluster on this machine and stops it at the end.

  shoal chat                              the model on 127.0.0.1:8080
  shoal chat fry                          the model that comes with the program
  shoal chat ~/models/Llama-3.2-1B-Instruct --quant q8_0

` + chatHelp
}

type turn struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

func (c *chatCmd) Run(e *ui.Env) error {
	checkpoint := ""
	if c.Model != "" {
		checkpoint = localCheckpoint(c.Model)
		switch {
		case checkpoint != "":
		case serverHasModel(e.Ctx, c.Client(), c.Model):
			c.served = c.Model
		case !models.CanPull(c.Model):
			return models.ErrNoModel(c.Model)
		default:
			var err error
			if checkpoint, err = models.FindFiles(e, c.Model); err != nil {
				return err
			}
		}
	}
	cl, end, err := c.connect(e, c.ServerFlags, checkpoint)
	if err != nil {
		return err
	}
	defer end()
	state, err := cl.Cluster(e.Ctx)
	if err != nil {
		return err
	}
	if err := c.checkTemplate(e.Ctx, cl, state.Model); err != nil {
		return err
	}
	t := &conversation{chatCmd: c, e: e, cl: cl, interactive: ui.IsTerminal(e.Stdout), turns: c.start()}
	if t.interactive {
		fmt.Fprintf(e.Stdout, "%s on %s; /help lists the commands, /exit ends the chat\n", state.Model, ui.Plural(len(state.Nodes), "node"))
		defer e.Interrupts.Intercept(t.answerJustEnded)()
	}
	return t.run(newLines(e, "> "))
}

// checkTemplate refuses a model without a chat template before the user types a message.
func (c *chatCmd) checkTemplate(ctx context.Context, cl *client.Client, name string) error {
	resp, err := cl.Do(ctx, http.MethodPost, "/tokenize", map[string]any{"messages": []turn{{"user", "x"}}})
	if err == nil {
		return resp.Body.Close()
	}
	if isNoTemplate(err) {
		return fmt.Errorf("%s has no chat template, so it cannot chat. It completes texts, as in `shoal run \"Once upon a time\"`", name)
	}
	return nil // the first message reports other errors
}

// conversation is the state of a chat.
type conversation struct {
	*chatCmd
	e           *ui.Env
	cl          *client.Client
	interactive bool // standard output is a terminal
	turns       []turn
	warned      bool                      // the last input was Ctrl-C at an empty prompt
	silent      bool                      // nothing was printed after the last prompt
	ended       atomic.Pointer[time.Time] // end of the last answer; nil before the first
}

// interruptGrace is the time after an answer in which Ctrl-C counts as meant for that answer.
const interruptGrace = time.Second

// answerJustEnded reports whether an answer ended within interruptGrace.
func (t *conversation) answerJustEnded() bool {
	ended := t.ended.Load()
	return ended != nil && time.Since(*ended) < interruptGrace
}

// run reads messages and streams answers until the user exits.
func (t *conversation) run(in *lines) error {
	for {
		if t.interactive && !t.silent {
			fmt.Fprintln(t.e.Stdout)
		}
		t.silent = false
		text, err := readMessage(t.e.Ctx, in)
		var stopped interrupted
		switch {
		case errors.As(err, &stopped):
			if t.interrupt(stopped) {
				return nil
			}
			continue
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		t.warned = false
		if strings.TrimSpace(text) == "" {
			t.silent = true
			continue
		}
		in.history.add(text)
		known, quit := t.command(text)
		if quit {
			return nil
		}
		if known {
			continue
		}
		turns, err := t.send(t.e, t.cl, append(t.turns, turn{"user", text}))
		now := time.Now()
		t.ended.Store(&now)
		if err != nil && (!t.interactive || t.e.Ctx.Err() != nil) {
			return err
		}
		if err != nil { // the user can repeat the message
			fmt.Fprintln(t.e.Stderr, "shoal:", err)
			continue
		}
		t.turns = turns
	}
}

// interrupt handles Ctrl-C at the prompt. It clears a line with text. At an empty line, the
// second Ctrl-C ends the chat.
func (t *conversation) interrupt(at interrupted) (quit bool) {
	t.silent = true
	switch {
	case at.text:
		t.warned = false
	case t.warned && !t.answerJustEnded():
		return true
	default:
		fmt.Fprintln(t.e.Stdout, "press Ctrl-C once more to exit; Ctrl-D and /exit also work")
		t.warned = !t.answerJustEnded()
	}
	return false
}

// readMessage reads one message, which has one or several lines.
func readMessage(ctx context.Context, in *lines) (string, error) {
	defer in.prompt("> ")
	text, err := in.next(ctx)
	if err != nil {
		return text, err
	}
	block := strings.HasPrefix(text, `"""`)
	if block {
		text = text[3:]
	}
	for err == nil {
		rest, ends := strings.CutSuffix(text, `"""`)
		switch {
		case block && ends:
			return rest, nil
		case !block:
			goesOn := strings.HasSuffix(text, `\`)
			if !goesOn {
				return text, nil
			}
			text = text[:len(text)-1]
		}
		in.prompt(". ")
		var next string
		next, err = in.next(ctx)
		text += "\n" + next
	}
	if errors.As(err, new(interrupted)) { // earlier lines of the message are discarded too
		err = interrupted{text: true}
	}
	return text, err
}

// send streams the answer to a conversation, and returns the conversation with the answer.
// Ctrl-C stops the answer and keeps its beginning.
func (c *chatCmd) send(e *ui.Env, cl *client.Client, history []turn) ([]turn, error) {
	body := c.body()
	body["messages"] = history
	if c.served != "" {
		body["model"] = c.served
	}
	ctx, stop := context.WithCancel(e.Ctx)
	defer stop()
	defer e.Interrupts.Intercept(func() bool { stop(); return true })()
	var answer strings.Builder
	out := ui.TextWriter(e.Stdout)
	f, err := stream(ctx, cl, "/v1/chat/completions", body, func(t string) {
		answer.WriteString(t)
		fmt.Fprint(out, t)
	}, ui.TextWriter(e.Stderr))
	fmt.Fprintln(e.Stdout)
	switch {
	case err != nil && ctx.Err() != nil && e.Ctx.Err() == nil:
		fmt.Fprintln(e.Stderr, "[stopped]")
	case err != nil:
		return nil, err
	default:
		f.printIfTruncated(e.Stderr)
	}
	return append(history, turn{"assistant", answer.String()}), nil
}

func (c *chatCmd) start() []turn {
	if c.System == "" {
		return nil
	}
	return []turn{{"system", c.System}}
}

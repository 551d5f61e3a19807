package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/shoal-llm/shoal/client"
)

type chatCmd struct {
	serverFlags
	sampleFlags
	startFlags
	System string `help:"System message."`
	Model  string `arg:"" optional:"" help:"A checkpoint, a model that comes with the program, or a name that the server serves (default: the server's model)."`
	served string // the name under which the server serves it; "": its default
}

const chatHelp = `/reset   forget what was said
/help    this text
/exit    end, as do an empty line, Ctrl-D, and Ctrl-C where nothing is being answered
""" begins a message of several lines and ends it; so does a \ at the end of a line go on
with the next one. What is pasted is one message. Ctrl-C stops an answer. Arrows move in the
line and bring earlier ones back, also those of earlier chats.`

func (c *chatCmd) Help() string {
	return `A conversation with a running cluster, or with a model: if the server does not serve it, a
cluster is started on this machine for as long as the chat lasts.

  shoal chat                              with whatever 127.0.0.1:8080 serves
  shoal chat fry                          with the model that comes with the program
  shoal chat ~/models/Llama-3.2-1B-Instruct --quant q8_0

` + chatHelp
}

type turn struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

func (c *chatCmd) Run(e *env) error {
	checkpoint := ""
	if c.Model != "" {
		if checkpoint = named(c.Model); checkpoint == "" && !servesName(e.ctx, c.client(), c.Model) {
			return errNoModel(c.Model)
		}
		if checkpoint == "" {
			c.served = c.Model
		}
	}
	cl, end, err := c.begin(e, c.serverFlags, checkpoint)
	if err != nil {
		return err
	}
	defer end()
	state, err := cl.Cluster(e.ctx)
	if err != nil {
		return err
	}
	person := isTerminal(e.stdout)
	if person {
		fmt.Fprintf(e.stdout, "%s on %s; /help tells what there is, an empty line ends\n", state.Model, counted(len(state.Nodes), "node"))
	}
	history, in := c.start(), newLines(e, "> ")
	for {
		if person {
			fmt.Fprintln(e.stdout)
		}
		text, err := message(e.ctx, in)
		switch {
		case errors.Is(err, io.EOF), err == nil && (strings.TrimSpace(text) == "" || text == "/exit" || text == "/bye"):
			return nil
		case err != nil:
			return err
		case text == "/reset":
			history = c.start()
		case text == "/help":
			fmt.Fprintln(e.stdout, chatHelp)
		case strings.HasPrefix(text, "/") && !strings.ContainsAny(text, " \n"):
			fmt.Fprintf(e.stdout, "there is no %s; /help tells what there is\n", text)
		default:
			said, err := c.say(e, cl, append(history, turn{"user", text}))
			if err != nil && (!person || e.ctx.Err() != nil) {
				return err
			}
			if err != nil { // a person may ask again
				fmt.Fprintln(e.stderr, "shoal:", err)
				continue
			}
			history = said
		}
	}
}

// message is what a person says at once: a line, or several.
func message(ctx context.Context, in *lines) (string, error) {
	defer in.prompt("> ")
	text, err := in.next(ctx)
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
		var more string
		more, err = in.next(ctx)
		text += "\n" + more
	}
	return text, err
}

// say asks for an answer to what was said, and returns both. A person's Ctrl-C ends the
// answer where it is.
func (c *chatCmd) say(e *env, cl *client.Client, history []turn) ([]turn, error) {
	body := c.body()
	body["messages"] = history
	if c.served != "" {
		body["model"] = c.served
	}
	ctx, stop := context.WithCancel(e.ctx)
	defer stop()
	defer e.interrupts.during(stop)()
	var answer strings.Builder
	f, err := stream(ctx, cl, "/v1/chat/completions", body, func(t string) {
		answer.WriteString(t)
		fmt.Fprint(e.stdout, t)
	})
	fmt.Fprintln(e.stdout)
	switch {
	case err != nil && ctx.Err() != nil && e.ctx.Err() == nil:
		fmt.Fprintln(e.stderr, "[stopped]")
	case err != nil:
		return nil, err
	default:
		f.sayIfCut(e.stderr)
	}
	return append(history, turn{"assistant", answer.String()}), nil
}

func (c *chatCmd) start() []turn {
	if c.System == "" {
		return nil
	}
	return []turn{{"system", c.System}}
}

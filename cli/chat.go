package cli

import (
	"errors"
	"fmt"
	"io"
	"strings"
)

type chatCmd struct {
	serverFlags
	sampleFlags
	System string `help:"System message."`
}

const chatHelp = `/reset   forget what was said
/help    this text
An empty line, Ctrl-D or Ctrl-C ends. Arrows move in the line and bring earlier ones back.`

func (c *chatCmd) Help() string {
	return "A conversation with a running cluster.\n\n" + chatHelp
}

type turn struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

func (c *chatCmd) Run(e *env) error {
	cl := c.client()
	cl.notice = e.stderr
	state, err := cl.cluster(e.ctx)
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
		line, err := in.next(e.ctx)
		switch {
		case errors.Is(err, io.EOF), err == nil && strings.TrimSpace(line) == "":
			return nil
		case err != nil:
			return err
		case line == "/reset":
			history = c.start()
		case line == "/help":
			fmt.Fprintln(e.stdout, chatHelp)
		case strings.HasPrefix(line, "/") && !strings.Contains(line, " "):
			fmt.Fprintf(e.stdout, "there is no %s; /help tells what there is\n", line)
		default:
			if history, err = c.say(e, cl, append(history, turn{"user", line})); err != nil {
				return err
			}
		}
	}
}

// say asks for an answer to what was said, and returns both.
func (c *chatCmd) say(e *env, cl *client, history []turn) ([]turn, error) {
	body := c.body()
	body["messages"] = history
	var answer strings.Builder
	f, err := cl.stream(e.ctx, "/v1/chat/completions", body, func(t string) {
		answer.WriteString(t)
		fmt.Fprint(e.stdout, t)
	})
	fmt.Fprintln(e.stdout)
	if err != nil {
		return nil, err
	}
	f.sayIfCut(e.stderr)
	return append(history, turn{"assistant", answer.String()}), nil
}

func (c *chatCmd) start() []turn {
	if c.System == "" {
		return nil
	}
	return []turn{{"system", c.System}}
}

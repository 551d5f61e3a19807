package cli

import (
	"bufio"
	"fmt"
	"strings"
)

type chatCmd struct {
	serverFlags
	sampleFlags
	System string `help:"System message."`
}

func (c *chatCmd) Help() string {
	return "A conversation with a running cluster. An empty line or Ctrl-D ends it; /reset forgets what was said."
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
		fmt.Fprintf(e.stdout, "%s on %s; an empty line ends, /reset forgets\n", state.Model, counted(len(state.Nodes), "node"))
	}
	history := c.start()
	in := bufio.NewScanner(e.stdin)
	in.Buffer(nil, 16<<20)
	for {
		if person {
			fmt.Fprint(e.stdout, "\n> ")
		}
		if !in.Scan() || strings.TrimSpace(in.Text()) == "" {
			return in.Err()
		}
		if in.Text() == "/reset" {
			history = c.start()
			continue
		}
		history = append(history, turn{"user", in.Text()})
		body := c.body()
		body["messages"] = history
		var answer strings.Builder
		_, err := cl.stream(e.ctx, "/v1/chat/completions", body, func(t string) {
			answer.WriteString(t)
			fmt.Fprint(e.stdout, t)
		})
		fmt.Fprintln(e.stdout)
		if err != nil {
			return err
		}
		history = append(history, turn{"assistant", answer.String()})
	}
}

func (c *chatCmd) start() []turn {
	if c.System == "" {
		return nil
	}
	return []turn{{"system", c.System}}
}

package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/shoal-llm/shoal/internal/cli/launch"
	"github.com/shoal-llm/shoal/internal/cli/ui"
)

type drainCmd struct {
	launch.ServerFlags
	Node  string        `arg:"" help:"Name of the node, as in shoal status."`
	Limit time.Duration `default:"2m" help:"Time limit for moving the work to the other nodes."`
}

func (c *drainCmd) Help() string {
	return `Moves a node's sequences and share to the other nodes; streams continue. Stop the node when
the command reports that it is drained. A node that restarts, or that you undrain, gets a
share again.`
}

type undrainCmd struct {
	timeoutFlags
	Node string `arg:"" help:"Name of the node, as in shoal status."`
}

func (c *undrainCmd) Run(e *ui.Env) error {
	ctx, cancel := c.withTimeout(e.Ctx)
	defer cancel()
	err := c.Client().Undrain(ctx, c.Node)
	if err == nil {
		fmt.Fprintf(e.Stdout, "%s takes a share again\n", c.Node)
	}
	return err
}

func (c *drainCmd) Run(e *ui.Env) error {
	ctx, cancel := context.WithTimeoutCause(e.Ctx, c.Limit, fmt.Errorf("--limit %v", c.Limit))
	defer cancel()
	if err := c.Client().Drain(ctx, c.Node); err != nil {
		return err
	}
	for {
		s, err := c.Client().Cluster(ctx)
		if err != nil {
			return err
		}
		state, serving := "gone", false
		for _, n := range s.Nodes {
			if n.ID == c.Node {
				state = n.State
			} else {
				serving = serving || n.State == "ready"
			}
		}
		if serving && (state == "drained" || state == "gone") {
			fmt.Fprintf(e.Stdout, "%s is %s: it holds no data, so you can stop it\n", c.Node, state)
			return nil
		}
		select {
		case <-ctx.Done():
			if e.Ctx.Err() != nil {
				return e.Ctx.Err()
			}
			return fmt.Errorf("%s is still %s after %v; run the command again, or raise --limit", c.Node, state, c.Limit)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

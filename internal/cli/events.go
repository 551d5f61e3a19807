package cli

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/shoal-llm/shoal/client"
	"github.com/shoal-llm/shoal/client/wire"
	"github.com/shoal-llm/shoal/internal/cli/ui"
)

type eventsCmd struct {
	timeoutFlags
	Follow bool `short:"f" help:"Print new events as they arrive, until Ctrl-C."`
	JSON   bool `name:"json" help:"Print one JSON object per line, as in /v1/events. With --follow an event is printed again when its cost is known."`
}

func (c *eventsCmd) Help() string {
	return `Lists the events of the cluster: nodes that joined or left, and placements that ended. For
each ended placement it shows the cost: the time without a placement, the streams that
continued, and the tokens that were computed again. The coordinator keeps the newest events.
With --data-dir they survive its restart.`
}

func (c *eventsCmd) Run(e *ui.Env) error {
	show := func(v *wire.ClusterEvent) error {
		if c.JSON {
			return json.NewEncoder(e.Stdout).Encode(v)
		}
		_, err := fmt.Fprintln(e.Stdout, eventLine(v))
		return err
	}
	cl, newest := c.Client(), uint64(0)
	list, err := c.list(e, cl)
	for _, v := range list {
		newest = max(newest, v.Revision)
	}
	slices.SortFunc(list, func(a, b wire.ClusterEvent) int { return cmp.Compare(a.ID, b.ID) }) // the server orders them by their last change
	for i := range list {
		if err == nil {
			err = show(&list[i])
		}
	}
	if err != nil || !c.Follow {
		return err
	}
	for v, err := range cl.FollowEvents(e.Ctx, newest) {
		switch {
		case e.Ctx.Err() != nil:
			return nil
		case err != nil:
			return err
		case !c.JSON && v.Cost != nil && v.Cost.Open: // printed when its cost is final
			continue
		}
		if err := show(&v); err != nil {
			return err
		}
	}
	return nil
}

// list returns the events that the server keeps.
func (c *eventsCmd) list(e *ui.Env, cl *client.Client) ([]wire.ClusterEvent, error) {
	ctx, cancel := c.withTimeout(e.Ctx)
	defer cancel()
	return cl.Events(ctx, 0)
}

// eventLine formats an event as text.
func eventLine(v *wire.ClusterEvent) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s  epoch %d  %s", v.At.Local().Format("Jan 02 15:04:05.000"), v.Epoch, strings.ReplaceAll(v.Kind, "_", " "))
	if v.Node != "" {
		fmt.Fprintf(&b, "  %s", v.Node)
	}
	if v.Reason != "" {
		fmt.Fprintf(&b, "  (%s)", v.Reason)
	}
	c := v.Cost
	if c == nil {
		return b.String()
	}
	if c.NextEpoch == 0 {
		return b.String() + "\n    no placement has replaced it yet"
	}
	fmt.Fprintf(&b, "\n    epoch %d after %d ms", c.NextEpoch, c.StallMillis)
	if c.Streams > 0 {
		fmt.Fprintf(&b, "; %d of %d streams continued, longest pause %d ms; %d tokens computed again, %d caches kept", c.Continued, c.Streams,
			c.SilentMillis, c.Recomputed+c.Replayed, c.RestoredCaches+c.RestoredReplicas)
	}
	if c.Failed > 0 {
		fmt.Fprintf(&b, "; %d failed", c.Failed)
	}
	if c.Open {
		b.WriteString("; not finished")
	}
	return b.String()
}

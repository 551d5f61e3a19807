package cli

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"text/tabwriter"
	"time"

	"github.com/shoal-llm/shoal/client/wire"
	"github.com/shoal-llm/shoal/internal/cli/ui"
	"github.com/shoal-llm/shoal/internal/options"
)

type topCmd struct {
	timeoutFlags
	Once     bool          `help:"Print the state once and exit; the default if the output is not a terminal."`
	Interval time.Duration `default:"1s" range:"100ms.." help:"Time between two refreshes."`
}

const topLegend = `epoch      number of the placement, which assigns weights to nodes; it grows whenever a node
           joins or leaves
mapping    how attention weights are split over the nodes: gather or reduce
tokens/s   prompt tokens read and tokens generated in the last second, 0 when idle
step       time of one pass of the model over the batch; rows are the tokens in the batch
store      jobs and the placement: "single" is one copy, "replicated" is one copy on each of
           several machines; copies "in step" have every write. The coordinator named last
           holds the lease; the term grows each time the lease changes hands.
SHARE      fraction of the weights on the node
SEQ        sequences whose cache the node owns
CACHE      cache memory of the node: # sequences, = prefix cache, . free
USED PREFIXES BUDGET   the same in bytes
WEIGHTS    memory of the weights
RSS        memory of the whole process
LATE       fraction of the step time in which the other nodes wait only for this node; above
           50% it is a straggler: reduce its share, or the other load on its machine
`

func (c *topCmd) Help() string {
	return "Refreshes until q or Ctrl-C. The key h shows or hides this legend:\n\n  " +
		strings.ReplaceAll(strings.TrimSpace(topLegend), "\n", "\n  ")
}

func (c *topCmd) Run(e *ui.Env) error {
	if c.Once || !ui.IsTerminal(e.Stdout) {
		s, err := c.state(e)
		if err != nil {
			return err
		}
		var b bytes.Buffer
		c.head(&b)
		printTop(&b, s)
		_, err = e.Stdout.Write(b.Bytes())
		return err
	}
	return c.watch(e)
}

// watch draws the state once per interval until a key or the context ends it.
func (c *topCmd) watch(e *ui.Env) error {
	ctx, quit := context.WithCancel(e.Ctx)
	defer quit()
	var legend atomic.Bool
	redraw := make(chan struct{}, 1)
	stop, keys := ui.WatchKeys(e.Stdin, func(key byte) {
		switch key {
		case 'q', 'Q', ui.CtrlC, ui.CtrlD:
			quit()
		case 'h', 'H', '?':
			legend.Store(!legend.Load())
			select {
			case redraw <- struct{}{}:
			default:
			}
		}
	})
	defer stop()
	cl := c.Client()
	for {
		request, cancel := c.withTimeout(ctx)
		s, err := cl.Cluster(request)
		cancel()
		if ctx.Err() == nil {
			hint := ""
			if keys {
				hint = "\nq quits, h explains\n"
			}
			width, height := ui.Size(e.Stdout)
			draw(e.Stdout, c.screen(s, err, legend.Load(), hint, width, height))
		}
		select {
		case <-redraw:
		case <-ctx.Done():
			if !keys { // the terminal has echoed ^C
				fmt.Fprintln(e.Stdout)
			}
			return nil
		case <-time.After(c.Interval):
		}
	}
}

// screen returns the lines of a screen of width columns and height rows; 0: unlimited. A larger one would wrap or
// scroll, and the next one would not overwrite it. The hint is always shown. A legend that does not fit below the
// state replaces it.
func (c *topCmd) screen(s *wire.ClusterState, err error, legend bool, hint string, width, height int) string {
	var head, state, below bytes.Buffer
	c.head(&head)
	if err != nil {
		fmt.Fprintln(&state, err)
	} else {
		printTop(&state, s)
	}
	if legend {
		fmt.Fprint(&below, "\n", topLegend)
	}
	room := height - 1 - strings.Count(hint, "\n") // the cursor stands below the last line
	lines := func(parts ...string) []string {
		return strings.SplitAfter(strings.TrimSuffix(strings.Join(parts, ""), "\n"), "\n")
	}
	all := lines(head.String(), state.String(), below.String())
	if height > 0 && len(all) > room {
		if legend {
			all = lines(head.String(), strings.TrimPrefix(below.String(), "\n"))
		}
		all = all[:min(len(all), max(1, room))]
	}
	var b strings.Builder
	for _, l := range append(all, strings.SplitAfter(hint, "\n")...) {
		l = strings.TrimSuffix(l, "\n")
		if width > 0 {
			l = ui.Clip(l, width)
		}
		b.WriteString(l + "\n")
	}
	return strings.TrimSuffix(b.String(), "\n")
}

func (c *topCmd) head(w io.Writer) {
	fmt.Fprintf(w, "shoal top   %s   %s\n", c.Client().URL(), time.Now().Format(time.TimeOnly))
}

// draw overwrites the screen line by line and clears the rest, which avoids flicker.
func draw(w io.Writer, text string) {
	fmt.Fprint(w, "\x1b[H"+strings.ReplaceAll(text, "\n", "\x1b[K\r\n")+"\x1b[J")
}

func printTop(w io.Writer, s *wire.ClusterState) {
	fmt.Fprintf(w, "model %s   policy %s   epoch %d   mapping %s\n", modelNames(s), s.Policy, s.Epoch, s.Mapping)
	step := "idle"
	if s.StepMillis > 0 {
		step = fmt.Sprintf("step %.1f ms with %s of %s", s.StepMillis, ui.Plural(s.BatchRows, "row"), ui.Plural(s.BatchSequences, "sequence"))
		if s.MicroBatches > 1 {
			step += fmt.Sprintf(" in %d micro-batches", s.MicroBatches)
		}
	}
	fmt.Fprintf(w, "%.1f tokens/s   %s   running %d   waiting %d %s\n", s.TokensPerSecond, step, s.Running, s.Waiting, s.WaitingReason)
	if p := s.PrefixCache; p != nil && p.Queries > 0 {
		fmt.Fprintf(w, "prefix cache: %.0f%% of the prompts' tokens were found\n", 100*float64(p.Hits)/float64(p.Queries))
	}
	if d := s.Drafts; d != nil && d.Drafted > 0 {
		fmt.Fprintf(w, "drafts: %.0f%% of the tokens were accepted\n", 100*float64(d.Accepted)/float64(d.Drafted))
	}
	if r := s.Recovery; r != nil && s.Recoveries > 0 {
		fmt.Fprintf(w, "faults: %s withdrawn   tokens computed again %d   caches that continued %d, from replicas %d\n",
			ui.Plural(int(s.Recoveries), "placement"), r.RecomputedTokens+r.ReplayedTokens, r.RestoredCaches, r.RestoredReplicas)
	}
	printTransfers(w, s)
	if st := s.Store; st != nil {
		printStoreLine(w, st)
	}
	fmt.Fprintln(w)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "NODE\tSTATE\t"+roleColumn(s, "ROLE")+"SHARE\tSEQ\tCACHE\tUSED\tPREFIXES\tBUDGET\tWEIGHTS\tRSS\tLATE\t")
	for _, n := range s.Nodes {
		fmt.Fprintf(t, "%s\t%s\t%s%.0f%%\t%d\t%s\t%s\t%s\t%s\t%s\t%s\t%.0f%%\t\n", n.ID, stateText(n), roleColumn(s, n.Role), 100*n.Share,
			n.Sequences, gauge(n.KVUsedBytes, n.KVPrefix, n.KVBudgetBytes),
			options.SizeText(n.KVUsedBytes), options.SizeText(n.KVPrefix), options.SizeText(n.KVBudgetBytes), options.SizeText(n.WeightBytes),
			options.SizeText(n.RSSBytes), 100*n.Late)
	}
	t.Flush()
	printModels(w, s)
}

// gauge draws the use of a cache: sequences, prefixes, free.
func gauge(used, prefixes, budget int64) string {
	const width = 16
	if budget <= 0 {
		return ""
	}
	cells := func(n int64) int { return int(min(max((n*width+budget-1)/budget, 0), width)) }
	u := cells(used)
	p := min(cells(used+prefixes), width)
	return strings.Repeat("#", u) + strings.Repeat("=", max(p-u, 0)) + strings.Repeat(".", width-max(p, u))
}

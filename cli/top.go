package cli

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/shoal-llm/shoal/api"
)

type topCmd struct {
	lookFlags
	Once     bool          `help:"Print it once and end, as where the output is no terminal."`
	Interval time.Duration `default:"1s" help:"Time from one look to the next."`
}

func (c *topCmd) Run(e *env) error {
	if c.Interval < 100*time.Millisecond {
		return fmt.Errorf("--interval %v: want at least 100ms", c.Interval)
	}
	cl := c.client()
	for live := !c.Once && isTerminal(e.stdout); ; {
		ctx, cancel := c.within(e.ctx)
		s, err := cl.Cluster(ctx)
		cancel()
		if !live && err != nil {
			return err
		}
		var b bytes.Buffer
		fmt.Fprintf(&b, "shoal top   %s   %s\n", cl.URL(), time.Now().Format(time.TimeOnly))
		if err != nil {
			fmt.Fprintln(&b, err)
		} else {
			printTop(&b, s)
		}
		if !live {
			_, err := e.stdout.Write(b.Bytes())
			return err
		}
		// From the top, each line to its end, and nothing below: no flicker.
		fmt.Fprint(e.stdout, "\x1b[H"+strings.ReplaceAll(b.String(), "\n", "\x1b[K\n")+"\x1b[J")
		select {
		case <-e.ctx.Done():
			return nil
		case <-time.After(c.Interval):
		}
	}
}

func printTop(w io.Writer, s *api.ClusterState) {
	fmt.Fprintf(w, "model %s   policy %s   epoch %d   mapping %s\n", s.Model, s.Policy, s.Epoch, s.Mapping)
	fmt.Fprintf(w, "%.1f tokens/s   step %.1f ms with %s of %s   running %d   waiting %d %s\n", s.TokensPerSecond, s.StepMillis,
		counted(s.BatchRows, "row"), counted(s.BatchSequences, "sequence"), s.Running, s.Waiting, s.WaitingReason)
	if p := s.PrefixCache; p != nil && p.Queries > 0 {
		fmt.Fprintf(w, "prefix cache: %.0f%% of the prompts' tokens were found\n", 100*float64(p.Hits)/float64(p.Queries))
	}
	if d := s.Drafts; d != nil && d.Drafted > 0 {
		fmt.Fprintf(w, "drafts: %.0f%% of the tokens were right\n", 100*float64(d.Accepted)/float64(d.Drafted))
	}
	if r := s.Recovery; r != nil && s.Recoveries > 0 {
		fmt.Fprintf(w, "faults: %s withdrawn   tokens computed again %d   caches that went on %d, from replicas %d\n",
			counted(int(s.Recoveries), "placement"), r.RecomputedTokens+r.ReplayedTokens, r.RestoredCaches, r.RestoredReplicas)
	}
	if st := s.Store; st != nil {
		printStoreLine(w, st)
	}
	fmt.Fprintln(w)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "NODE\tSTATE\tSHARE\tSEQ\tCACHE\tUSED\tPREFIXES\tBUDGET\tWEIGHTS\tRSS\tLATE\t")
	for _, n := range s.Nodes {
		fmt.Fprintf(t, "%s\t%s\t%.0f%%\t%d\t%s\t%s\t%s\t%s\t%s\t%s\t%.0f%%\t\n", n.ID, stateText(n), 100*n.Share, n.Sequences, gauge(n.KVUsedBytes, n.KVPrefix, n.KVBudgetBytes),
			bytesText(n.KVUsedBytes), bytesText(n.KVPrefix), bytesText(n.KVBudgetBytes), bytesText(n.WeightBytes), bytesText(n.RSSBytes), 100*n.Late)
	}
	t.Flush()
}

// gauge draws a cache: sequences, prefixes, free.
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

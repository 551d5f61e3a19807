package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/shoal-llm/shoal/client"
	"github.com/shoal-llm/shoal/client/wire"
	"github.com/shoal-llm/shoal/internal/cli/launch"
	"github.com/shoal-llm/shoal/internal/cli/ui"
	"github.com/shoal-llm/shoal/internal/options"
)

// timeoutFlags are flags of commands that query a server once.
type timeoutFlags struct {
	launch.ServerFlags
	Timeout time.Duration `default:"5s" help:"Time limit for the answer."`
}

// withTimeout returns a context with the time limit for an answer.
func (f timeoutFlags) withTimeout(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, f.Timeout, noAnswer(f.Timeout))
}

// noAnswer is the cause of a context that withTimeout has ended.
type noAnswer time.Duration

func (t noAnswer) Error() string { return fmt.Sprintf("--timeout %v", time.Duration(t)) }

// state returns the current /v1/cluster.
func (f *timeoutFlags) state(e *ui.Env) (*wire.ClusterState, error) {
	ctx, cancel := f.withTimeout(e.Ctx)
	defer cancel()
	return f.Client().Cluster(ctx)
}

type statusCmd struct {
	timeoutFlags
	Wait time.Duration `placeholder:"DURATION" help:"Maximum time to wait until the cluster serves, such as 1m (default: no wait)."`
	JSON bool          `name:"json" help:"Print the answer of /v1/cluster as JSON."`
}

// exitNotServing is the exit status of `shoal status` if a server answers but does not serve.
const exitNotServing = 3

func (c *statusCmd) Help() string {
	return `Exit status: 0 if the cluster serves; 3 if it answers but does not serve (it waits for nodes,
loads weights, drains, or is a standby); 1 if no server answers, or it refuses the request.

  shoal status --wait 1m && shoal run "What is a goroutine?"`
}

// statusInterval is the time between two requests of `shoal status --wait`.
const statusInterval = 200 * time.Millisecond

func (c *statusCmd) Run(e *ui.Env) error {
	if c.Wait < 0 {
		return fmt.Errorf("--wait %v: want a duration such as 1m, or 0 for no wait", c.Wait)
	}
	until, last := time.Now().Add(c.Wait), ""
	for {
		s, err := c.fetch(e)
		var not *client.ErrNotReady
		var unreachable *client.Unreachable
		var late noAnswer // a process that starts on a busy machine listens before it answers
		retry := errors.As(err, &not) || errors.As(err, &unreachable) || errors.As(err, &late)
		if !retry || time.Now().After(until) || e.Ctx.Err() != nil {
			if last != "" {
				ui.ShowStatus(e.Stderr, "")
			}
			return c.print(e, s, err)
		}
		if text := err.Error(); ui.IsTerminal(e.Stderr) && text != last {
			last = text
			ui.ShowStatus(e.Stderr, text)
		}
		select {
		case <-e.Ctx.Done():
		case <-time.After(statusInterval):
		}
	}
}

// fetch requests the state of a server, and whether it serves. It can return both a state and
// an error: the reason why the server does not serve.
func (c *statusCmd) fetch(e *ui.Env) (*wire.ClusterState, error) {
	ctx, cancel := c.withTimeout(e.Ctx)
	defer cancel()
	cl := c.Client()
	ready := cl.Ready(ctx)
	if not := (*client.ErrNotReady)(nil); ready != nil && !errors.As(ready, &not) {
		return nil, ready
	}
	s, err := cl.Cluster(ctx)
	if refused := (*client.Error)(nil); errors.As(err, &refused) && refused.Status == http.StatusServiceUnavailable {
		return nil, cmp.Or(ready, error(&client.ErrNotReady{Reason: refused.Message}))
	} else if err != nil {
		return nil, err
	}
	return s, ready
}

// print prints the result of fetch; err is the reason why the cluster does not serve.
func (c *statusCmd) print(e *ui.Env, s *wire.ClusterState, err error) error {
	switch {
	case s != nil && c.JSON:
		if err := ui.PrintJSON(e.Stdout, s); err != nil {
			return err
		}
	case s != nil:
		printStatus(e.Stdout, s)
		printBuilds(e.Stdout, s)
	}
	if not := (*client.ErrNotReady)(nil); errors.As(err, &not) {
		fmt.Fprintln(e.Stderr, "shoal:", err)
		return ui.Exit(exitNotServing)
	}
	return err
}

// printBuilds prints the builds of the processes. Builds with the same arithmetic can serve
// together, for example while a cluster is upgraded node by node.
func printBuilds(w io.Writer, s *wire.ClusterState) {
	if s.Build == "" {
		return // a cluster in this process, or an early server
	}
	byBuild := map[string][]string{s.Build: {"coordinator"}}
	for _, n := range s.Nodes {
		byBuild[n.Build] = append(byBuild[n.Build], n.ID)
	}
	fmt.Fprintf(w, "arithmetic %s   wire version %d   build %s\n", s.Arithmetic, s.WireVersion, s.Build)
	delete(byBuild, s.Build)
	for _, build := range slices.Sorted(maps.Keys(byBuild)) {
		fmt.Fprintf(w, "another build on %s: %s\n", strings.Join(byBuild[build], ", "), cmp.Or(build, "unknown"))
	}
}

func printStatus(w io.Writer, s *wire.ClusterState) {
	fmt.Fprintf(w, "model %s   epoch %d   mapping %s   running %d   waiting %d", modelNames(s), s.Epoch, s.Mapping, s.Running, s.Waiting)
	if s.WaitingReason != "" {
		fmt.Fprintf(w, " (%s)", s.WaitingReason)
	}
	if s.LoadSeconds > 0 {
		fmt.Fprintf(w, "   loading for %.0f s", s.LoadSeconds)
	}
	fmt.Fprintln(w)
	if st := s.Store; st != nil {
		printStoreLine(w, st)
	}
	if st := s.Store; st != nil && st.Problem != "" {
		fmt.Fprintln(w, "store problem:", st.Problem)
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "node\tpid\tstate\t"+roleColumn(s, "role")+"share\tsequences\tcache used\tprefixes\tcache budget\t")
	for _, n := range s.Nodes {
		fmt.Fprintf(t, "%s\t%d\t%s\t%s%.0f%%\t%d\t%s\t%s\t%s\t\n", n.ID, n.PID, stateText(n), roleColumn(s, n.Role), 100*n.Share, n.Sequences,
			options.SizeText(n.KVUsedBytes), options.SizeText(n.KVPrefix), options.SizeText(n.KVBudgetBytes))
	}
	t.Flush()
	printTransfers(w, s)
	printReading(w, s)
	if x := s.SavedCaches; x != nil && (x.Caches > 0 || x.Written > 0) {
		fmt.Fprintf(w, "idle sessions: %s in files, %s   written %d   read %d   failed %d\n",
			ui.Plural(x.Caches, "cache"), options.SizeText(x.Bytes),
			x.Written, x.Read, x.Failed)
	}
	for _, n := range s.Nodes {
		if n.Device != "" {
			fmt.Fprintf(w, "%s computes on %s: %s of %s in use\n", n.ID, n.Device, options.SizeText(n.DeviceUsed), options.SizeText(n.DeviceMemory))
		}
	}
	printModels(w, s)
	for _, n := range s.Nodes { // reasons are long, so they follow the table
		if why, refused := strings.CutPrefix(n.State, "refused: "); refused {
			fmt.Fprintf(w, "%s is refused: %s\n", n.ID, why)
		}
	}
}

// roleColumn returns a cell of the column with the roles of nodes, or "" if all nodes do everything.
func roleColumn(s *wire.ClusterState, text string) string {
	if !slices.ContainsFunc(s.Nodes, func(n wire.NodeState) bool { return n.Role == "prefill" || n.Role == "decode" }) {
		return ""
	}
	return text + "\t"
}

// printTransfers prints a line about the caches that moved between nodes of different roles.
func printTransfers(w io.Writer, s *wire.ClusterState) {
	if x := s.Transfers; x != nil {
		fmt.Fprintf(w, "transfers: %s from prefill to decode nodes, %s in %.1f s   failed %d\n", ui.Plural(int(x.Caches), "cache"),
			options.SizeText(x.Bytes), x.Seconds, x.Failed)
	}
}

// printReading prints the progress of sequences that read their prompts, or read all tokens again after a loss.
func printReading(w io.Writer, s *wire.ClusterState) {
	sequences, cached, all := 0, 0, 0
	for i := range s.Sequences {
		if n := s.Sequences[i].ToRead(); n > 0 {
			sequences, cached, all = sequences+1, cached+s.Sequences[i].Cached, all+n
		}
	}
	if sequences > 0 {
		fmt.Fprintf(w, "reading: %d of %d tokens of %s\n", cached, all, ui.Plural(sequences, "sequence"))
	}
}

// printModels prints a table of the models of a cluster that serves several.
func printModels(w io.Writer, s *wire.ClusterState) {
	if len(s.Models) == 0 {
		return
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "model\tpolicy\tweights\trunning\twaiting\ttokens/s\tcache used\tprefixes\tcache budget\t")
	for _, m := range s.Models {
		fmt.Fprintf(t, "%s\t%s\t%s\t%d\t%d\t%.1f\t%s\t%s\t%s\t\n", m.Model, m.Policy, m.Weights, m.Running, m.Waiting, m.TokensPerSecond,
			options.SizeText(m.KVUsedBytes), options.SizeText(m.KVPrefix), options.SizeText(m.KVBudgetBytes))
	}
	t.Flush()
}

// modelNames returns the names of all models of a cluster.
func modelNames(s *wire.ClusterState) string {
	names := []string{s.Model}
	for _, m := range s.Models[min(1, len(s.Models)):] {
		names = append(names, m.Model)
	}
	return strings.Join(names, ", ")
}

func printStoreLine(w io.Writer, s *wire.StoreState) {
	fmt.Fprintf(w, "store %s, %d of %d copies in step   coordinator %s, term %d\n", s.Durability, s.Replicas, s.Target, s.Coordinator, s.Term)
	var away []string
	for _, k := range s.Members {
		if k.State != "here" {
			away = append(away, k.ID)
		}
	}
	switch {
	case len(away) > len(s.Members)/2:
		fmt.Fprintf(w,
			"most replicas of the store are unreachable: %s; until they return, the cluster accepts no jobs and keeps this placement\n",
			strings.Join(away, ", "))
	case len(away) > 0:
		fmt.Fprintf(w, "a replica of the store is unreachable: %s; if one more fails, the cluster accepts no jobs. If the replica is lost, "+
			"run shoal store remove, then shoal store add\n", away[0])
	}
}

func stateText(n wire.NodeState) string {
	switch {
	case strings.HasPrefix(n.State, "refused: "):
		return "refused"
	case n.State == "loading" && n.LoadBytes > 0:
		return fmt.Sprintf("loading %d%%", 100*n.LoadedBytes/n.LoadBytes)
	}
	return n.State
}

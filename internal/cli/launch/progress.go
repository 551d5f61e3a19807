package launch

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/shoal-llm/shoal/client/wire"
	"github.com/shoal-llm/shoal/internal/cli/ui"
	"github.com/shoal-llm/shoal/internal/options"
	"github.com/shoal-llm/shoal/internal/server/apierr"
)

// loading shows the progress of nodes that read and convert their weights. A terminal gets a bar
// of all nodes, other outputs a line every few seconds. A short load shows nothing.
type loading struct {
	e        *ui.Env
	mu       sync.Mutex
	busy     bool      // at least one node loads
	began    time.Time // start of the load
	lastLine time.Time // time of the last line
	open     bool      // the terminal shows the bar
}

func newLoading(e *ui.Env) *loading { return &loading{e: e} }

// show updates the progress, and reports whether the bar is visible.
func (l *loading) show(nodes []wire.NodeState) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	text := loadingText(nodes)
	if text != "" && !l.busy {
		l.began, l.lastLine = time.Now(), time.Now()
	}
	l.busy = text != ""
	if !ui.IsTerminal(l.e.Stderr) {
		if l.busy && time.Since(l.lastLine) >= ui.LineInterval {
			fmt.Fprintf(l.e.Stderr, "loading for %.0f s: %s\n", time.Since(l.began).Seconds(), text)
			l.lastLine = time.Now()
		}
		return false
	}
	if l.open || l.busy && time.Since(l.began) >= ui.BarAfter {
		l.open = true
		if bar := loadingBar(nodes, time.Since(l.began)); bar != "" {
			ui.ShowStatus(l.e.Stderr, bar)
		}
	}
	return l.open
}

// end removes the bar.
func (l *loading) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open {
		ui.ShowStatus(l.e.Stderr, "")
	}
	l.open, l.busy = false, false
}

// loadingBar formats the progress as one line, with the slowest of several nodes. It is "" before
// the nodes have the sizes of their weights.
func loadingBar(nodes []wire.NodeState, since time.Duration) string {
	var done, total int64
	var slowest wire.NodeState
	count := 0
	for _, n := range nodes {
		if n.LoadBytes == 0 {
			continue
		}
		if count == 0 || ui.Percent(n.LoadedBytes, n.LoadBytes) < ui.Percent(slowest.LoadedBytes, slowest.LoadBytes) {
			slowest = n
		}
		done, total, count = done+n.LoadedBytes, total+n.LoadBytes, count+1
	}
	if count == 0 {
		return ""
	}
	name, rest := slowest.ID+" loads", ""
	if count > 1 {
		name = fmt.Sprintf("%d nodes load", count)
		rest = fmt.Sprintf(", %s %d%%", slowest.ID, ui.Percent(slowest.LoadedBytes, slowest.LoadBytes))
	}
	return fmt.Sprintf("%s %d%% of %s%s, %s", ui.BarText(name, done, total), ui.Percent(done, total),
		options.SizeText(total), rest, since.Truncate(time.Second))
}

// loadingText describes the progress of the loading nodes. It is "" if no node loads.
func loadingText(nodes []wire.NodeState) string {
	var out []string
	for _, n := range nodes {
		if n.LoadedBytes < n.LoadBytes {
			out = append(out, fmt.Sprintf("%s %d%% of %s", n.ID, ui.Percent(n.LoadedBytes, n.LoadBytes), options.SizeText(n.LoadBytes)))
		}
	}
	return strings.Join(out, ", ")
}

// readiness is a cluster that starts: a coordinator of this process, or of another one.
type readiness interface {
	Ready() error
	Cluster() wire.ClusterState
}

// awaitReady waits until the model is ready, and shows the progress.
func awaitReady(ctx context.Context, e *ui.Env, co readiness) error {
	bars, show, last := newLoading(e), ui.IsTerminal(e.Stderr), ""
	defer bars.end()
	for i := 0; ; i++ {
		err := co.Ready()
		if err == nil {
			if last != "" {
				ui.ShowStatus(e.Stderr, "")
			}
			return nil
		}
		if i%10 == 0 && bars.show(co.Cluster().Nodes) {
			show, last = false, ""
		}
		text := err.Error()
		if not := (apierr.ErrNotReady{}); errors.As(err, &not) {
			text = not.Reason
		}
		if show && text != last {
			ui.ShowStatus(e.Stderr, text)
			last = text
		}
		select {
		case <-ctx.Done():
			if last != "" {
				ui.ShowStatus(e.Stderr, "")
			}
			return context.Cause(ctx)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// nodeProgress returns a function that shows the load progress of one node.
func nodeProgress(e *ui.Env, id string) func(done, total int64) {
	bars := newLoading(e)
	return func(done, total int64) {
		bars.show([]wire.NodeState{{ID: id, LoadedBytes: done, LoadBytes: total}})
		if done >= total {
			bars.end()
		}
	}
}

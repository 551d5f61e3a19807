package launch

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"

	"github.com/shoal-llm/shoal/internal/cli/ui"
	"github.com/shoal-llm/shoal/internal/server/api"
)

// loading shows the progress of nodes that read and convert their weights. A terminal gets one
// bar per node, other outputs a line every few seconds. A short load shows nothing.
type loading struct {
	e        *ui.Env
	mu       sync.Mutex
	busy     bool      // at least one node loads
	began    time.Time // start of the load
	lastLine time.Time // time of the last line
	all      *mpb.Progress
	bars     map[string]*mpb.Bar
}

func newLoading(e *ui.Env) *loading { return &loading{e: e} }

// show updates the progress, and reports whether bars are visible.
func (l *loading) show(nodes []api.NodeState) bool {
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
	for _, n := range nodes {
		if n.LoadBytes == 0 || l.all == nil && (!l.busy || time.Since(l.began) < ui.BarAfter) {
			continue
		}
		if l.all == nil {
			ui.ShowStatus(l.e.Stderr, "")
			l.all, l.bars = ui.ShowBars(l.e.Stderr), map[string]*mpb.Bar{}
		}
		b := l.bars[n.ID]
		if b == nil {
			b = l.all.AddBar(0, mpb.BarRemoveOnComplete(), mpb.PrependDecorators(decor.Name(n.ID+" loads ")),
				mpb.AppendDecorators(decor.Percentage(), decor.Name(" of "+ui.BytesText(n.LoadBytes)+", "), decor.Elapsed(decor.ET_STYLE_GO)))
			l.bars[n.ID] = b
		}
		b.SetTotal(n.LoadBytes, false)
		b.SetCurrent(n.LoadedBytes)
	}
	return l.all != nil
}

// end removes the bars.
func (l *loading) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, b := range l.bars {
		b.SetTotal(-1, true)
	}
	if l.all != nil {
		ui.HideBars(l.e.Stderr, l.all)
	}
	l.all, l.bars, l.busy = nil, nil, false
}

// loadingText describes the progress of the loading nodes. It is "" if no node loads.
func loadingText(nodes []api.NodeState) string {
	var out []string
	for _, n := range nodes {
		if n.LoadedBytes < n.LoadBytes {
			out = append(out, fmt.Sprintf("%s %d%% of %s", n.ID, 100*n.LoadedBytes/n.LoadBytes, ui.BytesText(n.LoadBytes)))
		}
	}
	return strings.Join(out, ", ")
}

// readiness is a cluster that starts: a coordinator of this process, or of another one.
type readiness interface {
	Ready() error
	Cluster() api.ClusterState
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
		if not := (api.ErrNotReady{}); errors.As(err, &not) {
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
		bars.show([]api.NodeState{{ID: id, LoadedBytes: done, LoadBytes: total}})
		if done >= total {
			bars.end()
		}
	}
}

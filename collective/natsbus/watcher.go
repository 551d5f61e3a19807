package natsbus

import (
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

const (
	// watchEvery is the fallback; a kick from the log comes first in practice.
	watchEvery = 100 * time.Millisecond
	// A route leaves the table a moment after its end is logged.
	watchAfterKick = 2 * time.Millisecond
	watchKicks     = 4
	watchFull      = 10
)

// watcher reports routes that disappear. The server has no event for it, so the
// table of routes is compared: on every log line of the server (there is one
// when a route ends, and few others), and ten times a second. It runs only when
// somebody has asked.
type watcher struct {
	ns      *server.Server
	kicked  chan struct{}
	quit    chan struct{}
	stopped sync.WaitGroup

	mu      sync.Mutex
	running bool
	over    bool
	notify  []func(string)
}

func newWatcher(ns *server.Server) *watcher {
	return &watcher{ns: ns, kicked: make(chan struct{}, 1), quit: make(chan struct{})}
}

func (w *watcher) kick() {
	select {
	case w.kicked <- struct{}{}:
	default:
	}
}

func (w *watcher) add(f func(string)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.notify = append(w.notify, f)
	if !w.running && !w.over {
		w.running = true
		before := routes(w.ns)
		w.stopped.Go(func() { w.run(before) })
	}
}

func (w *watcher) stop() {
	w.mu.Lock()
	if w.over {
		w.mu.Unlock()
		return
	}
	w.over = true
	w.mu.Unlock()
	close(w.quit)
	w.stopped.Wait()
}

func (w *watcher) run(before map[string]string) {
	t := time.NewTimer(watchEvery)
	defer t.Stop()
	soon, idle := 0, 0
	for {
		select {
		case <-w.quit:
			return
		case <-w.kicked:
			soon = watchKicks
		case <-t.C:
			// Mostly the count says enough; a route that was lost and replaced
			// between two looks needs the names.
			if idle++; soon == 0 && idle%watchFull != 0 && w.ns.NumRoutes() == len(before) {
				t.Reset(watchEvery)
				continue
			}
		}
		now := routes(w.ns)
		for name, id := range before {
			if now[name] != id {
				w.tell(name)
			}
		}
		before = now
		next := watchEvery
		if soon > 0 {
			soon--
			next = watchAfterKick
		}
		t.Reset(next)
	}
}

func (w *watcher) tell(name string) {
	w.mu.Lock()
	fs := w.notify
	w.mu.Unlock()
	for _, f := range fs {
		f(name)
	}
}

// routes maps the names of connected servers to the ids of their lives.
func routes(ns *server.Server) map[string]string {
	z, err := ns.Routez(nil)
	if err != nil {
		return nil
	}
	m := make(map[string]string, len(z.Routes))
	for _, r := range z.Routes {
		m[r.RemoteName] = r.RemoteID
	}
	return m
}

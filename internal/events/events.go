// Package events stores the event log of a cluster and samples of its load.
package events

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/shoal-llm/shoal/actors/batcher"
	"github.com/shoal-llm/shoal/client/wire"
	"github.com/shoal-llm/shoal/internal/server/api"
	"github.com/shoal-llm/shoal/internal/server/apierr"
	"github.com/shoal-llm/shoal/internal/server/httpserver"
	"github.com/shoal-llm/shoal/topology"
)

// Log wraps a State and samples with a lock, a clock, notification of waiters, and a copy in
// the store that survives this process.
type Log struct {
	mu      sync.Mutex
	log     State
	samples samples
	changed chan struct{} // closed at each change
}

// New returns an empty log.
func New() *Log { return &Log{changed: make(chan struct{})} }

// Change calls f to change the log. f returns false if it changed nothing.
func (e *Log) Change(f func(l *State, now time.Time) bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if f(&e.log, time.Now()) {
		close(e.changed)
		e.changed = make(chan struct{})
	}
}

// Add adds an event of a node.
func (e *Log) Add(kind, node, reason string) {
	e.Change(func(l *State, now time.Time) bool { l.addNodeEvent(now, kind, node, reason); return true })
}

// Ended adds the end of a placement and its reason.
func (e *Log) Ended(w topology.Withdraw) {
	e.Change(func(l *State, now time.Time) bool { l.ended(now, w); return true })
}

// Serves records that an epoch serves with a number of sockets.
func (e *Log) Serves(epoch uint32, sockets int) {
	e.Change(func(l *State, now time.Time) bool { l.serves(now, epoch, sockets); return true })
}

// Cost records the cost of an outage so far.
func (e *Log) Cost(o batcher.Outage) {
	e.Change(func(l *State, _ time.Time) bool { return l.cost(o) })
}

// Sample adds a sample of the cluster's load.
func (e *Log) Sample(c *wire.ClusterState) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.samples.add(c)
}

// After returns the events newer than a revision, and a channel that is closed at the next change.
func (e *Log) After(revision uint64) ([]wire.ClusterEvent, <-chan struct{}) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.log.after(revision), e.changed
}

// SampleEvery is the interval of the samples.
const SampleEvery = time.Second

const (
	// keepEvery is the minimum interval for writing a changed log to the store, which syncs its
	// disk.
	keepEvery = time.Second
	keepLimit = 5 * time.Second
	// writtenEvents is the number of events that survive the process. Each write contains all of
	// them.
	writtenEvents = 128
)

// Restore starts with the log that an earlier coordinator persisted, if it is readable.
func (e *Log) Restore(ctx context.Context, read func(context.Context) ([]byte, error), log *slog.Logger) {
	ctx, cancel := context.WithTimeout(ctx, keepLimit)
	defer cancel()
	b, err := read(ctx)
	var list []wire.ClusterEvent
	if err == nil && b != nil {
		err = json.Unmarshal(b, &list)
	}
	if err != nil {
		log.Warn("the previous event log is unreadable; starting a new one", "error", err)
		return
	}
	e.Change(func(l *State, _ time.Time) bool { l.restore(list); return true })
}

// Persist writes the log to the store after changes, until ctx ends. A write that fails is tried again every keepEvery:
// faults make events, and also make the store unavailable.
func (e *Log) Persist(ctx context.Context, write func(context.Context, []byte) error, log *slog.Logger) {
	var kept uint64
	for {
		list, changed := e.After(0)
		failed := false
		if n := len(list); n > 0 && list[n-1].Revision > kept {
			b, err := json.Marshal(list[max(0, n-writtenEvents):]) // the events that changed last
			if err == nil {
				ctx, cancel := context.WithTimeout(ctx, keepLimit)
				err = write(ctx, b)
				cancel()
			}
			if err == nil {
				kept = list[n-1].Revision
			} else if failed = true; ctx.Err() == nil {
				log.Debug("writing the event log failed", "error", err)
			}
		}
		t := time.NewTimer(keepEvery) // collect further changes before the next write
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return
		}
		if failed {
			continue
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// AddRoutes adds the routes of the event log and the recent past to an API server:
//
//	GET /v1/events?from=N            events that are new or changed after revision N; as
//	                                 server-sent events if the client accepts them
//	GET /v1/cluster/history?from=N   samples starting at an index, one per second
func (e *Log) AddRoutes(a *api.Server) error {
	if err := a.Handle(httpserver.Route{Method: http.MethodGet, Path: "/v1/events",
		Docs: []httpserver.Doc{{About: "lists the events of the cluster after the revision `from`; as server-sent events where those are accepted", Answer: eventList{}, Events: wire.ClusterEvent{}}}, Handler: func(w http.ResponseWriter, r *http.Request) {
			e.serve(a, w, r)
		}}); err != nil {
		return err
	}
	return a.Handle(httpserver.Route{Method: http.MethodGet, Path: "/v1/cluster/history",
		Docs: []httpserver.Doc{{About: "load and memory of the last minutes, one sample a second, from the index `from` on",
			Answer: sampleList{}}}, Handler: func(w http.ResponseWriter, r *http.Request) {
			from, err := number(r, "")
			if err != nil {
				a.WriteError(w, err)
				return
			}
			e.mu.Lock()
			list := e.samples.from(from)
			e.mu.Unlock()
			a.WriteJSON(w, http.StatusOK, sampleList{list, SampleEvery.Milliseconds(), "list"})
		}})
}

type eventList struct {
	Data   []wire.ClusterEvent `json:"data"`
	Object string              `json:"object"`
}

type sampleList struct {
	Data   []wire.Sample `json:"data"`
	Every  int64         `json:"every_ms"`
	Object string        `json:"object"`
}

// number returns the value of the query parameter from, or of a header if present.
func number(r *http.Request, header string) (uint64, error) {
	text := r.URL.Query().Get("from")
	if last := r.Header.Get(header); header != "" && last != "" { // a reconnecting browser repeats the URL and adds the header
		text = last
	}
	if text == "" {
		return 0, nil
	}
	n, err := strconv.ParseUint(text, 10, 63)
	if err != nil {
		return 0, apierr.Problem{Status: http.StatusBadRequest, Param: "from", Message: "'from' must be a whole number, 0 or more."}
	}
	return n, nil
}

func (e *Log) serve(a *api.Server, w http.ResponseWriter, r *http.Request) {
	from, err := number(r, "Last-Event-ID")
	if err != nil {
		a.WriteError(w, err)
		return
	}
	if !strings.Contains(r.Header.Get("Accept"), "text/event-stream") {
		list, _ := e.After(from)
		a.WriteJSON(w, http.StatusOK, eventList{list, "list"})
		return
	}
	out := a.NewEventStream(w)
	for {
		list, changed := e.After(from)
		for i := range list {
			if out.Data(strconv.FormatUint(list[i].Revision, 10), &list[i]) != nil {
				return
			}
			from = list[i].Revision
		}
		if len(list) == 0 && out.Comment("keep-alive") != nil { // also shows the client that it is connected
			return
		}
		t := time.NewTimer(a.KeepAlive())
		select {
		case <-changed:
		case <-t.C:
		case <-a.Stopping():
		case <-r.Context().Done():
		}
		t.Stop()
		select {
		case <-a.Stopping(): // the client reconnects, here or to a successor
			return
		case <-r.Context().Done():
			return
		default:
		}
	}
}

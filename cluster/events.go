package cluster

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
	"github.com/shoal-llm/shoal/internal/server/api"
	"github.com/shoal-llm/shoal/topology"
)

// events wraps eventLog and samples with a lock, a clock, notification of waiters, and a copy in
// the store that survives this process.
type events struct {
	mu      sync.Mutex
	log     eventLog
	samples samples
	changed chan struct{} // closed at each change
}

func newEvents() *events { return &events{changed: make(chan struct{})} }

// change calls f to change the log. f returns false if it changed nothing.
func (e *events) change(f func(l *eventLog, now time.Time) bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if f(&e.log, time.Now()) {
		close(e.changed)
		e.changed = make(chan struct{})
	}
}

func (e *events) note(kind, node, reason string) {
	e.change(func(l *eventLog, now time.Time) bool { l.note(now, kind, node, reason); return true })
}

func (e *events) ended(w topology.Withdraw) {
	e.change(func(l *eventLog, now time.Time) bool { l.ended(now, w); return true })
}

func (e *events) serves(epoch uint32, sockets int) {
	e.change(func(l *eventLog, now time.Time) bool { l.serves(now, epoch, sockets); return true })
}

func (e *events) cost(o batcher.Outage) {
	e.change(func(l *eventLog, _ time.Time) bool { return l.cost(o) })
}

func (e *events) sample(c *api.ClusterState) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.samples.add(c)
}

// after returns the events newer than a revision, and a channel that is closed at the next change.
func (e *events) after(revision uint64) ([]api.ClusterEvent, <-chan struct{}) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.log.after(revision), e.changed
}

// Events returns the events that occurred or changed after a revision.
func (c *core) Events(revision uint64) []api.ClusterEvent {
	list, _ := c.events.after(revision)
	return list
}

const (
	// keepEvery is the minimum interval for writing a changed log to the store, which syncs its
	// disk.
	keepEvery = time.Second
	keepLimit = 5 * time.Second
	// writtenEvents is the number of events that survive the process. Each write contains all of
	// them.
	writtenEvents = 128
)

// restore starts with the log that an earlier coordinator persisted, if it is readable.
func (e *events) restore(ctx context.Context, read func(context.Context) ([]byte, error), log *slog.Logger) {
	ctx, cancel := context.WithTimeout(ctx, keepLimit)
	defer cancel()
	b, err := read(ctx)
	var list []api.ClusterEvent
	if err == nil && b != nil {
		err = json.Unmarshal(b, &list)
	}
	if err != nil {
		log.Warn("the previous event log is unreadable; starting a new one", "error", err)
		return
	}
	e.change(func(l *eventLog, _ time.Time) bool { l.restore(list); return true })
}

// persist writes the log to the store after changes, until ctx ends.
func (e *events) persist(ctx context.Context, write func(context.Context, []byte) error, log *slog.Logger) {
	var kept uint64
	for {
		list, changed := e.after(0)
		if n := len(list); n > 0 && list[n-1].Revision > kept {
			b, err := json.Marshal(list[max(0, n-writtenEvents):]) // the events that changed last
			if err == nil {
				ctx, cancel := context.WithTimeout(ctx, keepLimit)
				err = write(ctx, b)
				cancel()
			}
			if err == nil {
				kept = list[n-1].Revision
			} else if ctx.Err() == nil {
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
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// ServeEvents adds the routes of the event log and the recent past to an API server. Call it
// before the server serves.
//
//	GET /v1/events?from=N            events that are new or changed after revision N; as
//	                                 server-sent events if the client accepts them
//	GET /v1/cluster/history?from=N   samples starting at an index, one per second
func (c *core) ServeEvents(a *api.Server) error {
	if err := a.Handle(api.Route{Method: http.MethodGet, Path: "/v1/events", Docs: []api.Doc{{About: "what happened to the cluster after the revision `from`; as server-sent events where those are accepted", Answer: eventList{}, Events: api.ClusterEvent{}}}, Handler: func(w http.ResponseWriter, r *http.Request) { c.events.serve(a, w, r) }}); err != nil {
		return err
	}
	return a.Handle(api.Route{Method: http.MethodGet, Path: "/v1/cluster/history", Docs: []api.Doc{{About: "load and memory of the last minutes, one sample a second, from the index `from` on", Answer: sampleList{}}}, Handler: func(w http.ResponseWriter, r *http.Request) {
		from, err := number(r, "")
		if err != nil {
			a.WriteError(w, err)
			return
		}
		c.events.mu.Lock()
		list := c.events.samples.from(from)
		c.events.mu.Unlock()
		a.WriteJSON(w, http.StatusOK, sampleList{list, statusEvery.Milliseconds(), "list"})
	}})
}

type eventList struct {
	Data   []api.ClusterEvent `json:"data"`
	Object string             `json:"object"`
}

type sampleList struct {
	Data   []api.Sample `json:"data"`
	Every  int64        `json:"every_ms"`
	Object string       `json:"object"`
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
		return 0, api.Problem{Status: http.StatusBadRequest, Param: "from", Message: "'from' must be a whole number, 0 or more."}
	}
	return n, nil
}

func (e *events) serve(a *api.Server, w http.ResponseWriter, r *http.Request) {
	from, err := number(r, "Last-Event-ID")
	if err != nil {
		a.WriteError(w, err)
		return
	}
	if !strings.Contains(r.Header.Get("Accept"), "text/event-stream") {
		list, _ := e.after(from)
		a.WriteJSON(w, http.StatusOK, eventList{list, "list"})
		return
	}
	out := a.NewEventStream(w)
	for {
		list, changed := e.after(from)
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

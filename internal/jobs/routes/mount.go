package routes

import (
	"cmp"
	"fmt"
	"maps"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/shoal-llm/shoal/internal/jobs/journal"
	"github.com/shoal-llm/shoal/internal/server/api"
)

// Handlers maps "METHOD /path" to its handler.
type Handlers map[string]http.HandlerFunc

// Answer returns a handler that writes the result of f as JSON. If f returns nil and nil, it has
// written the response itself.
func Answer(a *api.Server, f func(http.ResponseWriter, *http.Request) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		switch out, err := f(w, r); {
		case err != nil:
			a.WriteError(w, err)
		case out != nil:
			a.WriteJSON(w, http.StatusOK, out)
		}
	}
}

// Mount holds the routes of jobs, files and batches in an API server. The routes exist from the
// start and are forwarded to the current services. While there are none, they answer 503 with the
// reason.
type Mount struct {
	api *api.Server
	at  atomic.Pointer[mounted]
}

type mounted struct {
	table  Handlers
	reason string
	after  time.Duration
}

var methods = map[string][]string{
	"/v1/jobs": {"POST", "GET"}, "/v1/jobs/*": {"GET", "DELETE"},
	"/v1/responses/*": {"GET", "POST", "DELETE"},
	"/v1/files":       {"POST", "GET"}, "/v1/files/*": {"GET", "DELETE"},
	"/v1/batches": {"POST", "GET"}, "/v1/batches/*": {"GET", "POST"},
}

// NewMount adds the routes to an API. Call it before the API serves.
func NewMount(a *api.Server, reason string) (*Mount, error) {
	m := &Mount{api: a}
	m.Refuse(reason, time.Minute)
	for path, list := range methods {
		for _, method := range list {
			at := method + " " + path
			err := a.Handle(method, path, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				now := m.at.Load()
				if h := now.table[at]; h != nil {
					h(w, r)
					return
				}
				a.WriteError(w, api.Problem{Status: http.StatusServiceUnavailable, Code: "jobs_unavailable", Message: now.reason, RetryAfter: now.after})
			}))
			if err != nil {
				return nil, fmt.Errorf("jobs: %w", err)
			}
		}
	}
	return m, nil
}

// Serve forwards the routes to these services. timeout is how long a request waits for one answer
// of the store before it fails. 0 means 15 s; electing the leader of a replicated store takes 4 to
// 9 s.
func (m *Mount) Serve(silence time.Duration, services ...Handlers) {
	silence = cmp.Or(silence, 15*time.Second)
	all := Handlers{}
	for _, table := range services {
		maps.Copy(all, table)
	}
	for at, handle := range all {
		all[at] = func(w http.ResponseWriter, r *http.Request) {
			handle(w, r.WithContext(journal.WithAnswerTimeout(r.Context(), silence)))
		}
	}
	m.at.Store(&mounted{table: all})
}

// Refuse makes every route answer 503 with a reason.
func (m *Mount) Refuse(reason string, after time.Duration) {
	m.at.Store(&mounted{reason: reason, after: after})
}

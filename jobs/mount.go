package jobs

import (
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	"shoal/api"
)

// Mount is the door of jobs in an API: its routes are there from the start, and
// answered by whichever Service has them. While there is none they say why.
type Mount struct {
	api *api.Server
	at  atomic.Pointer[mounted]
}

type mounted struct {
	table  map[string]http.HandlerFunc
	reason string
	after  time.Duration
}

// methods that the paths of jobs take.
var methods = map[string][]string{
	"/v1/jobs": {"POST", "GET"}, "/v1/jobs/*": {"GET", "DELETE"},
	"/v1/files": {"POST", "GET"}, "/v1/files/*": {"GET", "DELETE"},
	"/v1/batches": {"POST", "GET"}, "/v1/batches/*": {"GET", "POST"},
}

// NewMount adds the routes to an API, before it serves.
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

// Serve gives the routes to a service.
func (m *Mount) Serve(v *Service) { m.at.Store(&mounted{table: v.routes()}) }

// Refuse answers every route with 503 and a reason.
func (m *Mount) Refuse(reason string, after time.Duration) {
	m.at.Store(&mounted{reason: reason, after: after})
}

package routes

import (
	"cmp"
	"fmt"
	"maps"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/shoal-llm/shoal/client/wire"
	"github.com/shoal-llm/shoal/internal/jobs/journal"
	"github.com/shoal-llm/shoal/internal/server/api"
	"github.com/shoal-llm/shoal/internal/server/apierr"
	"github.com/shoal-llm/shoal/internal/server/httpserver"
	"github.com/shoal-llm/shoal/internal/server/openai"
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

// routes returns the routes of jobs, kept responses, files and batches.
func routes() []httpserver.Route {
	const get, post, del = http.MethodGet, http.MethodPost, http.MethodDelete
	return []httpserver.Route{
		{Method: post, Path: "/v1/jobs", Docs: []httpserver.Doc{{Answer: wire.Job{},
			About: "the body of a completion or a chat becomes a job, on disk before it is acknowledged; the header Idempotency-Key makes a " +
				"second one the same"}}},
		{Method: get, Path: "/v1/jobs",
			Docs: []httpserver.Doc{{About: "the newest first; `state`, `batch_id`, `after`, `limit`", Answer: wire.JobList{}}}},
		{Method: get, Path: "/v1/jobs/*", Docs: []httpserver.Doc{{About: "returns the progress of a job, and its result", Answer: wire.Job{}},
			{Path: "/{id}/events", About: "its tokens from the index `from` on, as they come", Events: wire.JobEvent{}}}},
		{Method: del, Path: "/v1/jobs/*", Docs: []httpserver.Doc{{About: "cancels it; `purge=true` deletes it", Answer: wire.Job{}}}},
		{Method: get, Path: "/v1/responses/*",
			Docs: []httpserver.Doc{{About: "a response that was stored; `stream=true` and `starting_after` give its events",
				Answer: openai.ResponseType()},
				{Path: "/{id}/input_items", About: "input items of the response"}}},
		{Method: post, Path: "/v1/responses/*",
			Docs: []httpserver.Doc{{Path: "/{id}/cancel", About: "ends one in the background", Answer: openai.ResponseType()}}},
		{Method: del, Path: "/v1/responses/*", Docs: []httpserver.Doc{{About: "deletes it"}}},
		{Method: post, Path: "/v1/files", Uploads: true, Docs: []httpserver.Doc{{About: "keeps a file (multipart/form-data)"}}},
		{Method: get, Path: "/v1/files", Docs: []httpserver.Doc{{About: "the files"}}},
		{Method: get, Path: "/v1/files/*",
			Docs: []httpserver.Doc{{About: "returns the description of a file"}, {Path: "/{id}/content", About: "returns the content of a file"}}},
		{Method: del, Path: "/v1/files/*", Docs: []httpserver.Doc{{About: "deletes it"}}},
		{Method: post, Path: "/v1/batches", Uncounted: true, Docs: []httpserver.Doc{{About: "OpenAI's batch of a file of requests"}}},
		{Method: get, Path: "/v1/batches", Docs: []httpserver.Doc{{About: "the newest first; `after`, `limit`"}}},
		{Method: get, Path: "/v1/batches/*", Docs: []httpserver.Doc{{About: "returns the progress of a batch"}}},
		{Method: post, Path: "/v1/batches/*", Docs: []httpserver.Doc{{Path: "/{id}/cancel", About: "ends it"}}},
	}
}

// NewMount adds the routes to an API. Call it before the API serves.
func NewMount(a *api.Server, reason string) (*Mount, error) {
	m := &Mount{api: a}
	m.Refuse(reason, time.Minute)
	for _, route := range routes() {
		at := route.Method + " " + route.Path
		route.Handler = func(w http.ResponseWriter, r *http.Request) {
			now := m.at.Load()
			if h := now.table[at]; h != nil {
				h(w, r)
				return
			}
			a.WriteError(w, apierr.Problem{Status: http.StatusServiceUnavailable, Code: "jobs_unavailable",
				Message: now.reason, RetryAfter: now.after})
		}
		if err := a.Handle(route); err != nil {
			return nil, fmt.Errorf("jobs: %w", err)
		}
	}
	return m, nil
}

// Serve forwards the routes to these services. silence is how long a request waits for one answer
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

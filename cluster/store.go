package cluster

import (
	"context"
	"crypto/subtle"
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/shoal-llm/shoal/client/wire"
	"github.com/shoal-llm/shoal/internal/jobs/routes"
	"github.com/shoal-llm/shoal/internal/options"
	"github.com/shoal-llm/shoal/internal/security"
	"github.com/shoal-llm/shoal/internal/server/api"
	"github.com/shoal-llm/shoal/internal/server/apierr"
	"github.com/shoal-llm/shoal/internal/server/httpserver"
	"github.com/shoal-llm/shoal/internal/store"
)

// ServeJobs adds the routes of jobs to an API server of this coordinator and runs the jobs in its
// data directory. Without a data directory, the routes return that as an error. Call it once,
// before the API serves.
func (c *Coordinator) ServeJobs(a *api.Server) error {
	mount, err := routes.NewMount(a, c.noJobs)
	if err != nil || c.store == nil {
		return err
	}
	if err := c.store.Serve(store.Front{Engine: c.engines, API: a, Mount: mount, Parallel: c.parallel()}); err != nil {
		return err
	}
	c.tending.Go(c.members.Run)
	return nil
}

// parallel returns how many jobs run at once.
func (c *Coordinator) parallel() (jobs int) {
	for _, m := range c.models {
		jobs += m.serve.MaxSequences
	}
	return jobs
}

// Health implements engine.Engine. A store without a majority of its replicas accepts no placement. The
// running placement continues (see storeProblem). Without one, the error names the missing replicas.
func (c *Coordinator) Health() error {
	err := c.engines.Health()
	if why := c.missingReplicas(); why != "" && !errors.As(err, new(apierr.ErrDegraded)) {
		return apierr.ErrNotReady{Reason: why}
	}
	return err
}

func (c *Coordinator) Ready() error {
	err := c.core.Ready()
	if why := c.missingReplicas(); err != nil && why != "" {
		return apierr.ErrNotReady{Reason: why, RetryAfter: time.Second}
	}
	return err
}

func (c *Coordinator) missingReplicas() string {
	if c.store == nil {
		return ""
	}
	return c.store.MissingReplicas()
}

func (c *Coordinator) storeProblem() string {
	if c.store == nil {
		return ""
	}
	return c.store.Problem()
}

// OperatorHeader carries security.Key.OperatorToken in requests that change the store.
const OperatorHeader = "Shoal-Operator"

// ServeStore adds the routes that change the members of the store. Call it before the API server
// serves. They require the cluster key, because a member of the store receives every prompt of a
// job.
//
//	POST   /v1/store/members/{id}   202: it becomes a member
//	DELETE /v1/store/members/{id}   202: it is a member no longer
func (c *Coordinator) ServeStore(a *api.Server) error {
	serve := func(method, about string, change func(context.Context, string) error) error {
		return a.Handle(httpserver.Route{Method: method, Path: "/v1/store/members/*", Operator: true,
			Docs: []httpserver.Doc{{About: about + " (the cluster key's token)", Answer: wire.StoreState{}}},
			Handler: func(w http.ResponseWriter, r *http.Request) {
				id := strings.TrimPrefix(r.URL.Path, "/v1/store/members/")
				switch {
				case !c.isOperator(r.Header.Get(OperatorHeader)):
					a.WriteError(w, apierr.Problem{Status: http.StatusForbidden, Code: "not_the_operator",
						Message: "Changing the members of the store requires the cluster key: shoal store " + options.Name("cluster-key") + " FILE."})
					return
				case c.store == nil:
					a.WriteError(w, apierr.Problem{Status: http.StatusConflict, Code: "no_store",
						Message: "This coordinator has no store: start it with " + options.Name("data-dir") + " DIR."})
					return
				}
				if err := change(r.Context(), id); err != nil {
					status, code := http.StatusServiceUnavailable, "store_unavailable"
					switch {
					case errors.Is(err, store.ErrNoMember):
						status, code = http.StatusNotFound, "member_not_found"
					case errors.Is(err, store.ErrMembers):
						status, code = http.StatusConflict, "store_members"
					}
					a.WriteError(w, apierr.Problem{Status: status, Code: code, Message: strings.TrimPrefix(err.Error(), "store: ") + "."})
					return
				}
				a.WriteJSON(w, http.StatusAccepted, c.store.State())
			}})
	}
	return errors.Join(serve(http.MethodPost, "adds a process to the replicas of the store", c.members.Add),
		serve(http.MethodDelete, "removes a process from the replicas of the store", c.members.Remove))
}

// isOperator accepts the token of any key that the cluster accepts now.
func (c *Coordinator) isOperator(word string) bool {
	keys := c.key.Keys()
	if len(keys) == 0 {
		keys = []security.Key{c.key}
	}
	return slices.ContainsFunc(keys, func(k security.Key) bool {
		return subtle.ConstantTimeCompare([]byte(word), []byte(k.OperatorToken())) == 1
	})
}

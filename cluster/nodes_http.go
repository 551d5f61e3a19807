package cluster

import (
	"context"
	"errors"
	"net/http"
	"strings"

	"github.com/shoal-llm/shoal/internal/coordinator"
	"github.com/shoal-llm/shoal/internal/server/api"
	"github.com/shoal-llm/shoal/internal/server/apierr"
	"github.com/shoal-llm/shoal/internal/server/httpserver"
)

// ServeNodes adds the routes that manage nodes to an API server. Call it before the server serves.
//
//	POST /v1/nodes/{id}/drain   202: its work moves to the others; /v1/cluster
//	                            shows it as draining, then drained
//	POST /v1/nodes/{id}/undrain 202: it takes a share again
//	POST /reset_prefix_cache    200: the prefix cache is emptied, except for running requests
func (c *Coordinator) ServeNodes(a *api.Server) error {
	reset := a.Handle(httpserver.Route{Method: http.MethodPost, Path: "/reset_prefix_cache", Operator: true,
		Docs: []httpserver.Doc{{About: "empties the prefix cache, except blocks in use (role operator)"}},
		Handler: func(w http.ResponseWriter, r *http.Request) {
			c.ResetPrefixCache(r.Context())
			a.WriteJSON(w, http.StatusOK, map[string]any{})
		}})
	return errors.Join(reset,
		a.Handle(httpserver.Route{Method: http.MethodPost, Path: "/v1/nodes/*", Operator: true,
			Docs: []httpserver.Doc{{Path: "/{id}/drain", About: "a node's work moves to the others (role operator)"}, {Path: "/{id}/undrain",
				About: "a drained node takes a share again (role operator)"}}, Handler: func(w http.ResponseWriter, r *http.Request) {
				id, verb, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/v1/nodes/"), "/")
				do, state := c.Drain, "draining"
				switch verb {
				case "drain":
				case "undrain":
					do, state = c.Undrain, "joining"
				default:
					a.WriteError(w, apierr.Problem{Status: http.StatusNotFound, Code: "unknown_url",
						Message: "The only routes here are POST /v1/nodes/{id}/drain and /v1/nodes/{id}/undrain."})
					return
				}
				if err := do(r.Context(), id); err != nil {
					status, code := http.StatusNotFound, "node_not_found"
					switch {
					case errors.Is(err, coordinator.ErrLastNode):
						status, code = http.StatusConflict, "last_node"
					case errors.Is(err, coordinator.ErrNotDrained):
						status, code = http.StatusConflict, "not_drained"
					case errors.Is(err, coordinator.ErrDrainUnrecorded):
						status, code = http.StatusServiceUnavailable, "store_unavailable"
					case errors.Is(err, context.DeadlineExceeded):
						status, code = http.StatusServiceUnavailable, "not_ready"
					}
					a.WriteError(w, apierr.Problem{Status: status, Code: code, Message: strings.TrimPrefix(err.Error(), "cluster: ") + "."})
					return
				}
				a.WriteJSON(w, http.StatusAccepted, map[string]any{"id": id, "object": "node", "state": state})
			}}))
}

// Drain moves the work of a node to the others. It returns when that has started and is recorded; Cluster shows
// when the node is drained. The node takes no part again until Undrain, or until another process
// has its name.
func (c *core) Drain(ctx context.Context, id string) error { return c.director.Drain(ctx, id) }

// Undrain lets a drained node take part again.
func (c *core) Undrain(ctx context.Context, id string) error { return c.director.Undrain(ctx, id) }

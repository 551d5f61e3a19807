package cluster

import (
	"context"
	"crypto/subtle"
	"errors"
	"net/http"
	"slices"
	"strings"

	"shoal/api"
	"shoal/security"
)

// OperatorHeader carries security.Key.OperatorToken in requests that change the store.
const OperatorHeader = "Shoal-Operator"

// ServeStore adds the routes that say who keeps copies of the store, before an API server
// serves. They are for holders of the cluster key: who names a keeper decides where every
// prompt of a job is written.
//
//	POST   /v1/store/members/{id}   202: it is to keep one
//	DELETE /v1/store/members/{id}   202: it keeps none any more
func (c *Coordinator) ServeStore(a *api.Server) error {
	serve := func(change func(context.Context, string) error) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			id := strings.TrimPrefix(r.URL.Path, "/v1/store/members/")
			switch {
			case !c.isOperator(r.Header.Get(OperatorHeader)):
				a.WriteError(w, api.Problem{Status: http.StatusForbidden, Code: "not_the_operator", Message: "The members of the store are changed by who holds the cluster key: shoal store --cluster-key FILE."})
				return
			case c.dataStore == nil:
				a.WriteError(w, api.Problem{Status: http.StatusConflict, Code: "no_store", Message: "This coordinator has no store: start it with --data-dir DIR."})
				return
			}
			if err := change(r.Context(), id); err != nil {
				status, code := http.StatusServiceUnavailable, "store_unavailable"
				switch {
				case errors.Is(err, errNoMember):
					status, code = http.StatusNotFound, "member_not_found"
				case errors.Is(err, errMembers):
					status, code = http.StatusConflict, "store_members"
				}
				a.WriteError(w, api.Problem{Status: status, Code: code, Message: strings.TrimPrefix(err.Error(), "cluster: ") + "."})
				return
			}
			a.WriteJSON(w, http.StatusAccepted, c.storeState())
		})
	}
	return errors.Join(a.Handle(http.MethodPost, "/v1/store/members/*", serve(c.AddStoreMember)), a.Handle(http.MethodDelete, "/v1/store/members/*", serve(c.RemoveStoreMember)))
}

// isOperator takes the word of any key that the cluster accepts now.
func (c *Coordinator) isOperator(word string) bool {
	keys := c.key.Keys()
	if len(keys) == 0 {
		keys = []security.Key{c.key}
	}
	return slices.ContainsFunc(keys, func(k security.Key) bool {
		return subtle.ConstantTimeCompare([]byte(word), []byte(k.OperatorToken())) == 1
	})
}

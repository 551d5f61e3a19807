// Package routes has the code that the HTTP routes of jobs, files and batches share: mounting them in an API
// server, parsing ids and pages, and wording the errors of the store.
package routes

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/shoal-llm/shoal/internal/jobs/journal"
	"github.com/shoal-llm/shoal/internal/server/apierr"
)

// Limits of requests.
const (
	AcceptLimit = 5 * time.Second // a disk that takes longer must not accept jobs
	maxKey      = 255             // maximum bytes of an Idempotency-Key
)

// Key returns the Idempotency-Key of a request, "" if it has none.
func Key(r *http.Request) (string, error) {
	key := r.Header.Get("Idempotency-Key")
	if len(key) > maxKey {
		return "", apierr.Problem{Status: http.StatusBadRequest, Param: "Idempotency-Key",
			Message: fmt.Sprintf("The Idempotency-Key is longer than %d bytes.", maxKey)}
	}
	return key, nil
}

// PathID splits the path after prefix into the id and the rest.
func PathID(r *http.Request, prefix string) (id, rest string) {
	id, rest, _ = strings.Cut(strings.TrimPrefix(r.URL.Path, prefix), "/")
	return id, rest
}

// Page returns the part of a list that the query parameters after and limit select: at most limit
// matching items that follow the item with id after. more reports whether further items match.
func Page[T any](all []T, after string, limit int, id func(T) string, matches func(T) bool) (page []T, more bool) {
	page = []T{}
	seen := after == ""
	for _, x := range all {
		switch {
		case !seen:
			seen = id(x) == after
		case !matches(x):
		case len(page) == limit:
			return page, true
		default:
			page = append(page, x)
		}
	}
	return page, false
}

// Limit parses the query parameter limit, from 1 to most.
func Limit(r *http.Request, otherwise, most int) (int, error) {
	s := r.URL.Query().Get("limit")
	if s == "" {
		return otherwise, nil
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 || n > most {
		return 0, apierr.Problem{Status: http.StatusBadRequest, Param: "limit", Message: fmt.Sprintf("'limit' must be 1 to %d.", most)}
	}
	return n, nil
}

// NotFound returns the 404 of a missing job, file or batch.
func NotFound(what, id string) error {
	hint := "; ended ones are kept for a limited time"
	if what == "file" {
		hint = ": GET /v1/files lists them"
	}
	return apierr.Problem{Status: http.StatusNotFound, Code: what + "_not_found",
		Message: fmt.Sprintf("There is no %s %.80q here%s.", what, id, hint)}
}

// NoSuchURL returns the 404 of an unknown path.
func NoSuchURL(r *http.Request) error {
	return apierr.Problem{Status: http.StatusNotFound, Code: "unknown_url",
		Message: fmt.Sprintf("There is no %s %s here.", r.Method, r.URL.Path)}
}

// Refused returns the error of a request of which nothing was accepted. The message contains the cause.
func Refused(err error, status int, code string, after time.Duration) error {
	return apierr.Problem{Status: status, Code: code, Message: "Nothing was accepted: " + journal.Reason(err) + ".", RetryAfter: after}
}

// Problem turns an error of the store into an error for clients.
func Problem(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, journal.ErrMismatch):
		return apierr.Problem{Status: http.StatusConflict, Code: "idempotency_mismatch", Param: "Idempotency-Key",
			Message: "This Idempotency-Key was sent with another request before; send the same body, or another key."}
	case errors.Is(err, journal.ErrDamaged):
		return Refused(err, http.StatusInternalServerError, "record_damaged", 0)
	case errors.Is(err, journal.ErrFull):
		return Refused(err, http.StatusServiceUnavailable, "store_full", time.Minute)
	}
	return Refused(err, http.StatusServiceUnavailable, "store_unavailable", 5*time.Second)
}

// Unreadable turns a read error into an error for clients. Damage is permanent; a store that does
// not answer may recover.
func Unreadable(what string, err error) error {
	p := apierr.Problem{Status: http.StatusServiceUnavailable, Code: "store_unavailable", RetryAfter: 5 * time.Second,
		Message: what + " cannot be read: " + journal.Reason(err) + "."}
	if errors.Is(err, journal.ErrDamaged) {
		p.Status, p.Code, p.RetryAfter = http.StatusInternalServerError, "record_damaged", 0
	}
	return p
}

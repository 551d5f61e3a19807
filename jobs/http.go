package jobs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"time"

	"shoal/api"
)

// routes of jobs, files and batches.
func (v *Service) routes() map[string]http.HandlerFunc {
	table := map[string]http.HandlerFunc{
		"POST /v1/jobs":      v.postJob,
		"GET /v1/jobs":       v.listJobs,
		"GET /v1/jobs/*":     v.getJob,
		"DELETE /v1/jobs/*":  v.deleteJob,
		"POST /v1/files":     v.postFile,
		"GET /v1/files":      v.listFiles,
		"GET /v1/files/*":    v.getFile,
		"DELETE /v1/files/*": v.deleteFile,
		"POST /v1/batches":   v.postBatch,
		"GET /v1/batches":    v.listBatches,
		"GET /v1/batches/*":  v.getBatch,
		"POST /v1/batches/*": v.cancelBatch,
	}
	for at, handle := range table {
		table[at] = func(w http.ResponseWriter, r *http.Request) {
			handle(w, r.WithContext(hurried(r.Context(), v.cfg.Silence)))
		}
	}
	return table
}

const (
	acceptLimit = 5 * time.Second // a disk that takes longer is no place for a job
	maxKey      = 255
)

// jobView is a job as clients see it.
type jobView struct {
	ID          string          `json:"id"`
	Object      string          `json:"object"`
	State       Phase           `json:"state"`
	Endpoint    string          `json:"endpoint"`
	CreatedAt   int64           `json:"created_at"`
	StartedAt   int64           `json:"started_at,omitempty"`
	EndedAt     int64           `json:"ended_at,omitempty"`
	Attempt     uint32          `json:"attempt"`
	Failures    int             `json:"failures,omitempty"`
	NextAttempt int64           `json:"next_attempt_at,omitempty"`
	Events      int             `json:"events"`
	Key         string          `json:"idempotency_key,omitempty"`
	Batch       string          `json:"batch_id,omitempty"`
	Durability  string          `json:"durability"` // single, or replicated
	Replicas    int             `json:"replicas"`   // copies that are in step now
	Error       *jobError       `json:"error"`
	Result      json.RawMessage `json:"result,omitempty"`
}

// jobError is why a job is dead, or why its last attempt failed.
type jobError struct {
	Code    string          `json:"code"`
	Message string          `json:"message"`
	Status  int             `json:"status,omitempty"`
	Body    json.RawMessage `json:"body,omitempty"` // what the endpoint itself would have answered
}

func (v *Service) show(j view) jobView {
	s := j.state
	out := jobView{ID: j.id, Object: "job", State: s.Phase, Endpoint: j.head.Endpoint, CreatedAt: s.Accepted / 1000,
		StartedAt: s.Started / 1000, EndedAt: s.Ended / 1000, Attempt: s.Attempt, Failures: s.Failures, NextAttempt: s.NotBefore / 1000,
		Events: s.Events, Key: j.head.Key, Batch: j.head.Batch}
	out.Durability, out.Replicas = v.cfg.Durability()
	if s.Code != "" {
		out.Error = &jobError{s.Code, s.Message, j.status, j.body}
	}
	return out
}

func (v *Service) postJob(w http.ResponseWriter, r *http.Request) {
	body, err := v.api.ReadJSON(w, r)
	if err == nil && len(body) > v.cfg.MaxBody {
		err = api.Problem{Status: http.StatusRequestEntityTooLarge, Code: "request_too_large", Message: fmt.Sprintf("A job may have %d bytes, this one has %d.", v.cfg.MaxBody, len(body))}
	}
	var spec Spec
	if err == nil {
		spec, err = parseJob(body, r.Header.Get("Idempotency-Key"))
	}
	if err != nil {
		v.api.WriteError(w, err)
		return
	}
	j, existed, err := v.accept(r.Context(), jobID(spec.Key), spec)
	if err != nil {
		v.api.WriteError(w, err)
		return
	}
	w.Header().Set("Location", "/v1/jobs/"+j.id)
	if existed {
		w.Header().Set("Idempotency-Replayed", "true")
	}
	v.api.WriteJSON(w, http.StatusAccepted, v.show(j))
}

// accept checks a request as its endpoint would and makes it a job.
func (v *Service) accept(ctx context.Context, id string, spec Spec) (view, bool, error) {
	spec.Seed, spec.Fingerprint = rand.Uint64()>>1, v.api.Fingerprint()
	if v.store.job(id) == nil { // else it was checked
		if _, err := v.task(id, v.store.now(), spec); err != nil {
			return view{}, false, err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, acceptLimit)
	defer cancel()
	j, existed, err := v.store.accept(ctx, id, spec)
	return j, existed, problemOf(err)
}

// problemOf words the store's errors for clients.
func problemOf(err error) error {
	unavailable := func(status int, code string, after time.Duration) error {
		return api.Problem{Status: status, Code: code, Message: "Nothing was accepted: " + reason(err) + ".", RetryAfter: after}
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, ErrMismatch):
		return api.Problem{Status: http.StatusConflict, Code: "idempotency_mismatch", Param: "Idempotency-Key",
			Message: "This Idempotency-Key belongs to a job with another request; send the same body, or another key."}
	case errors.Is(err, ErrTooMany):
		return unavailable(http.StatusTooManyRequests, "too_many_jobs", 10*time.Second)
	case errors.Is(err, ErrFull):
		return unavailable(http.StatusServiceUnavailable, "store_full", time.Minute)
	}
	return unavailable(http.StatusServiceUnavailable, "store_unavailable", 5*time.Second)
}

// reason words what the store said, or that it said nothing.
func reason(err error) string {
	why := strings.TrimPrefix(err.Error(), "jobs: ")
	if errors.Is(err, context.DeadlineExceeded) || leaderless(err) {
		why = "the job store does not answer (" + why + "). A replicated one does while two of the three processes that keep it are up and reach each other; store.json in its data directory names them. What it holds is kept: try again when they are back"
	}
	return why
}

// parseJob reads {"endpoint", "body"}, or the body of a completion itself, whose
// endpoint shows by "messages" or "prompt" unless it is named.
func parseJob(body []byte, key string) (Spec, error) {
	if len(key) > maxKey {
		return Spec{}, api.Problem{Status: http.StatusBadRequest, Param: "Idempotency-Key", Message: fmt.Sprintf("The Idempotency-Key is longer than %d bytes.", maxKey)}
	}
	var f struct {
		Endpoint string          `json:"endpoint"`
		Body     json.RawMessage `json:"body"`
		Messages json.RawMessage `json:"messages"`
		Prompt   json.RawMessage `json:"prompt"`
	}
	if err := json.Unmarshal(body, &f); err != nil {
		return Spec{}, api.Problem{Status: http.StatusBadRequest, Code: "invalid_json", Message: "The request body must be a JSON object: " + err.Error() + "."}
	}
	spec := Spec{Endpoint: f.Endpoint, Body: f.Body, Key: key}
	if spec.Body == nil {
		spec.Body = body
		if spec.Endpoint == "" {
			switch {
			case f.Messages != nil:
				spec.Endpoint = api.EndpointChat
			case f.Prompt != nil:
				spec.Endpoint = api.EndpointCompletions
			}
		}
	}
	if spec.Endpoint == "" {
		return Spec{}, api.Problem{Status: http.StatusBadRequest, Param: "endpoint",
			Message: fmt.Sprintf("Name the 'endpoint', %s or %s, or send 'messages' or a 'prompt'.", api.EndpointChat, api.EndpointCompletions)}
	}
	return spec, nil
}

// path gives the id and the rest of a path below prefix.
func pathID(r *http.Request, prefix string) (id, rest string) {
	id, rest, _ = strings.Cut(strings.TrimPrefix(r.URL.Path, prefix), "/")
	return id, rest
}

func notFound(what, id string) error {
	return api.Problem{Status: http.StatusNotFound, Code: what + "_not_found", Message: fmt.Sprintf("There is no %s %.80q here; ended ones are kept for a time only.", what, id)}
}

func noSuchURL(r *http.Request) error {
	return api.Problem{Status: http.StatusNotFound, Code: "unknown_url", Message: fmt.Sprintf("There is no %s %s here.", r.Method, r.URL.Path)}
}

func (v *Service) getJob(w http.ResponseWriter, r *http.Request) {
	id, rest := pathID(r, "/v1/jobs/")
	j := v.store.job(id)
	switch {
	case rest == "events" && j != nil:
		v.events(w, r, j)
		return
	case rest != "" && rest != "events":
		v.api.WriteError(w, noSuchURL(r))
		return
	case j == nil:
		v.api.WriteError(w, notFound("job", id))
		return
	}
	out, err := v.whole(r.Context(), j.view())
	if err != nil {
		v.api.WriteError(w, err)
		return
	}
	v.api.WriteJSON(w, http.StatusOK, out)
}

// whole is a job with its result.
func (v *Service) whole(ctx context.Context, j view) (jobView, error) {
	out := v.show(j)
	if j.state.Phase != Completed {
		return out, nil
	}
	result, err := v.store.result(ctx, j)
	if err != nil {
		v.cfg.Logger.Error("jobs: a result cannot be read", "job", j.id, "error", err)
		return out, unreadable("The result of the job", err)
	}
	out.Result = result
	return out, nil
}

// unreadable words what kept something from being read: damage stays, a store that does
// not answer may come back.
func unreadable(what string, err error) error {
	p := api.Problem{Status: http.StatusServiceUnavailable, Code: "store_unavailable", RetryAfter: 5 * time.Second,
		Message: what + " cannot be read: " + reason(err) + "."}
	if errors.Is(err, ErrDamaged) {
		p.Status, p.Code, p.RetryAfter = http.StatusInternalServerError, "record_damaged", 0
	}
	return p
}

// deleteJob cancels a job; one that has ended stays as it is, unless ?purge=true
// asks to forget it.
func (v *Service) deleteJob(w http.ResponseWriter, r *http.Request) {
	id, rest := pathID(r, "/v1/jobs/")
	j := v.store.job(id)
	if rest != "" || j == nil {
		v.api.WriteError(w, notFound("job", id))
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), acceptLimit)
	defer cancel()
	if err := v.stopJob(ctx, j); err != nil {
		v.api.WriteError(w, problemOf(err))
		return
	}
	if r.URL.Query().Get("purge") == "true" {
		if err := v.store.drop(ctx, id); err != nil {
			v.api.WriteError(w, problemOf(err))
			return
		}
		v.api.WriteJSON(w, http.StatusOK, map[string]any{"id": id, "object": "job", "deleted": true})
		return
	}
	v.api.WriteJSON(w, http.StatusOK, v.show(j.view()))
}

// stopJob cancels a job that has not ended: first in the journal, then its
// attempt, which cannot commit any more.
func (v *Service) stopJob(ctx context.Context, j *job) error {
	for {
		if j.view().state.Phase.Final() {
			return nil
		}
		err := v.write(ctx, j, Record{kind: KindCancel, at: v.store.now()}, nil)
		if err == nil || errors.Is(err, ErrFinal) {
			j.mu.Lock()
			if j.attempts != nil {
				j.attempts()
			}
			j.mu.Unlock()
			return nil
		}
		if !errors.Is(err, ErrConflict) || ctx.Err() != nil {
			return err
		}
	}
}

// listJobs answers GET /v1/jobs?state=&batch_id=&after=&limit=: the newest first.
func (v *Service) listJobs(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	limit, err := listLimit(q.Get("limit"))
	state := Phase(q.Get("state"))
	if err == nil && state != "" && !known(state) {
		err = api.Problem{Status: http.StatusBadRequest, Param: "state", Message: fmt.Sprintf("'state' is %.40q; known are queued, running, completed, dead, cancelled.", string(state))}
	}
	if err != nil {
		v.api.WriteError(w, err)
		return
	}
	out := struct {
		Object  string        `json:"object"`
		Data    []jobView     `json:"data"`
		HasMore bool          `json:"has_more"`
		Counts  map[Phase]int `json:"counts"` // of all jobs
		Store   string        `json:"store"`  // ok, or why it cannot be written
		Damage  []string      `json:"damage,omitempty"`
	}{Object: "list", Data: []jobView{}, Counts: map[Phase]int{}, Store: "ok", Damage: v.store.Damage()}
	for _, p := range Phases {
		out.Counts[p] = 0
	}
	if t := v.store.Trouble(); t != "" {
		out.Store = t
	}
	all, after := v.store.list(), q.Get("after")
	seen := after == ""
	for i := len(all) - 1; i >= 0; i-- {
		j := all[i]
		out.Counts[j.state.Phase]++
		if !seen {
			seen = j.id == after
			continue
		}
		if state != "" && j.state.Phase != state || q.Get("batch_id") != "" && j.head.Batch != q.Get("batch_id") {
			continue
		}
		if len(out.Data) == limit {
			out.HasMore = true
			continue
		}
		out.Data = append(out.Data, v.show(j))
	}
	v.api.WriteJSON(w, http.StatusOK, out)
}

func known(p Phase) bool {
	for _, k := range Phases {
		if p == k {
			return true
		}
	}
	return false
}

func listLimit(s string) (int, error) {
	if s == "" {
		return 20, nil
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 || n > 1000 {
		return 0, api.Problem{Status: http.StatusBadRequest, Param: "limit", Message: "'limit' must be 1 to 1000."}
	}
	return n, nil
}

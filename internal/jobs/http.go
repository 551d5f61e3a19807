package jobs

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/shoal-llm/shoal/client/wire"
	"github.com/shoal-llm/shoal/internal/jobs/journal"
	"github.com/shoal-llm/shoal/internal/jobs/routes"
	"github.com/shoal-llm/shoal/internal/server/apierr"
	"github.com/shoal-llm/shoal/internal/server/generate"
	"github.com/shoal-llm/shoal/internal/server/httpserver"
	"github.com/shoal-llm/shoal/internal/server/openai"
	"github.com/shoal-llm/shoal/internal/strictjson"
)

// Routes returns the handlers of the job routes.
func (v *Service) Routes() routes.Handlers {
	return routes.Handlers{
		"POST /v1/jobs":     routes.Answer(v.api, v.postJob),
		"GET /v1/jobs":      routes.Answer(v.api, v.listJobs),
		"GET /v1/jobs/*":    routes.Answer(v.api, v.getJob),
		"DELETE /v1/jobs/*": routes.Answer(v.api, v.deleteJob),

		"GET /v1/responses/*":    v.getResponse,
		"POST /v1/responses/*":   v.cancelResponse,
		"DELETE /v1/responses/*": v.deleteResponse,
	}
}

func (v *Service) show(j snapshot) wire.Job {
	s := j.state
	out := wire.Job{ID: j.id, Object: "job", State: string(s.Phase), Endpoint: j.head.Endpoint, CreatedAt: s.Accepted / 1000,
		StartedAt: s.Started / 1000, EndedAt: s.Ended / 1000, Attempt: s.Attempt, Failures: s.Failures, NextAttempt: s.NotBefore / 1000,
		Events: s.Events, Key: j.head.Key, Batch: j.head.Batch, Prompt: j.prompt,
		Answer: firstCharacters(v.api.Text(j.head.Fingerprint, j.answer))}
	out.Durability, out.Replicas = v.cfg.Durability()
	if s.Code != "" {
		out.Error = &wire.JobError{Code: s.Code, Message: s.Message, Status: j.status, Body: j.body}
	}
	return out
}

func (v *Service) postJob(w http.ResponseWriter, r *http.Request) (any, error) {
	body, err := v.api.ReadJSON(w, r)
	if err == nil && len(body) > v.cfg.MaxBody {
		err = apierr.Problem{Status: http.StatusRequestEntityTooLarge, Code: "request_too_large",
			Message: fmt.Sprintf("The limit of a job is %d bytes, this one has %d.", v.cfg.MaxBody, len(body))}
	}
	var spec Spec
	if err == nil {
		spec, err = parseJob(body)
	}
	if err == nil {
		spec.Key, err = routes.Key(r)
	}
	if err != nil {
		return nil, err
	}
	spec.Holder = httpserver.KeyName(r.Context())
	j, existed, err := v.accept(r.Context(), spec.id(), spec, func(t *generate.Task) error {
		if names := t.Ignored(); len(names) > 0 {
			w.Header().Set("X-Ignored-Parameters", strings.Join(names, ", "))
		}
		return v.api.Charge(r, t)
	})
	if err != nil {
		return nil, err
	}
	w.Header().Set("Location", "/v1/jobs/"+j.id)
	if existed {
		w.Header().Set("Idempotency-Replayed", "true")
	}
	v.api.WriteJSON(w, http.StatusAccepted, v.show(j))
	return nil, nil
}

// accept validates a request as its endpoint would and creates its job. charge may refuse the task;
// it may be nil.
func (v *Service) accept(ctx context.Context, id string, spec Spec, charge func(*generate.Task) error) (snapshot, bool, error) {
	spec.Seed, spec.Drawn, spec.Fingerprint = rand.Uint64()>>1, true, v.api.Fingerprint(spec.Endpoint, spec.Body, "")
	if v.store.job(id) == nil { // an existing job was validated before
		fresh := spec
		fresh.Fingerprint = "" // it must name a model that is served
		task, err := v.task(ctx, id, v.store.Now(), fresh)
		if err == nil {
			spec.Adapter = task.Adapter()
		}
		if err == nil && charge != nil {
			err = charge(task)
		}
		if err != nil {
			return snapshot{}, false, err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, routes.AcceptLimit)
	defer cancel()
	j, existed, err := v.store.accept(ctx, id, spec)
	return j, existed, problemOf(err)
}

// problemOf turns an error of the store into an error for clients.
func problemOf(err error) error {
	if errors.Is(err, ErrTooMany) {
		return routes.Refused(err, http.StatusTooManyRequests, "too_many_jobs", 10*time.Second)
	}
	return routes.Problem(err)
}

// parseJob parses {"endpoint", "body"}, or the bare body of a completion. If a bare body names no
// endpoint, "messages" or "prompt" determines it.
func parseJob(body []byte) (Spec, error) {
	var f struct {
		Endpoint string          `json:"endpoint"`
		Body     json.RawMessage `json:"body"`
		Messages json.RawMessage `json:"messages"`
		Prompt   json.RawMessage `json:"prompt"`
	}
	if err := strictjson.Unmarshal(body, &f); err != nil {
		return Spec{}, apierr.Problem{Status: http.StatusBadRequest, Code: "invalid_json",
			Message: "The request body does not describe a job. " + err.Error()}
	}
	spec := Spec{Endpoint: f.Endpoint, Body: f.Body}
	if spec.Body == nil {
		spec.Body = body
		if spec.Endpoint == "" {
			switch {
			case f.Messages != nil:
				spec.Endpoint = openai.EndpointChat
			case f.Prompt != nil:
				spec.Endpoint = openai.EndpointCompletions
			}
		}
	}
	if spec.Endpoint == "" {
		return Spec{}, apierr.Problem{Status: http.StatusBadRequest, Param: "endpoint",
			Message: fmt.Sprintf("Name the 'endpoint', %s or %s, or send 'messages' or a 'prompt'.",
				openai.EndpointChat, openai.EndpointCompletions)}
	}
	return spec, nil
}

func (v *Service) getJob(w http.ResponseWriter, r *http.Request) (any, error) {
	id, rest := routes.PathID(r, "/v1/jobs/")
	j, err := v.lookup(r.Context(), id)
	switch {
	case err != nil:
		return nil, err
	case rest == "events" && j != nil:
		v.events(w, r, j)
		return nil, nil
	case rest != "" && rest != "events":
		return nil, routes.NoSuchURL(r)
	case j == nil:
		return nil, routes.NotFound("job", id)
	}
	return v.withResult(r.Context(), j.snapshot())
}

// lookup returns the job with this id, or nil if there is none that the request's API key may see.
func (v *Service) lookup(ctx context.Context, id string) (*job, error) {
	j := v.store.job(id)
	if j == nil {
		if err := v.store.Lookup(ctx, id); err != nil {
			return nil, routes.Unreadable("The job", err)
		}
		j = v.store.job(id)
	}
	if j == nil || !httpserver.CanRead(ctx, j.snapshot().head.Holder) {
		return nil, nil
	}
	return j, nil
}

// withResult returns the JSON of a job including its result.
func (v *Service) withResult(ctx context.Context, j snapshot) (any, error) {
	out := v.show(j)
	if j.state.Phase != Completed {
		return out, nil
	}
	result, err := v.store.result(ctx, j)
	if err != nil {
		v.cfg.Logger.Error("jobs: a result cannot be read", "job", j.id, "error", err)
		return out, routes.Unreadable("The result of the job", err)
	}
	out.Result = result
	return out, nil
}

// Accept validates a request as its endpoint would and creates a job with this id. An existing job
// with the same request stays.
func (v *Service) Accept(ctx context.Context, id string, spec Spec) error {
	_, _, err := v.accept(ctx, id, spec, nil)
	return err
}

// Outcome is the phase of a job. For a dead job it also has the error, or the endpoint's response
// if Body is not nil.
type Outcome struct {
	Phase         Phase
	Code, Message string
	Status        int
	Body          json.RawMessage
}

// Outcome returns the outcome of a job; ok is false if there is no such job.
func (v *Service) Outcome(id string) (o Outcome, ok bool) {
	j := v.store.job(id)
	if j == nil {
		return o, false
	}
	w := j.snapshot()
	return Outcome{w.state.Phase, w.state.Code, w.state.Message, w.status, w.body}, true
}

// Result returns the result of a completed job.
func (v *Service) Result(ctx context.Context, id string) (json.RawMessage, error) {
	return v.store.result(ctx, v.store.job(id).snapshot())
}

// Cancel cancels a job that has not ended. A missing job is not an error.
func (v *Service) Cancel(ctx context.Context, id string) error {
	if j := v.store.job(id); j != nil {
		return v.stopJob(ctx, j)
	}
	return nil
}

// Store returns the job store.
func (v *Service) Store() *Store { return v.store }

// deleteJob cancels a job. A job that has ended stays, unless ?purge=true asks to delete it. The jobs of a running batch
// cannot be deleted, because the batch waits for them and then reads their results.
func (v *Service) deleteJob(_ http.ResponseWriter, r *http.Request) (any, error) {
	id, rest := routes.PathID(r, "/v1/jobs/")
	j, err := v.lookup(r.Context(), id)
	if err != nil {
		return nil, err
	}
	if rest != "" || j == nil {
		return nil, routes.NotFound("job", id)
	}
	purge, head := r.URL.Query().Get("purge") == "true", j.snapshot().head
	if purge && v.store.retained(&head) {
		return nil, apierr.Problem{Status: http.StatusConflict, Code: "job_in_use", Message: "The job is a line of " + head.Batch +
			", which still runs; cancel that first, or cancel the job without 'purge'."}
	}
	ctx, cancel := context.WithTimeout(r.Context(), routes.AcceptLimit)
	defer cancel()
	if err := v.stopJob(ctx, j); err != nil {
		return nil, problemOf(err)
	}
	if purge {
		return map[string]any{"id": id, "object": "job", "deleted": true}, problemOf(v.store.drop(ctx, id))
	}
	return v.show(j.snapshot()), nil
}

// stopJob cancels a job that has not ended. It writes the record first and then stops the attempt,
// which can no longer commit.
func (v *Service) stopJob(ctx context.Context, j *job) error {
	for {
		if j.snapshot().state.Phase.Final() {
			return nil
		}
		err := v.write(ctx, j, journal.Record{Kind: KindCancel, At: v.store.Now()}, nil)
		if err == nil || errors.Is(err, ErrFinal) {
			j.mu.Lock()
			if j.attempts != nil {
				j.attempts()
			}
			j.mu.Unlock()
			return nil
		}
		if !errors.Is(err, journal.ErrConflict) || ctx.Err() != nil {
			return err
		}
	}
}

// listJobs answers GET /v1/jobs?state=&batch_id=&after=&limit=, newest first.
func (v *Service) listJobs(_ http.ResponseWriter, r *http.Request) (any, error) {
	q := r.URL.Query()
	limit, err := routes.Limit(r, 20, 1000)
	state, batch := Phase(q.Get("state")), q.Get("batch_id")
	if err == nil && state != "" && !slices.Contains(Phases, state) {
		err = apierr.Problem{Status: http.StatusBadRequest, Param: "state",
			Message: fmt.Sprintf("'state' is %.40q; known are queued, running, completed, dead, cancelled.", string(state))}
	}
	if err != nil {
		return nil, err
	}
	out := wire.JobList{Object: "list", Data: []wire.Job{}, Counts: map[string]int{},
		Store: cmp.Or(v.store.LastError(), "ok"), Damage: v.store.Damage()}
	for _, p := range Phases {
		out.Counts[string(p)] = 0
	}
	all := slices.DeleteFunc(v.store.list(), func(j snapshot) bool { return !httpserver.CanRead(r.Context(), j.head.Holder) })
	for _, j := range all {
		out.Counts[string(j.state.Phase)]++
	}
	slices.Reverse(all)
	page, more := routes.Page(all, q.Get("after"), limit, func(j snapshot) string { return j.id },
		func(j snapshot) bool {
			return (state == "" || j.state.Phase == state) && (batch == "" || j.head.Batch == batch)
		})
	out.HasMore = more
	for _, j := range page {
		out.Data = append(out.Data, v.show(j))
	}
	return out, nil
}

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

	"github.com/shoal-llm/shoal/internal/jobs/door"
	"github.com/shoal-llm/shoal/internal/jobs/journal"
	"github.com/shoal-llm/shoal/internal/server/api"
	"github.com/shoal-llm/shoal/internal/strictjson"
)

// Routes are the paths that it answers.
func (v *Service) Routes() door.Routes {
	return door.Routes{
		"POST /v1/jobs":     door.Answer(v.api, v.postJob),
		"GET /v1/jobs":      door.Answer(v.api, v.listJobs),
		"GET /v1/jobs/*":    door.Answer(v.api, v.getJob),
		"DELETE /v1/jobs/*": door.Answer(v.api, v.deleteJob),

		"GET /v1/responses/*":    v.getResponse,
		"POST /v1/responses/*":   v.cancelResponse,
		"DELETE /v1/responses/*": v.deleteResponse,
	}
}

func (v *Service) show(j view) api.Job {
	s := j.state
	out := api.Job{ID: j.id, Object: "job", State: string(s.Phase), Endpoint: j.head.Endpoint, CreatedAt: s.Accepted / 1000,
		StartedAt: s.Started / 1000, EndedAt: s.Ended / 1000, Attempt: s.Attempt, Failures: s.Failures, NextAttempt: s.NotBefore / 1000,
		Events: s.Events, Key: j.head.Key, Batch: j.head.Batch, Prompt: j.prompt, Answer: begin(v.api.Text(j.answer))}
	out.Durability, out.Replicas = v.cfg.Durability()
	if s.Code != "" {
		out.Error = &api.JobError{Code: s.Code, Message: s.Message, Status: j.status, Body: j.body}
	}
	return out
}

func (v *Service) postJob(w http.ResponseWriter, r *http.Request) (any, error) {
	body, err := v.api.ReadJSON(w, r)
	if err == nil && len(body) > v.cfg.MaxBody {
		err = api.Problem{Status: http.StatusRequestEntityTooLarge, Code: "request_too_large", Message: fmt.Sprintf("A job may have %d bytes, this one has %d.", v.cfg.MaxBody, len(body))}
	}
	var spec Spec
	if err == nil {
		spec, err = parseJob(body)
	}
	if err == nil {
		spec.Key, err = door.Key(r)
	}
	if err != nil {
		return nil, err
	}
	spec.Holder = api.HolderOf(r.Context())
	j, existed, err := v.accept(r.Context(), spec.id(), spec, func(t *api.Task) error {
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

// accept checks a request as its endpoint would and makes it a job; charge, when set,
// may refuse the task.
func (v *Service) accept(ctx context.Context, id string, spec Spec, charge func(*api.Task) error) (view, bool, error) {
	spec.Seed, spec.Drawn, spec.Fingerprint = rand.Uint64()>>1, true, v.api.Fingerprint()
	if v.store.job(id) == nil { // else it was checked
		task, err := v.task(ctx, id, v.store.Now(), spec)
		if err == nil && charge != nil {
			err = charge(task)
		}
		if err != nil {
			return view{}, false, err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, door.AcceptLimit)
	defer cancel()
	j, existed, err := v.store.accept(ctx, id, spec)
	return j, existed, problemOf(err)
}

// problemOf words the store's errors for clients.
func problemOf(err error) error {
	if errors.Is(err, ErrTooMany) {
		return door.Refused(err, http.StatusTooManyRequests, "too_many_jobs", 10*time.Second)
	}
	return door.Problem(err)
}

// parseJob reads {"endpoint", "body"}, or the body of a completion itself, whose
// endpoint shows by "messages" or "prompt" unless it is named.
func parseJob(body []byte) (Spec, error) {
	var f struct {
		Endpoint string          `json:"endpoint"`
		Body     json.RawMessage `json:"body"`
		Messages json.RawMessage `json:"messages"`
		Prompt   json.RawMessage `json:"prompt"`
	}
	if err := strictjson.Unmarshal(body, &f); err != nil {
		return Spec{}, api.Problem{Status: http.StatusBadRequest, Code: "invalid_json", Message: "The request body does not describe a job. " + err.Error()}
	}
	spec := Spec{Endpoint: f.Endpoint, Body: f.Body}
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

func (v *Service) getJob(w http.ResponseWriter, r *http.Request) (any, error) {
	id, rest := door.PathID(r, "/v1/jobs/")
	j, err := v.asked(r.Context(), id)
	switch {
	case err != nil:
		return nil, err
	case rest == "events" && j != nil:
		v.events(w, r, j)
		return nil, nil
	case rest != "" && rest != "events":
		return nil, door.NoSuchURL(r)
	case j == nil:
		return nil, door.NotFound("job", id)
	}
	return v.whole(r.Context(), j.view())
}

// asked is the job of an id, nil if there is none that who asks may see.
func (v *Service) asked(ctx context.Context, id string) (*job, error) {
	j := v.store.job(id)
	if j == nil {
		if err := v.store.Ask(ctx, id); err != nil {
			return nil, door.Unreadable("The job", err)
		}
		j = v.store.job(id)
	}
	if j == nil || !api.Sees(ctx, j.view().head.Holder) {
		return nil, nil
	}
	return j, nil
}

// whole is a job with its result, as a client sees it.
func (v *Service) whole(ctx context.Context, j view) (any, error) {
	out := v.show(j)
	if j.state.Phase != Completed {
		return out, nil
	}
	result, err := v.store.result(ctx, j)
	if err != nil {
		v.cfg.Logger.Error("jobs: a result cannot be read", "job", j.id, "error", err)
		return out, door.Unreadable("The result of the job", err)
	}
	out.Result = result
	return out, nil
}

// Accept checks a request as its endpoint would and makes it a job of this id; one that
// is there already with the same request stays.
func (v *Service) Accept(ctx context.Context, id string, spec Spec) error {
	_, _, err := v.accept(ctx, id, spec, nil)
	return err
}

// Outcome is how far a job is, and for one that is dead what its client got: an error,
// or the answer of its endpoint where Body is not nil.
type Outcome struct {
	Phase         Phase
	Code, Message string
	Status        int
	Body          json.RawMessage
}

// Outcome of a job; false: there is none of that id.
func (v *Service) Outcome(id string) (o Outcome, ok bool) {
	j := v.store.job(id)
	if j == nil {
		return o, false
	}
	w := j.view()
	return Outcome{w.state.Phase, w.state.Code, w.state.Message, w.status, w.body}, true
}

// Result of a job that is completed.
func (v *Service) Result(ctx context.Context, id string) (json.RawMessage, error) {
	return v.store.result(ctx, v.store.job(id).view())
}

// Cancel ends a job that has not ended; one that there is not has.
func (v *Service) Cancel(ctx context.Context, id string) error {
	if j := v.store.job(id); j != nil {
		return v.stopJob(ctx, j)
	}
	return nil
}

// Store is where the jobs are.
func (v *Service) Store() *Store { return v.store }

// deleteJob cancels a job; one that has ended stays as it is, unless ?purge=true
// asks to forget it.
func (v *Service) deleteJob(_ http.ResponseWriter, r *http.Request) (any, error) {
	id, rest := door.PathID(r, "/v1/jobs/")
	j, err := v.asked(r.Context(), id)
	if err != nil {
		return nil, err
	}
	if rest != "" || j == nil {
		return nil, door.NotFound("job", id)
	}
	ctx, cancel := context.WithTimeout(r.Context(), door.AcceptLimit)
	defer cancel()
	if err := v.stopJob(ctx, j); err != nil {
		return nil, problemOf(err)
	}
	if r.URL.Query().Get("purge") == "true" {
		return map[string]any{"id": id, "object": "job", "deleted": true}, problemOf(v.store.drop(ctx, id))
	}
	return v.show(j.view()), nil
}

// stopJob cancels a job that has not ended: first in the journal, then its
// attempt, which cannot commit any more.
func (v *Service) stopJob(ctx context.Context, j *job) error {
	for {
		if j.view().state.Phase.Final() {
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

// listJobs answers GET /v1/jobs?state=&batch_id=&after=&limit=: the newest first.
func (v *Service) listJobs(_ http.ResponseWriter, r *http.Request) (any, error) {
	q := r.URL.Query()
	limit, err := door.Limit(r, 20, 1000)
	state, batch := Phase(q.Get("state")), q.Get("batch_id")
	if err == nil && state != "" && !slices.Contains(Phases, state) {
		err = api.Problem{Status: http.StatusBadRequest, Param: "state", Message: fmt.Sprintf("'state' is %.40q; known are queued, running, completed, dead, cancelled.", string(state))}
	}
	if err != nil {
		return nil, err
	}
	out := api.JobList{Object: "list", Data: []api.Job{}, Counts: map[string]int{}, Store: cmp.Or(v.store.Trouble(), "ok"), Damage: v.store.Damage()}
	for _, p := range Phases {
		out.Counts[string(p)] = 0
	}
	all := slices.DeleteFunc(v.store.list(), func(j view) bool { return !api.Sees(r.Context(), j.head.Holder) })
	for _, j := range all {
		out.Counts[string(j.state.Phase)]++
	}
	slices.Reverse(all)
	page, more := door.Page(all, q.Get("after"), limit, func(j view) string { return j.id },
		func(j view) bool {
			return (state == "" || j.state.Phase == state) && (batch == "" || j.head.Batch == batch)
		})
	out.HasMore = more
	for _, j := range page {
		out.Data = append(out.Data, v.show(j))
	}
	return out, nil
}

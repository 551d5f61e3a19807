package jobs

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/shoal-llm/shoal/internal/jobs/journal"
	"github.com/shoal-llm/shoal/internal/jobs/routes"
	"github.com/shoal-llm/shoal/internal/server/apierr"
	"github.com/shoal-llm/shoal/internal/server/generate"
	"github.com/shoal-llm/shoal/internal/server/httpserver"
	"github.com/shoal-llm/shoal/internal/server/openai"
)

// Stored responses are jobs with the response's id. A background response runs as a job. A
// foreground one is written as a finished job.

// StoreResponse stores a completed response.
func (v *Service) StoreResponse(ctx context.Context, k generate.StoredResponse, seed uint64) error {
	if len(k.Body) > v.cfg.MaxBody {
		return fmt.Errorf("jobs: the request has %d bytes, a job may have %d", len(k.Body), v.cfg.MaxBody)
	}
	j, err := v.store.hold(ctx, k.ID, k.Created*1000, Spec{Endpoint: openai.EndpointResponses, Body: k.Body, Holder: k.Holder, Seed: seed,
		Drawn: true, Fingerprint: v.api.Fingerprint(openai.EndpointResponses, k.Body, "")})
	if err != nil {
		return err
	}
	st := j.snapshot().state
	n, _ := st.Begin(v.store.Now(), v.cfg.Rules) // cannot fail: the job was accepted just now
	if err = v.write(ctx, j, NewRecord(n, nil), nil); err == nil {
		err = v.commit(ctx, j, n.Attempt, k.Result)
	}
	if err != nil { // the job runs again, with the same result
		v.store.activate(j)
	}
	j.mu.Lock()
	j.running = false
	j.mu.Unlock()
	return err
}

// hold creates a job that this process is already running.
func (s *Store) hold(ctx context.Context, id string, at int64, spec Spec) (*job, error) {
	payload, err := json.Marshal(spec)
	if err != nil {
		return nil, fmt.Errorf("jobs: %w", err)
	}
	j := newJob(id)
	j.running = true
	s.mu.Lock()
	err = s.checkRoom()
	if err == nil {
		s.jobs[id] = j
	}
	s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	if err := s.append(ctx, j, journal.Record{Kind: KindAccept, At: at, Payload: payload}); err != nil {
		s.removeEntry(j)
		return nil, err
	}
	return j, nil
}

// BeginResponse implements openai.ResponseStore.
func (v *Service) BeginResponse(r *http.Request, id string, body []byte) (k generate.StoredResponse, existed bool, err error) {
	if len(body) > v.cfg.MaxBody {
		return k, false, apierr.Problem{Status: http.StatusRequestEntityTooLarge, Code: "request_too_large",
			Message: fmt.Sprintf("The limit of a background response is %d bytes, this one has %d.", v.cfg.MaxBody, len(body))}
	}
	key, err := routes.Key(r)
	if err != nil {
		return k, false, err
	}
	spec := Spec{Endpoint: openai.EndpointResponses, Body: body, Key: key, Holder: httpserver.KeyName(r.Context())}
	if key != "" {
		id = "resp_" + strings.TrimPrefix(spec.id(), "job-")
	}
	j, existed, err := v.accept(r.Context(), id, spec, func(t *generate.Task) error { return v.api.Charge(r, t) })
	switch {
	case err != nil:
	case existed:
		k, err = v.storedResponse(r.Context(), j)
	default:
		k = generate.StoredResponse{ID: id, Created: j.state.Accepted / 1000, Body: body, Status: "queued"}
	}
	return k, existed, err
}

func (v *Service) StoredResponse(ctx context.Context, id string) (k generate.StoredResponse, ok bool, err error) {
	j, err := v.response(ctx, id)
	if j == nil {
		return k, false, err
	}
	k, err = v.storedResponse(ctx, j.snapshot())
	return k, true, err
}

func (v *Service) response(ctx context.Context, id string) (*job, error) {
	j, err := v.lookup(ctx, id)
	if j == nil || j.head.Endpoint != openai.EndpointResponses {
		return nil, err
	}
	return j, nil
}

func (v *Service) storedResponse(ctx context.Context, now snapshot) (k generate.StoredResponse, err error) {
	spec, err := v.store.spec(ctx, now.id)
	if err != nil {
		return k, routes.Unreadable("The response", err)
	}
	k = generate.StoredResponse{ID: now.id, Created: now.state.Accepted / 1000, Body: spec.Body,
		Code: now.state.Code, Message: now.state.Message,
		Status: map[Phase]string{Queued: "queued", Running: "in_progress", Completed: "completed", Dead: "failed",
			Cancelled: "cancelled"}[now.state.Phase]}
	if now.state.Phase == Completed {
		if k.Result, err = v.store.result(ctx, now); err != nil {
			return k, routes.Unreadable("The response", err)
		}
	}
	return k, nil
}

// getResponse answers GET /v1/responses/{id}, its event stream (?stream=true&starting_after=N), and
// GET /v1/responses/{id}/input_items.
func (v *Service) getResponse(w http.ResponseWriter, r *http.Request) {
	id, rest := routes.PathID(r, "/v1/responses/")
	k, ok, err := v.StoredResponse(r.Context(), id)
	q := r.URL.Query()
	switch {
	case rest != "" && rest != "input_items":
		err = routes.NoSuchURL(r)
	case err == nil && !ok:
		err = noResponse(id)
	}
	if err != nil {
		v.api.WriteError(w, err)
		return
	}
	switch {
	case rest == "input_items":
		v.inputItems(w, r, k)
	case q.Get("stream") == "true":
		after := -1
		if s := q.Get("starting_after"); s != "" {
			if after, err = strconv.Atoi(s); err != nil || after < 0 {
				v.api.WriteError(w, apierr.Problem{Status: http.StatusBadRequest, Param: "starting_after",
					Message: "'starting_after' must be the sequence_number of an event, 0 or more."})
				return
			}
		}
		v.FollowResponse(w, r, id, after)
	default:
		v.showResponse(w, k)
	}
}

// present is like response, but a missing response is an error.
func (v *Service) present(ctx context.Context, id string) (*job, error) {
	j, err := v.response(ctx, id)
	if j == nil && err == nil {
		err = noResponse(id)
	}
	return j, err
}

func noResponse(id string) error {
	return apierr.Problem{Status: http.StatusNotFound, Code: "response_not_found",
		Message: fmt.Sprintf("Response with id '%.80s' not found; responses are kept for a limited time.", id)}
}

func (v *Service) showResponse(w http.ResponseWriter, k generate.StoredResponse) {
	out, err := v.api.ShowResponse(k)
	if err != nil {
		v.api.WriteError(w, err)
		return
	}
	v.api.WriteJSON(w, http.StatusOK, out)
}

func (v *Service) inputItems(w http.ResponseWriter, r *http.Request, k generate.StoredResponse) {
	items, err := v.api.ResponseInput(k)
	limit, e := routes.Limit(r, 20, 100)
	if err == nil {
		err = e
	}
	if err != nil {
		v.api.WriteError(w, err)
		return
	}
	if r.URL.Query().Get("order") != "asc" {
		slices.Reverse(items)
	}
	id := func(raw json.RawMessage) string {
		var x struct {
			ID string `json:"id"`
		}
		_ = json.Unmarshal(raw, &x) // ResponseInput wrote it
		return x.ID
	}
	page, more := routes.Page(items, r.URL.Query().Get("after"), limit, id, func(json.RawMessage) bool { return true })
	out := map[string]any{"object": "list", "data": page, "has_more": more, "first_id": nil, "last_id": nil}
	if n := len(page); n > 0 {
		out["first_id"], out["last_id"] = id(page[0]), id(page[n-1])
	}
	v.api.WriteJSON(w, http.StatusOK, out)
}

// cancelResponse answers POST /v1/responses/{id}/cancel. A response that has ended stays unchanged.
func (v *Service) cancelResponse(w http.ResponseWriter, r *http.Request) {
	id, rest := routes.PathID(r, "/v1/responses/")
	j, err := v.present(r.Context(), id)
	switch {
	case rest != "cancel":
		err = routes.NoSuchURL(r)
	case err == nil:
		ctx, cancel := context.WithTimeout(r.Context(), routes.AcceptLimit)
		defer cancel()
		err = problemOf(v.stopJob(ctx, j))
	}
	var k generate.StoredResponse
	if err == nil {
		k, err = v.storedResponse(r.Context(), j.snapshot())
	}
	if err != nil {
		v.api.WriteError(w, err)
		return
	}
	v.showResponse(w, k)
}

func (v *Service) deleteResponse(w http.ResponseWriter, r *http.Request) {
	id, rest := routes.PathID(r, "/v1/responses/")
	j, err := v.present(r.Context(), id)
	if err == nil && rest != "" {
		err = noResponse(id)
	}
	if err != nil {
		v.api.WriteError(w, err)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), routes.AcceptLimit)
	defer cancel()
	if err = v.stopJob(ctx, j); err == nil {
		err = v.store.drop(ctx, id)
	}
	if err != nil {
		v.api.WriteError(w, problemOf(err))
		return
	}
	v.api.WriteJSON(w, http.StatusOK, map[string]any{"id": id, "object": "response", "deleted": true})
}

// FollowResponse streams the events of a response after a number, as they arrive. Events are
// derived from the journal, so a number always has the same content.
func (v *Service) FollowResponse(w http.ResponseWriter, r *http.Request, id string, after int) {
	var replay *generate.Replay
	j, err := v.present(r.Context(), id)
	if err == nil {
		replay, err = v.replay(r.Context(), j)
	}
	if err != nil {
		v.api.WriteError(w, err)
		return
	}
	f := &follower{check: journal.Journal{Name: id}, replay: replay, out: v.api.NewEventStream(w),
		take: func(Logged, generate.TaskDelta) error { return nil }}
	if f.replay.Stream(f.out, after) != nil {
		return
	}
	v.follow(r.Context(), j, f, func(now snapshot) error {
		k, err := v.storedResponse(r.Context(), now)
		if err != nil {
			_, body := apierr.ErrorStatus(err)
			return f.out.Data("", body)
		}
		return f.replay.End(k)
	})
}

var _ openai.ResponseStore = (*Service)(nil)

package jobs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"shoal/api"
)

// batchView is a batch as OpenAI's clients see it.
type batchView struct {
	ID          string            `json:"id"`
	Object      string            `json:"object"`
	Endpoint    string            `json:"endpoint"`
	Errors      *batchErrors      `json:"errors"`
	Input       string            `json:"input_file_id"`
	Window      string            `json:"completion_window"`
	Status      BatchPhase        `json:"status"`
	Output      *string           `json:"output_file_id"`
	ErrorFile   *string           `json:"error_file_id"`
	Created     int64             `json:"created_at"`
	InProgress  *int64            `json:"in_progress_at"`
	Expires     int64             `json:"expires_at"`
	Finalizing  *int64            `json:"finalizing_at"`
	CompletedAt *int64            `json:"completed_at"`
	FailedAt    *int64            `json:"failed_at"`
	ExpiredAt   *int64            `json:"expired_at"`
	Cancelling  *int64            `json:"cancelling_at"`
	CancelledAt *int64            `json:"cancelled_at"`
	Counts      batchCounts       `json:"request_counts"`
	Metadata    map[string]string `json:"metadata"`
	Durability  string            `json:"durability"`
}

type batchErrors struct {
	Object string       `json:"object"`
	Data   []batchIssue `json:"data"`
}

func (v *Service) showBatch(b *batch) batchView {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.state
	seconds := func(ms int64) *int64 {
		if ms == 0 {
			return nil
		}
		ms /= 1000
		return &ms
	}
	text := func(t string) *string {
		if t == "" {
			return nil
		}
		return &t
	}
	out := batchView{ID: b.id, Object: "batch", Endpoint: b.spec.Endpoint, Input: b.spec.Input, Window: b.spec.Window, Status: s.Phase,
		Output: text(b.end.Output), ErrorFile: text(b.end.Errors), Created: s.Created / 1000, InProgress: seconds(s.Begun),
		Expires: (s.Created + batchWindow.Milliseconds()) / 1000, Counts: b.counts, Metadata: b.spec.Metadata}
	out.Durability, _ = v.cfg.Durability()
	if b.end.Issues != nil {
		out.Errors = &batchErrors{"list", b.end.Issues}
	}
	if s.Stopped && !s.Expired {
		out.Cancelling = seconds(s.Stopping)
	}
	switch s.Phase {
	case BatchInProgress:
		if b.ready {
			out.Status, out.Finalizing = BatchFinalizing, seconds(v.store.now())
		}
	case BatchCompleted:
		out.CompletedAt, out.Finalizing = seconds(s.Ended), seconds(s.Ended)
	case BatchFailed:
		out.FailedAt = seconds(s.Ended)
	case BatchExpired:
		out.ExpiredAt = seconds(s.Ended)
	case BatchCancelled:
		out.CancelledAt = seconds(s.Ended)
	}
	return out
}

func (v *Service) postBatch(w http.ResponseWriter, r *http.Request) {
	body, err := v.api.ReadJSON(w, r)
	if err != nil {
		v.api.WriteError(w, err)
		return
	}
	bad := func(param, format string, a ...any) {
		v.api.WriteError(w, api.Problem{Status: http.StatusBadRequest, Param: param, Message: fmt.Sprintf(format, a...)})
	}
	spec := batchSpec{}
	if err := json.Unmarshal(body, &spec); err != nil {
		bad("", "The request body does not describe a batch: %v.", err)
		return
	}
	spec.Key = r.Header.Get("Idempotency-Key")
	size := 0
	for k, x := range spec.Metadata {
		size = max(size, len(k), len(x))
	}
	f, ferr := v.files.Get(r.Context(), spec.Input)
	open := 0
	for _, b := range v.store.listBatches() {
		if v.store.batchOpen(b.id) {
			open++
		}
	}
	switch {
	case len(spec.Key) > maxKey:
		bad("Idempotency-Key", "The Idempotency-Key is longer than %d bytes.", maxKey)
	case spec.Endpoint != api.EndpointChat && spec.Endpoint != api.EndpointCompletions:
		bad("endpoint", "'endpoint' is %.60q; known are %s and %s.", spec.Endpoint, api.EndpointChat, api.EndpointCompletions)
	case spec.Window != "24h":
		bad("completion_window", "'completion_window' is %.20q; it must be \"24h\".", spec.Window)
	case len(spec.Metadata) > 16 || size > 512:
		bad("metadata", "'metadata' may hold 16 pairs of up to 512 bytes.")
	case ferr != nil && !errors.Is(ferr, ErrNoFile):
		v.api.WriteError(w, unreadable("The input file", ferr))
	case ferr != nil:
		bad("input_file_id", "There is no file %.80q; upload it with POST /v1/files and purpose \"batch\".", spec.Input)
	case f.Purpose != "batch":
		bad("input_file_id", "The file %s has the purpose %s; upload the input with \"batch\".", f.ID, f.Purpose)
	case open >= maxOpenBatch:
		v.api.WriteError(w, api.Problem{Status: http.StatusTooManyRequests, Code: "too_many_batches", Message: fmt.Sprintf("%d batches are under way, as many as may be.", open)})
	default:
		ctx, cancel := context.WithTimeout(r.Context(), acceptLimit)
		defer cancel()
		b, err := v.store.createBatch(ctx, spec)
		if err != nil {
			v.api.WriteError(w, problemOf(err))
			return
		}
		v.api.WriteJSON(w, http.StatusOK, v.showBatch(b))
	}
}

func (v *Service) getBatch(w http.ResponseWriter, r *http.Request) {
	id, rest := pathID(r, "/v1/batches/")
	b := v.store.batch(id)
	if b == nil || rest != "" {
		v.api.WriteError(w, notFound("batch", id))
		return
	}
	v.api.WriteJSON(w, http.StatusOK, v.showBatch(b))
}

// cancelBatch answers POST /v1/batches/{id}/cancel.
func (v *Service) cancelBatch(w http.ResponseWriter, r *http.Request) {
	id, rest := pathID(r, "/v1/batches/")
	b := v.store.batch(id)
	switch {
	case rest != "cancel":
		v.api.WriteError(w, noSuchURL(r))
		return
	case b == nil:
		v.api.WriteError(w, notFound("batch", id))
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), acceptLimit)
	defer cancel()
	if err := v.store.stopBatch(ctx, b, false); err != nil {
		v.api.WriteError(w, problemOf(err))
		return
	}
	v.api.WriteJSON(w, http.StatusOK, v.showBatch(b))
}

func (v *Service) listBatches(w http.ResponseWriter, r *http.Request) {
	limit, err := listLimit(r.URL.Query().Get("limit"))
	if err != nil {
		v.api.WriteError(w, err)
		return
	}
	out := struct {
		Object  string      `json:"object"`
		Data    []batchView `json:"data"`
		First   *string     `json:"first_id"`
		Last    *string     `json:"last_id"`
		HasMore bool        `json:"has_more"`
	}{Object: "list", Data: []batchView{}}
	after := r.URL.Query().Get("after")
	seen := after == ""
	for _, b := range v.store.listBatches() {
		switch {
		case !seen:
			seen = b.id == after
		case len(out.Data) == limit:
			out.HasMore = true
		default:
			out.Data = append(out.Data, v.showBatch(b))
		}
	}
	if n := len(out.Data); n > 0 {
		out.First, out.Last = &out.Data[0].ID, &out.Data[n-1].ID
	}
	v.api.WriteJSON(w, http.StatusOK, out)
}

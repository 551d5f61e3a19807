package batches

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/shoal-llm/shoal/internal/server/vectors"

	"github.com/shoal-llm/shoal/internal/jobs/files"
	"github.com/shoal-llm/shoal/internal/jobs/routes"
	"github.com/shoal-llm/shoal/internal/server/apierr"
	"github.com/shoal-llm/shoal/internal/server/httpserver"
	"github.com/shoal-llm/shoal/internal/server/openai"
	"github.com/shoal-llm/shoal/internal/strictjson"
)

// batchView is the JSON of a batch, as OpenAI's clients expect it.
type batchView struct {
	ID          string            `json:"id"`
	Object      string            `json:"object"`
	Endpoint    string            `json:"endpoint"`
	Errors      *issueList        `json:"errors"`
	Input       string            `json:"input_file_id"`
	Window      string            `json:"completion_window"`
	Status      Phase             `json:"status"`
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
	Counts      counts            `json:"request_counts"`
	Metadata    map[string]string `json:"metadata"`
	Durability  string            `json:"durability"`
}

type issueList struct {
	Object string  `json:"object"`
	Data   []issue `json:"data"`
}

// endpoints are those that the lines of a batch can be of.
var endpoints = []string{openai.EndpointChat, openai.EndpointCompletions, vectors.EndpointEmbeddings,
	vectors.EndpointRerank, vectors.EndpointScore}

func (v *Service) show(b *batch) batchView {
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
		Expires: (s.Created + window.Milliseconds()) / 1000, Counts: b.counts, Metadata: b.spec.Metadata}
	out.Durability, _ = v.durability()
	if b.end.Issues != nil {
		out.Errors = &issueList{"list", b.end.Issues}
	}
	if s.Stopped && !s.Expired {
		out.Cancelling = seconds(s.Stopping)
	}
	switch s.Phase {
	case InProgress:
		if b.ready {
			out.Status, out.Finalizing = Finalizing, seconds(v.store.jobs.Now())
		}
	case Completed:
		out.CompletedAt, out.Finalizing = seconds(s.Ended), seconds(s.Ended)
	case Failed:
		out.FailedAt = seconds(s.Ended)
	case Expired:
		out.ExpiredAt = seconds(s.Ended)
	case Cancelled:
		out.CancelledAt = seconds(s.Ended)
	}
	return out
}

func (v *Service) postBatch(w http.ResponseWriter, r *http.Request) (any, error) {
	body, err := v.api.ReadJSON(w, r)
	if err != nil {
		return nil, err
	}
	bad := func(param, format string, a ...any) (any, error) {
		return nil, apierr.Problem{Status: http.StatusBadRequest, Param: param, Message: fmt.Sprintf(format, a...)}
	}
	var requested struct {
		Input    string            `json:"input_file_id"`
		Endpoint string            `json:"endpoint"`
		Window   string            `json:"completion_window"`
		Metadata map[string]string `json:"metadata"`
	}
	if err := strictjson.Unmarshal(body, &requested); err != nil {
		return bad("", "The request body does not describe a batch. %v", err)
	}
	spec := spec{Input: requested.Input, Endpoint: requested.Endpoint, Window: requested.Window, Metadata: requested.Metadata,
		Holder: httpserver.KeyName(r.Context())}
	if spec.Key, err = routes.Key(r); err != nil {
		return nil, err
	}
	size := 0
	for k, x := range spec.Metadata {
		size = max(size, len(k), len(x))
	}
	f, ferr := v.files.Get(r.Context(), spec.Input)
	open := 0
	for _, b := range v.store.list() {
		if v.store.open(b.id) {
			open++
		}
	}
	switch {
	case spec.Key != "" && v.store.get(spec.id()) != nil: // the first request with the key was checked; create compares both
	case !slices.Contains(endpoints, spec.Endpoint):
		return bad("endpoint", "'endpoint' is %.60q; known are %s.", spec.Endpoint, strings.Join(endpoints, ", "))
	case spec.Window != "24h":
		return bad("completion_window", "'completion_window' is %.20q; it must be \"24h\".", spec.Window)
	case len(spec.Metadata) > 16 || size > 512:
		return bad("metadata", "'metadata' may hold 16 pairs of up to 512 bytes.")
	case ferr != nil && !errors.Is(ferr, files.ErrNotFound):
		return nil, routes.Unreadable("The input file", ferr)
	case ferr != nil || !httpserver.CanRead(r.Context(), f.Holder):
		return bad("input_file_id", "There is no file %.80q; upload it with POST /v1/files and purpose \"batch\".", spec.Input)
	case f.Purpose != "batch":
		return bad("input_file_id", "The file %s has the purpose %s; upload the input with \"batch\".", f.ID, f.Purpose)
	case open >= maxOpenBatch:
		return nil, apierr.Problem{Status: http.StatusTooManyRequests, Code: "too_many_batches",
			Message: fmt.Sprintf("%d batches are running, which is the maximum.", open)}
	}
	ctx, cancel := context.WithTimeout(r.Context(), routes.AcceptLimit)
	defer cancel()
	b, existed, err := v.store.create(ctx, spec)
	if err != nil {
		return nil, routes.Problem(err)
	}
	if existed {
		w.Header().Set("Idempotency-Replayed", "true")
	}
	return v.show(b), nil
}

func (v *Service) getBatch(_ http.ResponseWriter, r *http.Request) (any, error) {
	id, rest := routes.PathID(r, "/v1/batches/")
	b, err := v.lookup(r.Context(), id)
	if err == nil && rest != "" {
		err = routes.NotFound("batch", id)
	}
	if err != nil {
		return nil, err
	}
	return v.show(b), nil
}

// lookup returns the batch with this id. Batches that the request's API key may not see count as
// missing.
func (v *Service) lookup(ctx context.Context, id string) (*batch, error) {
	b := v.store.get(id)
	if b == nil {
		if err := v.store.jobs.Lookup(ctx, id); err != nil {
			return nil, routes.Unreadable("The batch", err)
		}
		b = v.store.get(id)
	}
	if b == nil || !b.visible(ctx) {
		return nil, routes.NotFound("batch", id)
	}
	return b, nil
}

// visible reports whether the request's API key may see the batch.
func (b *batch) visible(ctx context.Context) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return httpserver.CanRead(ctx, b.spec.Holder)
}

// cancelBatch answers POST /v1/batches/{id}/cancel.
func (v *Service) cancelBatch(_ http.ResponseWriter, r *http.Request) (any, error) {
	id, rest := routes.PathID(r, "/v1/batches/")
	b, err := v.lookup(r.Context(), id)
	switch {
	case rest != "cancel":
		return nil, routes.NoSuchURL(r)
	case err != nil:
		return nil, err
	}
	ctx, cancel := context.WithTimeout(r.Context(), routes.AcceptLimit)
	defer cancel()
	if err := v.store.stop(ctx, b, false); err != nil {
		return nil, routes.Problem(err)
	}
	return v.show(b), nil
}

func (v *Service) listBatches(_ http.ResponseWriter, r *http.Request) (any, error) {
	limit, err := routes.Limit(r, 20, 1000)
	if err != nil {
		return nil, err
	}
	out := struct {
		Object  string      `json:"object"`
		Data    []batchView `json:"data"`
		First   *string     `json:"first_id"`
		Last    *string     `json:"last_id"`
		HasMore bool        `json:"has_more"`
	}{Object: "list", Data: []batchView{}}
	page, more := routes.Page(v.store.list(), r.URL.Query().Get("after"), limit, func(b *batch) string {
		return b.id
	}, func(b *batch) bool { return b.visible(r.Context()) })
	out.HasMore = more
	for _, b := range page {
		out.Data = append(out.Data, v.show(b))
	}
	if n := len(out.Data); n > 0 {
		out.First, out.Last = &out.Data[0].ID, &out.Data[n-1].ID
	}
	return out, nil
}

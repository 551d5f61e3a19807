package openai

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/shoal-llm/shoal/internal/options"
	"github.com/shoal-llm/shoal/internal/server/apierr"
	"github.com/shoal-llm/shoal/internal/server/generate"
	"github.com/shoal-llm/shoal/internal/server/jsonbody"
)

// ResponseStore keeps responses, and runs those of the background.
type ResponseStore interface {
	// StoreResponse stores a finished response. Without an error, it is on disk.
	StoreResponse(ctx context.Context, k generate.StoredResponse, seed uint64) error
	// BeginResponse accepts a response to generate in the background. With an Idempotency-Key its
	// id follows from the key; existed means that the same request was accepted before.
	BeginResponse(r *http.Request, id string, body []byte) (k generate.StoredResponse, existed bool, err error)
	// StoredResponse returns a stored response, or false if there is none that the request's key may read.
	StoredResponse(ctx context.Context, id string) (k generate.StoredResponse, ok bool, err error)
	// FollowResponse answers with the events of a response after a number, as they come.
	FollowResponse(w http.ResponseWriter, r *http.Request, id string, after int)
}

// SetResponseStore stores responses from now on; nil stops that.
func (s *API) SetResponseStore(store ResponseStore) {
	if store == nil {
		s.responses.Store(nil)
		return
	}
	s.responses.Store(&store)
}

// kept returns the store of responses, or nil.
func (s *API) kept() ResponseStore {
	if p := s.responses.Load(); p != nil {
		return *p
	}
	return nil
}

// mayStore decides whether a response will be stored: by default if there is a store.
func (s *API) mayStore(q *responseRequest) *apierr.Error {
	here := s.kept() != nil
	switch {
	case q.background && q.store != nil && !*q.store:
		return apierr.Invalid("background", "'background' needs 'store': true.")
	case !here && (q.background || q.store != nil && *q.store):
		return apierr.Unavailable("jobs_unavailable", "Responses cannot be stored here, nor made in the background: the coordinator has no "+
			options.Name("data-dir")+", or its store is not there yet. Send 'store': false.", time.Minute)
	}
	q.echo.Store = here && (q.store == nil || *q.store)
	return nil
}

// ofSession refuses parameters that a turn of a session cannot have. Its response is not stored, because a session
// has the turns.
func ofSession(g *generate.Request, q *responseRequest) *apierr.Error {
	if g.Session == "" {
		return nil
	}
	for name, set := range map[string]bool{"previous_response_id": q.previous != "", "background": q.background,
		"store": q.store != nil && *q.store} {
		if set {
			return apierr.InvalidCode(name, "unsupported_parameter", "'%s' is not supported with 'session', which keeps the turns itself.", name)
		}
	}
	q.echo.Store = false
	return nil
}

// keep stores a response that is done; false: it could not be.
func (s *API) keep(q *responseRequest, seed uint64, done responseObject) bool {
	store := s.kept()
	if store == nil {
		return false
	}
	ctx, cancel := context.WithTimeout(context.Background(), generate.StoreTimeout)
	defer cancel()
	err := store.StoreResponse(ctx,
		generate.StoredResponse{ID: done.ID, Created: done.CreatedAt, Holder: q.holder, Body: q.body, Result: jsonbody.MustJSON(done)}, seed)
	if err != nil {
		s.Log.Warn("openai: a response is not stored", "id", done.ID, "error", err)
	}
	return err == nil
}

// maxTurns bounds the chain of previous responses.
const maxTurns = 1000

// history returns the items of the responses before a request, oldest first.
func (s *API) history(ctx context.Context, q *responseRequest) ([]inItem, *apierr.Error) {
	var turns [][]inItem
	size, id := int64(0), q.previous
	for n := 0; id != ""; n++ {
		k, e := s.earlier(ctx, id)
		if e != nil && q.replay && e.Status == http.StatusBadRequest {
			turns = append(turns, []inItem{gone})
			break
		}
		if e != nil {
			return nil, e
		}
		if size += int64(len(k.Body) + len(k.Result)); size > s.Config.Limits.BodyBytes || n == maxTurns {
			return nil, apierr.InvalidCode("previous_response_id", "context_length_exceeded",
				"The responses before this one are more than %d, or than %d bytes.", maxTurns, s.Config.Limits.BodyBytes)
		}
		var body struct {
			Input    json.RawMessage `json:"input"`
			Previous string          `json:"previous_response_id"`
		}
		var result struct {
			Output json.RawMessage `json:"output"`
		}
		if jsonbody.Unmarshal(k.Body, &body) != nil || jsonbody.Unmarshal(k.Result, &result) != nil {
			return nil, apierr.Of(fmt.Errorf("openai: the stored response %s cannot be read, so it cannot be continued: send its messages "+
				"as input", id))
		}
		if jsonbody.IsNull(body.Input) {
			body.Input = nil
		}
		input, e := decodeItems(body.Input, s.Config.Limits)
		if e != nil {
			return nil, e
		}
		output, e := decodeItems(result.Output, s.Config.Limits)
		if e != nil {
			return nil, e
		}
		turns = append(turns, append(input, output...))
		id = body.Previous
	}
	slices.Reverse(turns)
	return slices.Concat(turns...), nil
}

// gone replaces removed items in a prompt that is not computed.
var gone = inItem{Type: "message", Role: "user", Content: json.RawMessage(`""`), at: "input"}

// earlier returns the response that another continues.
func (s *API) earlier(ctx context.Context, id string) (k generate.StoredResponse, e *apierr.Error) {
	const param = "previous_response_id"
	store := s.kept()
	if store == nil {
		return k, apierr.Unavailable("jobs_unavailable", "Responses are not stored here; send the whole conversation as 'input'.", time.Minute)
	}
	k, ok, err := store.StoredResponse(ctx, id)
	switch {
	case err != nil:
		return k, apierr.Of(err)
	case !ok:
		return k, apierr.InvalidCode(param, "previous_response_not_found", "Previous response with id '%.80s' not found.", id)
	case k.Result == nil:
		return k, apierr.InvalidCode(param, "previous_response_not_completed",
			"The previous response '%s' is %s; it has no output to go on from.", id, k.Status)
	}
	return k, nil
}

// reference returns an item of an earlier response, whose id is part of the item's id.
func (s *API) reference(ctx context.Context, x inItem) (inItem, *apierr.Error) {
	missing := apierr.Invalid(x.at+".id", "'%s' refers to the item %.80q, which is not stored here.", x.at, x.ID)
	_, rest, _ := strings.Cut(x.ID, "_")
	of, _, ok := strings.Cut(rest, "_")
	store := s.kept()
	if !ok || store == nil {
		return x, missing
	}
	k, ok, err := store.StoredResponse(ctx, "resp_"+of)
	if err != nil {
		return x, apierr.Of(err)
	}
	var result struct {
		Output []json.RawMessage `json:"output"`
	}
	if !ok || k.Result == nil || jsonbody.Unmarshal(k.Result, &result) != nil {
		return x, missing
	}
	for _, raw := range result.Output {
		found := inItem{at: x.at, raw: raw}
		if jsonbody.Unmarshal(raw, &found) == nil && found.ID == x.ID {
			return found, nil
		}
	}
	return x, missing
}

// ShowResponse returns a kept response in the form of the API.
func (s *API) ShowResponse(k generate.StoredResponse) (any, error) {
	if k.Result != nil {
		return k.Result, nil
	}
	f, e := jsonbody.Parse(k.Body, s.response)
	if e != nil {
		return nil, e
	}
	g, q := s.parseResponse(f) // it was accepted: an error of now, as of another limit, changes nothing
	out := q.echo
	out.ID, out.CreatedAt, out.Status, out.Store = k.ID, k.Created, k.Status, true
	out.Model = cmp.Or(g.Model, s.Config.Models[0])
	if k.Status == "failed" {
		out.Error = &responseError{k.Code, k.Message}
	}
	return out, nil
}

// ResponseInput returns the input items of a stored response in the form of generated ones: with
// an id, a status and annotations, and without null members.
func (s *API) ResponseInput(k generate.StoredResponse) ([]json.RawMessage, error) {
	f, e := jsonbody.Parse(k.Body, s.response)
	if e != nil {
		return nil, e
	}
	items, e := decodeItems(f.Get("input"), s.Config.Limits)
	if e != nil {
		return nil, e
	}
	out := make([]json.RawMessage, 0, len(items))
	for i, x := range items {
		var members map[string]json.RawMessage
		if err := jsonbody.Unmarshal(x.raw, &members); err != nil {
			return nil, err
		}
		maps.DeleteFunc(members, func(_ string, v json.RawMessage) bool { return jsonbody.IsNull(v) })
		if x.ID == "" {
			members["id"] = jsonbody.MustJSON("in_" + strings.TrimPrefix(k.ID, "resp_") + "_" + strconv.Itoa(i))
		}
		members["type"] = jsonbody.MustJSON(x.Type)
		if members["status"] == nil && x.Type != "reasoning" && x.Type != "item_reference" {
			members["status"] = json.RawMessage(`"completed"`)
		}
		if x.Type == "message" {
			members["content"] = x.parts()
		}
		out = append(out, jsonbody.MustJSON(members))
	}
	return out, nil
}

// parts returns the content of a message as a list.
func (x inItem) parts() json.RawMessage {
	var list []map[string]json.RawMessage
	if jsonbody.Unmarshal(x.Content, &list) != nil {
		kind := "input_text"
		if x.Role == "assistant" {
			kind = "output_text"
		}
		list = []map[string]json.RawMessage{{"type": jsonbody.MustJSON(kind), "text": x.Content}}
	}
	for _, p := range list {
		if string(p["type"]) == `"output_text"` && jsonbody.IsNull(p["annotations"]) {
			p["annotations"] = json.RawMessage("[]")
		}
	}
	return jsonbody.MustJSON(list)
}

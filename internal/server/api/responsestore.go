package api

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// ResponseStore keeps responses, and runs those of the background.
type ResponseStore interface {
	// KeepResponse takes one that is done: it is on disk when there is no error.
	KeepResponse(ctx context.Context, k KeptResponse, seed uint64) error
	// BeginResponse accepts one to be made in the background. With an Idempotency-Key its id
	// follows from the key; existed: the same request was accepted before.
	BeginResponse(r *http.Request, id string, body []byte) (k KeptResponse, existed bool, err error)
	// KeptResponse finds one; false: there is none that the asking key may see.
	KeptResponse(ctx context.Context, id string) (k KeptResponse, ok bool, err error)
	// FollowResponse answers with the events of one after a number, as they come.
	FollowResponse(w http.ResponseWriter, r *http.Request, id string, after int)
}

// KeepResponses has responses kept from now on; nil: no longer.
func (s *openAI) KeepResponses(store ResponseStore) {
	if store == nil {
		s.responses.Store(nil)
		return
	}
	s.responses.Store(&store)
}

// kept is where responses are kept, nil when nowhere.
func (s *openAI) kept() ResponseStore {
	if p := s.responses.Load(); p != nil {
		return *p
	}
	return nil
}

const keepLimit = 5 * time.Second

// mayStore settles whether a response will be kept: by default where there is a place.
func (s *openAI) mayStore(q *responseRequest) *apiError {
	here := s.kept() != nil
	switch {
	case q.background && q.store != nil && !*q.store:
		return invalid("background", "'background' needs 'store': true.")
	case !here && (q.background || q.store != nil && *q.store):
		return unavailable("jobs_unavailable", "Responses cannot be stored here, nor made in the background: the coordinator has no --data-dir, or its store is not there yet. Send 'store': false.", time.Minute)
	}
	q.echo.Store = here && (q.store == nil || *q.store)
	return nil
}

// keep stores a response that is done; false: it could not be.
func (s *openAI) keep(q *responseRequest, seed uint64, done responseObject) bool {
	store := s.kept()
	if store == nil {
		return false
	}
	ctx, cancel := context.WithTimeout(context.Background(), keepLimit)
	defer cancel()
	err := store.KeepResponse(ctx, KeptResponse{ID: done.ID, Created: done.CreatedAt, Holder: q.holder, Body: q.body, Result: mustJSON(done)}, seed)
	if err != nil {
		s.log.Warn("api: a response is not stored", "id", done.ID, "err", err)
	}
	return err == nil
}

// maxTurns bounds the responses that stand before one.
const maxTurns = 1000

// history are the items of a response and of those before it, the oldest first.
func (s *openAI) history(ctx context.Context, id string) ([]inItem, *apiError) {
	var turns [][]inItem
	size := int64(0)
	for n := 0; id != ""; n++ {
		k, e := s.earlier(ctx, id)
		if e != nil {
			return nil, e
		}
		if size += int64(len(k.Body) + len(k.Result)); size > s.cfg.Limits.BodyBytes || n == maxTurns {
			return nil, invalidCode("previous_response_id", "context_length_exceeded", "The responses before this one are more than %d, or than %d bytes.", maxTurns, s.cfg.Limits.BodyBytes)
		}
		var body struct {
			Input    json.RawMessage `json:"input"`
			Previous string          `json:"previous_response_id"`
		}
		var result struct {
			Output json.RawMessage `json:"output"`
		}
		if unmarshal(k.Body, &body) != nil || unmarshal(k.Result, &result) != nil {
			return nil, asAPIError(fmt.Errorf("api: the response %s does not decode", id))
		}
		if isNull(body.Input) {
			body.Input = nil
		}
		input, e := decodeItems(body.Input, s.cfg.Limits)
		if e != nil {
			return nil, e
		}
		output, e := decodeItems(result.Output, s.cfg.Limits)
		if e != nil {
			return nil, e
		}
		turns = append(turns, append(input, output...))
		id = body.Previous
	}
	slices.Reverse(turns)
	return slices.Concat(turns...), nil
}

// earlier is a response that another goes on from.
func (s *openAI) earlier(ctx context.Context, id string) (k KeptResponse, e *apiError) {
	const param = "previous_response_id"
	store := s.kept()
	if store == nil {
		return k, unavailable("jobs_unavailable", "Responses are not stored here; send the whole conversation as 'input'.", time.Minute)
	}
	k, ok, err := store.KeptResponse(ctx, id)
	switch {
	case err != nil:
		return k, asAPIError(err)
	case !ok:
		return k, invalidCode(param, "previous_response_not_found", "Previous response with id '%.80s' not found.", id)
	case k.Result == nil:
		return k, invalidCode(param, "previous_response_not_completed", "The previous response '%s' is %s; it has no output to go on from.", id, k.Status)
	}
	return k, nil
}

// reference finds an item of an earlier response: the id of the one is in that of the other.
func (s *openAI) reference(ctx context.Context, x inItem) (inItem, *apiError) {
	missing := invalid(x.at+".id", "'%s' refers to the item %.80q, which is not stored here.", x.at, x.ID)
	_, rest, _ := strings.Cut(x.ID, "_")
	of, _, ok := strings.Cut(rest, "_")
	store := s.kept()
	if !ok || store == nil {
		return x, missing
	}
	k, ok, err := store.KeptResponse(ctx, "resp_"+of)
	if err != nil {
		return x, asAPIError(err)
	}
	var result struct {
		Output []json.RawMessage `json:"output"`
	}
	if !ok || k.Result == nil || unmarshal(k.Result, &result) != nil {
		return x, missing
	}
	for _, raw := range result.Output {
		found := inItem{at: x.at, raw: raw}
		if unmarshal(raw, &found) == nil && found.ID == x.ID {
			return found, nil
		}
	}
	return x, missing
}

// ShowResponse is a kept response as clients see it.
func (s *openAI) ShowResponse(k KeptResponse) (any, error) {
	if k.Result != nil {
		return k.Result, nil
	}
	f, e := parseFields(k.Body, s.response)
	if e != nil {
		return nil, e
	}
	g, q := s.parseResponse(f)
	if f.err != nil {
		return nil, f.err
	}
	out := q.echo
	out.ID, out.CreatedAt, out.Model, out.Status, out.Store = k.ID, k.Created, g.model, k.Status, true
	if k.Status == "failed" {
		out.Error = &responseError{k.Code, k.Message}
	}
	return out, nil
}

// ResponseInput are the items that a kept response was asked with, in the form of those
// that are generated: with an id, a status and annotations, and no member that is null.
func (s *openAI) ResponseInput(k KeptResponse) ([]json.RawMessage, error) {
	f, e := parseFields(k.Body, s.response)
	if e != nil {
		return nil, e
	}
	items, e := decodeItems(f.get("input"), s.cfg.Limits)
	if e != nil {
		return nil, e
	}
	out := make([]json.RawMessage, 0, len(items))
	for i, x := range items {
		var members map[string]json.RawMessage
		if err := unmarshal(x.raw, &members); err != nil {
			return nil, err
		}
		maps.DeleteFunc(members, func(_ string, v json.RawMessage) bool { return isNull(v) })
		if x.ID == "" {
			members["id"] = mustJSON("in_" + strings.TrimPrefix(k.ID, "resp_") + "_" + strconv.Itoa(i))
		}
		members["type"] = mustJSON(x.Type)
		if members["status"] == nil && x.Type != "reasoning" && x.Type != "item_reference" {
			members["status"] = json.RawMessage(`"completed"`)
		}
		if x.Type == "message" {
			members["content"] = x.parts()
		}
		out = append(out, mustJSON(members))
	}
	return out, nil
}

// parts is the content of a message as a list.
func (x inItem) parts() json.RawMessage {
	var list []map[string]json.RawMessage
	if unmarshal(x.Content, &list) != nil {
		kind := "input_text"
		if x.Role == "assistant" {
			kind = "output_text"
		}
		list = []map[string]json.RawMessage{{"type": mustJSON(kind), "text": x.Content}}
	}
	for _, p := range list {
		if string(p["type"]) == `"output_text"` && isNull(p["annotations"]) {
			p["annotations"] = json.RawMessage("[]")
		}
	}
	return mustJSON(list)
}

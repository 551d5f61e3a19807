package api

import (
	"math"
	"net/http"
	"strconv"
)

// writeError answers with e. accepted: the engine took the work, so a client
// that retries would have it done twice.
func (s *HTTP) writeError(w http.ResponseWriter, e *apiError, accepted bool) {
	h := w.Header()
	if e.retryAfter > 0 {
		h.Set("Retry-After", strconv.Itoa(int(math.Ceil(e.retryAfter.Seconds()))))
		h.Set("Retry-After-Ms", strconv.FormatInt(max(1, e.retryAfter.Milliseconds()), 10))
	}
	if accepted && !e.retryable {
		h.Set("X-Should-Retry", "false")
	}
	if e.allow != "" {
		h.Set("Allow", e.allow)
	}
	if r, ok := w.(*response); ok && r.format != nil {
		s.writeJSON(w, e.status, r.format(e))
		return
	}
	s.writeJSON(w, e.status, e)
}

// writeJSON sends v as the whole body, under the write deadline.
func (s *HTTP) writeJSON(w http.ResponseWriter, status int, v any) {
	body, err := marshal(v)
	if err != nil {
		s.log.Error("api: response does not encode", "err", err)
		status, body = http.StatusInternalServerError, []byte(`{"error":{"message":"internal error","type":"server_error","param":null,"code":"internal"}}`)
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	s.deadline(w)
	w.WriteHeader(status)
	_, _ = w.Write(body) // a failed write means the client is gone: net/http closes the connection
}

// WriteError answers with err as every route does.
func (s *HTTP) WriteError(w http.ResponseWriter, err error) {
	s.writeError(w, asAPIError(err), false)
}

// WriteJSON answers with v.
func (s *HTTP) WriteJSON(w http.ResponseWriter, status int, v any) { s.writeJSON(w, status, v) }

// ReadJSON reads a JSON body under the server's limits.
func (s *HTTP) ReadJSON(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	body, e := s.readBody(w, r)
	if e != nil {
		return nil, e
	}
	return body, nil
}

// EventStream writes server-sent events, each under the server's write deadline.
type EventStream struct{ out sse }

// NewEventStream begins with the first event or comment.
func (s *HTTP) NewEventStream(w http.ResponseWriter) *EventStream {
	return &EventStream{newSSE(NewStream(w, s.cfg.Limits.WriteTimeout))}
}

// Data sends v as one event with an id, which a browser's EventSource sends back
// as Last-Event-ID; an empty id sends none.
func (e *EventStream) Data(id string, v any) error {
	e.out.event(id, v)
	return e.out.failure()
}

// Comment keeps proxies quiet.
func (e *EventStream) Comment(text string) error {
	e.out.comment(text)
	return e.out.failure()
}

// Done ends the stream.
func (e *EventStream) Done() error {
	e.out.done()
	return e.out.failure()
}

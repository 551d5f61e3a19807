package httpserver

import (
	"math"
	"net/http"
	"strconv"

	"github.com/shoal-llm/shoal/internal/server/apierr"
	"github.com/shoal-llm/shoal/internal/server/jsonbody"
)

// Fail answers with e. accepted means that the engine took the work, so that a retry would do it
// twice.
func (s *Server) Fail(w http.ResponseWriter, e *apierr.Error, accepted bool) {
	h := w.Header()
	if e.RetryAfter > 0 {
		h.Set("Retry-After", strconv.Itoa(int(math.Ceil(e.RetryAfter.Seconds()))))
		h.Set("Retry-After-Ms", strconv.FormatInt(max(1, e.RetryAfter.Milliseconds()), 10))
	}
	if accepted && !e.Retryable {
		h.Set("X-Should-Retry", "false")
	}
	if e.Allow != "" {
		h.Set("Allow", e.Allow)
	}
	if r, ok := w.(*response); ok && r.format != nil {
		s.WriteJSON(w, e.Status, r.format(e))
		return
	}
	s.WriteJSON(w, e.Status, e)
}

// WriteJSON sends v as the whole body, under the write deadline.
func (s *Server) WriteJSON(w http.ResponseWriter, status int, v any) {
	body, err := jsonbody.Marshal(v)
	if err != nil {
		s.log.Error("httpserver: response not encoded", "error", err)
		status, body = http.StatusInternalServerError,
			[]byte(`{"error":{"message":"internal error","type":"server_error","param":null,"code":"internal"}}`)
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	s.Deadline(w)
	w.WriteHeader(status)
	_, _ = w.Write(body) // a failed write means the client is gone: net/http closes the connection
}

// WriteError answers with err as every route does.
func (s *Server) WriteError(w http.ResponseWriter, err error) {
	s.Fail(w, apierr.Of(err), false)
}

// ReadJSON reads a JSON body under the server's limits.
func (s *Server) ReadJSON(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	body, e := s.ReadBody(w, r)
	if e != nil {
		return nil, e
	}
	return body, nil
}

// EventStream writes server-sent events, each under the server's write deadline.
type EventStream struct{ Out SSE }

// NewEventStream begins with the first event or comment.
func (s *Server) NewEventStream(w http.ResponseWriter) *EventStream {
	return &EventStream{NewSSE(NewStream(w, s.cfg.Limits.WriteTimeout))}
}

// Data sends v as one event with an id, which a browser's EventSource sends back
// as Last-Event-ID; an empty id sends none.
func (e *EventStream) Data(id string, v any) error {
	e.Out.event(id, v)
	return e.Out.Failure()
}

// Comment keeps proxies quiet.
func (e *EventStream) Comment(text string) error {
	e.Out.Comment(text)
	return e.Out.Failure()
}

// Done ends the stream.
func (e *EventStream) Done() error {
	e.Out.Done()
	return e.Out.Failure()
}

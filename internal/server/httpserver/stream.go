package httpserver

import (
	"io"
	"net/http"
	"time"

	"github.com/shoal-llm/shoal/internal/server/jsonbody"
)

// Stream writes an answer piece by piece. It flushes each piece unless more are available, and
// gives each its own write deadline: a client that takes longer to read one is cut off, however
// long the whole stream lasts. A nil stream writes nothing.
type Stream struct {
	w           http.ResponseWriter
	rc          *http.ResponseController
	timeout     time.Duration
	contentType string
	Started     bool
	Watch       *SlowReader // may be nil
	held        bool        // pieces wait for release
	waits       bool        // at least one does
	Err         error       // the first; nothing is written after it
}

func NewStream(w http.ResponseWriter, timeout time.Duration) *Stream {
	return &Stream{w: w, rc: http.NewResponseController(w), timeout: timeout}
}

// ErrWrite means that the client reads no more.
type ErrWrite struct{ error }

// Failure returns the first error, if any.
func (s *Stream) Failure() error {
	if s == nil || s.Err == nil {
		return nil
	}
	return ErrWrite{s.Err}
}

// value sends v between two texts. Its JSON ends with the only newline that it holds.
func (s *Stream) value(before string, v any, after string) {
	if s == nil {
		return
	}
	body, err := jsonbody.Marshal(v)
	if err != nil && s.Err == nil {
		s.Err = err
	}
	s.send(before + string(body) + after)
}

func (s *Stream) send(text string) {
	if s == nil || s.Err != nil {
		return
	}
	if !s.Started {
		s.Started = true
		h := s.w.Header()
		h.Set("Content-Type", s.contentType)
		h.Set("Cache-Control", "no-cache")
		h.Set("X-Accel-Buffering", "no") // nginx must not collect chunks
		s.w.WriteHeader(http.StatusOK)
	}
	s.timed(func() error {
		_, err := io.WriteString(s.w, text)
		if s.waits = s.held; err == nil && !s.held {
			err = s.rc.Flush()
		}
		return err
	})
}

// Hold keeps pieces until release: several tokens of one step make one packet.
func (s *Stream) Hold() {
	if s != nil {
		s.held = true
	}
}

// Release flushes the bytes that hold has kept.
func (s *Stream) Release() {
	if s == nil {
		return
	}
	if s.held = false; s.waits && s.Err == nil {
		s.waits = false
		s.timed(s.rc.Flush)
	}
}

func (s *Stream) timed(write func() error) {
	_ = s.rc.SetWriteDeadline(time.Now().Add(s.timeout)) // unsupported only by test recorders
	s.Watch.begin()
	defer s.Watch.end()
	s.Err = write()
}

// SSE writes a stream as server-sent events.
type SSE struct{ *Stream }

func NewSSE(s *Stream) SSE {
	if s != nil {
		s.contentType = "text/event-stream; charset=utf-8"
	}
	return SSE{s}
}

func (e SSE) Data(v any) { e.event("", v) }

// event sends v with an id, which clients send back to resume a stream; "" sends none.
func (e SSE) event(id string, v any) {
	if id != "" {
		id = "id: " + id + "\n"
	}
	e.value(id+"data: ", v, "\n")
}

// Named sends v as an event of a type.
func (e SSE) Named(event string, v any) { e.value("event: "+event+"\ndata: ", v, "\n") }

// Comment keeps proxies and client timeouts quiet; clients ignore it.
func (e SSE) Comment(text string) { e.send(": " + text + "\n\n") }

// Done ends a stream of the OpenAI API.
func (e SSE) Done() { e.send("data: [DONE]\n\n") }

// NDJSON writes a stream as JSON objects, one a line.
type NDJSON struct{ *Stream }

func NewNDJSON(s *Stream) NDJSON {
	if s != nil {
		s.contentType = "application/x-ndjson"
	}
	return NDJSON{s}
}

func (n NDJSON) Line(v any) { n.value("", v, "") }

// Deadline sets the write deadline of one body.
func (s *Server) Deadline(w http.ResponseWriter) {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(s.cfg.Limits.WriteTimeout))
}

package api

import (
	"io"
	"net/http"
	"time"
)

// Stream writes an answer piece by piece. It flushes each piece unless more are at hand, and
// gives each its own write deadline: a client that takes longer to read one is cut off, however
// long the whole stream lasts. A nil stream writes nothing: nobody reads it.
type Stream struct {
	w           http.ResponseWriter
	rc          *http.ResponseController
	timeout     time.Duration
	contentType string
	started     bool
	watch       *slowReader // nil: nobody needs to know
	held        bool        // pieces wait for release
	waits       bool        // at least one does
	err         error       // the first; nothing is written after it
}

func NewStream(w http.ResponseWriter, timeout time.Duration) *Stream {
	return &Stream{w: w, rc: http.NewResponseController(w), timeout: timeout}
}

// errWrite means that the client reads no more.
type errWrite struct{ error }

// failure is the first error, if any.
func (s *Stream) failure() error {
	if s == nil || s.err == nil {
		return nil
	}
	return errWrite{s.err}
}

// value sends v between two texts. Its JSON ends with the only newline that it holds.
func (s *Stream) value(before string, v any, after string) {
	if s == nil {
		return
	}
	body, err := marshal(v)
	if err != nil && s.err == nil {
		s.err = err
	}
	s.send(before + string(body) + after)
}

func (s *Stream) send(text string) {
	if s == nil || s.err != nil {
		return
	}
	if !s.started {
		s.started = true
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

// hold keeps pieces until release: several tokens of one step make one packet.
func (s *Stream) hold() {
	if s != nil {
		s.held = true
	}
}

// release flushes what hold has kept.
func (s *Stream) release() {
	if s == nil {
		return
	}
	if s.held = false; s.waits && s.err == nil {
		s.waits = false
		s.timed(s.rc.Flush)
	}
}

func (s *Stream) timed(write func() error) {
	_ = s.rc.SetWriteDeadline(time.Now().Add(s.timeout)) // unsupported only by test recorders
	s.watch.begin()
	defer s.watch.end()
	s.err = write()
}

// sse writes a stream as server-sent events.
type sse struct{ *Stream }

func newSSE(s *Stream) sse {
	if s != nil {
		s.contentType = "text/event-stream; charset=utf-8"
	}
	return sse{s}
}

func (e sse) data(v any) { e.event("", v) }

// event sends v with an id, which clients send back to take up a stream; "" sends none.
func (e sse) event(id string, v any) {
	if id != "" {
		id = "id: " + id + "\n"
	}
	e.value(id+"data: ", v, "\n")
}

// named sends v as an event of a type.
func (e sse) named(event string, v any) { e.value("event: "+event+"\ndata: ", v, "\n") }

// comment keeps proxies and client timeouts quiet; clients ignore it.
func (e sse) comment(text string) { e.send(": " + text + "\n\n") }

// done ends a stream of OpenAI's.
func (e sse) done() { e.send("data: [DONE]\n\n") }

// ndjson writes a stream as JSON objects, one a line.
type ndjson struct{ *Stream }

func newNDJSON(s *Stream) ndjson {
	if s != nil {
		s.contentType = "application/x-ndjson"
	}
	return ndjson{s}
}

func (n ndjson) line(v any) { n.value("", v, "") }

// deadline gives the writing of one body its time.
func (s *HTTP) deadline(w http.ResponseWriter) {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(s.cfg.Limits.WriteTimeout))
}

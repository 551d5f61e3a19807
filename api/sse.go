package api

import (
	"bytes"
	"encoding/json"
	"net/http"
	"time"
)

// sse writes server-sent events, each flushed and each under its own write
// deadline: a reader that takes longer for one chunk is cut off, however long
// the stream as a whole may be.
type sse struct {
	w       http.ResponseWriter
	rc      *http.ResponseController
	timeout time.Duration
	buf     bytes.Buffer
	started bool
	reader  *reader // nil: nobody asks
	lines   bool    // JSON objects, one a line, instead of events
}

func newSSE(w http.ResponseWriter, timeout time.Duration) *sse {
	return &sse{w: w, rc: http.NewResponseController(w), timeout: timeout}
}

func (e *sse) data(v any) error { return e.event("", v) }

func (e *sse) event(id string, v any) error {
	e.buf.Reset()
	if id != "" {
		e.buf.WriteString("id: " + id + "\n")
	}
	e.buf.WriteString("data: ")
	enc := json.NewEncoder(&e.buf) // never emits a raw newline inside the value
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return err
	}
	e.buf.WriteByte('\n')
	return e.send()
}

// named is an event with a type; without anybody who reads, it is none.
func (e *sse) named(event string, v any) error {
	if e == nil {
		return nil
	}
	body, err := marshal(v)
	if err != nil {
		return err
	}
	e.buf.Reset()
	e.buf.WriteString("event: " + event + "\ndata: ")
	e.buf.Write(body)
	e.buf.WriteByte('\n')
	return e.send()
}

// line is an object of a stream of lines; without anybody who reads, it is none.
func (e *sse) line(v any) error {
	if e == nil {
		return nil
	}
	body, err := marshal(v) // ends with a newline
	if err != nil {
		return err
	}
	e.buf.Reset()
	e.buf.Write(body)
	return e.send()
}

// comment keeps proxies and client timeouts quiet; clients ignore it.
func (e *sse) comment(text string) error {
	if e.lines {
		return nil // they have none
	}
	e.buf.Reset()
	e.buf.WriteString(": " + text + "\n\n")
	return e.send()
}

func (e *sse) done() error {
	e.buf.Reset()
	e.buf.WriteString("data: [DONE]\n\n")
	return e.send()
}

func (e *sse) send() error {
	if !e.started {
		e.started = true
		h := e.w.Header()
		h.Set("Content-Type", "text/event-stream; charset=utf-8")
		if e.lines {
			h.Set("Content-Type", "application/x-ndjson")
		}
		h.Set("Cache-Control", "no-cache")
		h.Set("X-Accel-Buffering", "no") // nginx must not collect chunks
		e.w.WriteHeader(http.StatusOK)
	}
	_ = e.rc.SetWriteDeadline(time.Now().Add(e.timeout)) // unsupported only by test recorders
	e.reader.begin()
	defer e.reader.end()
	if _, err := e.w.Write(e.buf.Bytes()); err != nil {
		return err
	}
	return e.rc.Flush()
}

// marshal is json.Marshal that leaves <, > and & as they are.
func marshal(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// deadline gives the writing of one body its time.
func (s *Server) deadline(w http.ResponseWriter) {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(s.cfg.Limits.WriteTimeout))
}

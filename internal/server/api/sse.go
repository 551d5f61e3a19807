package api

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"time"
)

// sse writes server-sent events, each flushed unless more are at hand, and each under its own
// write deadline: a reader that takes longer for one chunk is cut off, however long the stream as
// a whole may be.
type sse struct {
	w       http.ResponseWriter
	rc      *http.ResponseController
	timeout time.Duration
	started bool
	reader  *reader // nil: nobody asks
	lines   bool    // JSON objects, one a line, instead of events
	held    bool    // what is written waits for release
	waits   bool    // something does
	err     error   // the first; nothing is written after it
}

func newSSE(w http.ResponseWriter, timeout time.Duration) *sse {
	return &sse{w: w, rc: http.NewResponseController(w), timeout: timeout}
}

// failure is the first error, if any.
func (e *sse) failure() error {
	if e == nil || e.err == nil {
		return nil
	}
	return errWrite{e.err}
}

func (e *sse) data(v any) { e.event("", v) }

func (e *sse) event(id string, v any) {
	if id != "" {
		id = "id: " + id + "\n"
	}
	e.value(id+"data: ", v, "\n")
}

// named is an event with a type; without anybody who reads, it is none.
func (e *sse) named(event string, v any) { e.value("event: "+event+"\ndata: ", v, "\n") }

// line is an object of a stream of lines; without anybody who reads, it is none.
func (e *sse) line(v any) { e.value("", v, "") }

// value is sent between what stands before and after it; its JSON ends with the only newline
// that it holds.
func (e *sse) value(before string, v any, after string) {
	if e == nil {
		return
	}
	body, err := marshal(v)
	if err != nil && e.err == nil {
		e.err = err
	}
	e.send(before + string(body) + after)
}

// comment keeps proxies and client timeouts quiet; clients ignore it. A stream of lines has none.
func (e *sse) comment(text string) { e.send(": " + text + "\n\n") }

func (e *sse) done() { e.send("data: [DONE]\n\n") }

func (e *sse) send(text string) {
	if e.err != nil {
		return
	}
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
	e.timed(func() error {
		_, err := io.WriteString(e.w, text)
		if e.waits = e.held; err == nil && !e.held {
			err = e.rc.Flush()
		}
		return err
	})
}

// hold begins events that are sent together: several tokens of one step are one packet.
func (e *sse) hold() { e.held = true }

// release sends them.
func (e *sse) release() {
	if e.held = false; e.waits && e.err == nil {
		e.waits = false
		e.timed(e.rc.Flush)
	}
}

func (e *sse) timed(write func() error) {
	_ = e.rc.SetWriteDeadline(time.Now().Add(e.timeout)) // unsupported only by test recorders
	e.reader.begin()
	defer e.reader.end()
	e.err = write()
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

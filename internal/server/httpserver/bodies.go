package httpserver

import (
	"context"
	"errors"
	"io"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/shoal-llm/shoal/internal/server/apierr"
)

// freeBody bytes of each body do not count against the budget, so that ordinary requests pass
// while large ones have used it up. Limits.Connections bounds their number.
const freeBody = 64 << 10

// bodyBudget counts the memory of request bodies that were read and not decoded yet, of
// all clients and of each key.
type bodyBudget struct {
	total, perKey int64

	mu    sync.Mutex
	used  int64
	byKey map[string]int64
}

// book counts more bytes for a key; "" is without a key, and has no limit of its own.
func (b *bodyBudget) book(key string, n int64) *apierr.Error {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case key != "" && b.byKey[key]+n > b.perKey:
		return &apierr.Error{Status: http.StatusTooManyRequests, Type: apierr.TypeRateLimit, Code: "rate_limit_exceeded", RetryAfter: time.Second,
			Message: "The request bodies of this API key that are not decoded yet may have " + strconv.FormatInt(b.perKey, 10) +
				" bytes together: send fewer requests at once."}
	case b.used+n > b.total:
		return apierr.Unavailable("overloaded", "The server is overloaded: request bodies that are not decoded yet may have "+
			strconv.FormatInt(b.total, 10)+" bytes together.", time.Second)
	}
	b.used += n
	if key != "" {
		b.byKey[key] += n
	}
	return nil
}

func (b *bodyBudget) release(key string, n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used -= n
	if key == "" {
		return
	}
	if b.byKey[key] -= n; b.byKey[key] == 0 {
		delete(b.byKey, key)
	}
}

// BodiesInUse returns how many bytes of request bodies are booked now.
func (s *Server) BodiesInUse() int64 {
	s.bodies.mu.Lock()
	defer s.bodies.mu.Unlock()
	return s.bodies.used
}

// ReadBody reads a whole JSON body under the limits. Its memory is booked until the
// request ends, or settle is called. Until then, a second call returns the same bytes.
func (s *Server) ReadBody(w http.ResponseWriter, r *http.Request) ([]byte, *apierr.Error) {
	sc := ScopeOf(r)
	if sc.body != nil {
		return sc.body, nil
	}
	if t := r.Header.Get("Content-Type"); t != "" && mediaType(t) != "application/json" && fromBrowser(r) {
		return nil, notJSON()
	}
	limit := s.cfg.Limits.BodyBytes
	if r.ContentLength > limit {
		return nil, tooLarge(limit)
	}
	body, e := s.readAll(sc, r.Body, r.ContentLength)
	if e == nil {
		e = s.cfg.Limits.CheckShape(body, true)
	}
	if e != nil {
		return nil, e
	}
	sc.body = body
	return body, nil
}

// DecodeBody reads a body and decodes it. If ok is false, the client has received the error.
func DecodeBody[T any](s *Server, w http.ResponseWriter, r *http.Request,
	decode func(context.Context, []byte) (T, *apierr.Error)) (v T, ok bool) {
	body, e := s.ReadBody(w, r)
	if e == nil {
		v, e = decode(r.Context(), body)
	}
	if e != nil {
		s.Fail(w, e, false)
	}
	return v, e == nil
}

// JSONHandler answers a route with the value that decode returns for the body, as JSON.
func JSONHandler[T any](s *Server, decode func(context.Context, []byte) (T, *apierr.Error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if v, ok := DecodeBody(s, w, r, decode); ok {
			s.WriteJSON(w, http.StatusOK, v)
		}
	}
}

func tooLarge(limit int64) *apierr.Error {
	return &apierr.Error{Status: http.StatusRequestEntityTooLarge, Type: apierr.TypeInvalid, Code: "request_too_large",
		Message: "The request body is larger than the " + strconv.Itoa(int(limit)) + " bytes that this server accepts."}
}

// readAll reads body into a buffer that doubles, and books the buffer's size. length is the
// announced Content-Length, or -1.
func (s *Server) readAll(sc *scope, body io.Reader, length int64) ([]byte, *apierr.Error) {
	limit := s.cfg.Limits.BodyBytes
	most := limit + 1 // one more byte shows that it is too large
	if length >= 0 {
		most = length + 1 // the last one is for the end
	}
	buf := make([]byte, 0, min(most, 4<<10))
	for {
		if len(buf) == cap(buf) {
			size := min(most, 2*int64(cap(buf)))
			if e := sc.book(s.bodies, size); e != nil {
				return nil, e
			}
			buf = append(make([]byte, 0, size), buf...)
		}
		n, err := body.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		switch {
		case int64(len(buf)) > limit:
			return nil, tooLarge(limit)
		case errors.Is(err, io.EOF):
			return buf, nil
		case errors.Is(err, ErrSlowBody):
			return nil, &apierr.Error{Status: http.StatusRequestTimeout, Type: apierr.TypeInvalid, Code: "body_not_read",
				Message: "The request was not read: " + strings.TrimPrefix(err.Error(), "httpserver: ") + "."}
		case err != nil:
			return nil, &apierr.Error{Status: http.StatusBadRequest, Type: apierr.TypeInvalid, Code: "body_not_read",
				Message: "The request body cannot be read: " + err.Error() + "."}
		}
	}
}

// book reserves the bytes that a buffer of this size needs beyond those reserved before.
func (sc *scope) book(b *bodyBudget, size int64) *apierr.Error {
	more := size - freeBody - sc.booked
	if more <= 0 {
		return nil
	}
	if e := b.book(sc.Principal().Name, more); e != nil {
		return e
	}
	sc.budget, sc.booked = b, sc.booked+more
	return nil
}

// Settle releases the bytes that the body booked, after decoding.
func (sc *scope) Settle() {
	sc.body = nil
	if sc.budget != nil {
		sc.budget.release(sc.Principal().Name, sc.booked)
		sc.budget, sc.booked = nil, 0
	}
}

// drain reads and drops the rest of a refused request's body. Its client may read nothing before
// it has sent everything, and must then find the answer, not a broken connection. A client that
// waits for a 100 (Continue) sends nothing.
func (s *Server) drain(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Expect") != "" {
		return
	}
	limit := 4 * s.cfg.Limits.BodyBytes
	for began := time.Now(); limit > 0 && time.Since(began) < s.cfg.Limits.ReadTimeout; limit -= 1 << 20 {
		if _, err := io.CopyN(io.Discard, r.Body, 1<<20); err != nil {
			break
		}
	}
	s.Deadline(w) // the answer is still to be written
}

func mediaType(header string) string {
	t, _, err := mime.ParseMediaType(header)
	if err != nil {
		return ""
	}
	return t
}

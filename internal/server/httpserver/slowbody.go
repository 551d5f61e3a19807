package httpserver

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"
)

// ErrSlowBody means that the body of a request arrives too slowly, or stopped.
var ErrSlowBody = errors.New("httpserver: the body arrives too slowly")

// pacedBody ends a request's body that arrives too slowly: within every limit of waiting time,
// the given number of bytes or the end must arrive. A slow but steady sender may take as long as
// it needs, and no client keeps a request open with a byte now and then. Time that the server
// spends between two reads does not count.
type pacedBody struct {
	io.ReadCloser
	deadline func(time.Time) error // of the connection's reads
	now      func() time.Time
	limit    time.Duration
	bytes    int

	left time.Duration // for the bytes that are due
	got  int           // of them
	err  error         // that ended the body
}

// pace wraps a body in the limits. Until the first read, the deadline is for
// net/http, which drains the rest after a handler.
func (s *Server) pace(w http.ResponseWriter, body io.ReadCloser) io.ReadCloser {
	l := s.cfg.Limits
	b := &pacedBody{ReadCloser: body, deadline: http.NewResponseController(w).SetReadDeadline, now: time.Now, limit: l.ReadTimeout,
		bytes: l.ReadBytes, left: l.ReadTimeout}
	b.wait()
	return b
}

// wait sets the deadline of the bytes that are due. After the last byte net/http lifts it by
// itself, to watch the connection for a disconnect; on an error it stays.
func (b *pacedBody) wait() { _ = b.deadline(b.now().Add(b.left)) } // unsupported only by test recorders

func (b *pacedBody) Read(p []byte) (int, error) {
	if b.err != nil {
		return 0, b.err // no deadline: net/http may be watching the connection
	}
	began := b.now()
	b.wait()
	n, err := b.ReadCloser.Read(p)
	b.left -= b.now().Sub(began)
	b.got += n
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = fmt.Errorf("%w: %d bytes arrived within %v of waiting; want %d or the end of the body", ErrSlowBody, b.got, b.limit, b.bytes)
	}
	if b.got >= b.bytes {
		b.left, b.got = b.limit, 0
	}
	b.err = err
	return n, err
}

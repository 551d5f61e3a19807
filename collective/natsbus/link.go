package natsbus

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
)

// link is a NATS client for tensors, of the part of the protocol that they need.
// nats.go serves everything else: it hands what is published to one goroutine and
// what arrives to two, where this one writes and delivers by itself, and it makes
// new buffers for every message. A broken link is never repaired.
type link struct {
	nc    net.Conn      // a line, once a poller has taken it over
	in    *bufio.Reader // of the login
	max   int
	inbox inbox
	lost  func(error) // told once why the link ended, unless by Close

	mu     sync.Mutex
	buf    []byte
	owed   atomic.Bool // a pong
	closed atomic.Bool
}

const (
	linkTimeout = 5 * time.Second // of a dial and of the login
	linkBuffer  = 64 << 10
	joinBelow   = 64 << 10 // messages below are copied behind their header
)

// openLink logs in on nc with the token for the server's nonce. over secures it; the server
// must ask for that, and must not without. It owns nc from here on. Nothing is delivered
// before hears.
func openLink(ctx context.Context, nc net.Conn, over *tls.Config, name string, token func(nonce string) string) (*link, error) {
	stop := context.AfterFunc(ctx, func() { nc.Close() })
	l := &link{nc: nc, in: bufio.NewReaderSize(nc, linkBuffer)}
	err := l.login(over, name, token)
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		l.nc.Close()
		return nil, err
	}
	return l, nil
}

func (l *link) login(over *tls.Config, name string, token func(string) string) error {
	if err := l.nc.SetDeadline(time.Now().Add(linkTimeout)); err != nil {
		return err
	}
	line, err := l.line()
	if err != nil {
		return err
	}
	var info struct {
		TLS   bool   `json:"tls_required"`
		Max   int    `json:"max_payload"`
		Nonce string `json:"nonce"`
	}
	body, ok := bytes.CutPrefix(line, []byte("INFO "))
	if !ok {
		return fmt.Errorf("natsbus: %.40q is not the greeting of a NATS server", line)
	}
	if err := json.Unmarshal(body, &info); err != nil {
		return fmt.Errorf("natsbus: greeting of the server: %w", err)
	}
	l.max = info.Max
	switch {
	case info.TLS && over == nil:
		return fmt.Errorf("natsbus: the server asks for TLS: %w", nats.ErrSecureConnRequired)
	case !info.TLS && over != nil: // or somebody between has taken that out
		return fmt.Errorf("natsbus: the server does without TLS: %w", nats.ErrSecureConnWanted)
	case info.TLS:
		l.nc = tls.Client(l.nc, over)
		l.in.Reset(l.nc)
	}
	hello, err := json.Marshal(map[string]any{"verbose": false, "pedantic": false, "lang": "go", "version": nats.Version,
		"protocol": 0, "name": name, "auth_token": token(info.Nonce), "tls_required": info.TLS})
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintf(l.nc, "CONNECT %s\r\n", hello); err != nil {
		return err
	}
	return l.roundTrip()
}

// subscribe asks for a subject under a number.
func (l *link) subscribe(subject string, sid int) error {
	_, err := fmt.Fprintf(l.nc, "SUB %s %d\r\n", subject, sid)
	return err
}

// roundTrip returns when the server has done what was asked so far, and ends the
// deadline of a login; before hears.
func (l *link) roundTrip() error {
	if err := l.nc.SetDeadline(time.Now().Add(linkTimeout)); err != nil {
		return err
	}
	if _, err := io.WriteString(l.nc, "PING\r\n"); err != nil {
		return err
	}
	for {
		line, err := l.line()
		if err != nil {
			return err
		}
		if e, ok := bytes.CutPrefix(line, []byte("-ERR ")); ok {
			return refusal(string(e))
		}
		switch string(line) {
		case "PONG":
			return l.nc.SetDeadline(time.Time{})
		case "PING": // right after CONNECT
			if _, err := io.WriteString(l.nc, "PONG\r\n"); err != nil {
				return err
			}
		}
	}
}

// line reads one, without its end; valid until the next read.
func (l *link) line() ([]byte, error) {
	b, err := l.in.ReadSlice('\n')
	if err != nil {
		return nil, err
	}
	return bytes.TrimRight(b, "\r\n"), nil
}

// refusal is what the server says against the client, as nats.go has it.
func refusal(text string) error {
	text = strings.Trim(text, "'")
	switch low := strings.ToLower(text); {
	case strings.HasPrefix(low, "permissions violation"):
		return fmt.Errorf("%w: %s", nats.ErrPermissionViolation, text)
	case strings.HasPrefix(low, "authorization violation"):
		return fmt.Errorf("%w: %s", nats.ErrAuthorization, text)
	}
	return errors.New("nats: " + text)
}

// Publish writes one message; it returns when the connection has taken all of it.
func (l *link) Publish(subject string, msg []byte) error {
	if len(msg) > l.max {
		return nats.ErrMaxPayload
	}
	defer l.pong()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed.Load() {
		return nats.ErrConnectionClosed
	}
	b := append(append(append(l.buf[:0], "PUB "...), subject...), ' ')
	b = append(strconv.AppendInt(b, int64(len(msg)), 10), "\r\n"...)
	var err error
	if len(msg) < joinBelow {
		b = append(append(b, msg...), "\r\n"...)
		_, err = l.nc.Write(b)
	} else {
		_, err = l.nc.Write(b)
		if err == nil {
			_, err = l.nc.Write(msg)
		}
		if err == nil {
			_, err = l.nc.Write(crlf)
		}
	}
	l.buf = b[:0]
	if err != nil {
		l.end(err)
	}
	return err
}

var crlf = []byte("\r\n")

// pong answers pings. A write may wait for the server, which may wait for this client's
// reader, so the reader never waits for a write: whoever holds the lock when a ping comes
// answers it, and looks for one after it has let go.
func (l *link) pong() {
	for l.owed.Load() && l.mu.TryLock() {
		if l.owed.Swap(false) {
			if _, err := io.WriteString(l.nc, "PONG\r\n"); err != nil {
				l.end(err)
			}
		}
		l.mu.Unlock()
	}
}

// hears sets who gets messages, by the number of their subscription, in buffers of pool, and
// who is told why the link ended. Then somebody has to read.
func (l *link) hears(pool *buffers, deliver func(sid int, msg []byte), lost func(error)) {
	l.lost = lost
	l.inbox = inbox{buf: make([]byte, linkBuffer), pool: pool, deliver: deliver, ping: func() {
		l.owed.Store(true)
		l.pong()
	}}
	rest, _ := l.in.Peek(l.in.Buffered()) // what came right behind the login
	l.inbox.end = copy(l.inbox.buf, rest)
}

// read reads on a goroutine of its own.
func (l *link) read() { go func() { l.end(l.inbox.from(l.nc.Read)) }() }

// end closes the link and tells why, once.
func (l *link) end(err error) {
	if l.closed.Swap(true) {
		return
	}
	l.nc.Close()
	if l.lost != nil {
		l.lost(err)
	}
}

// Close ends the link; it may be called twice and does not wait.
func (l *link) Close() {
	if !l.closed.Swap(true) {
		l.nc.Close()
	}
}

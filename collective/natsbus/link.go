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

// link is a NATS client for tensors. It implements only the part of the protocol that they need.
// nats.go serves all other traffic: it uses one goroutine to publish and two to deliver, and
// allocates a buffer per message. A link publishes and delivers on the caller's goroutine and
// reuses buffers. A broken link is never repaired.
type link struct {
	nc    net.Conn      // a pollConn once a poller has adopted it
	in    *bufio.Reader // for the login only
	max   int
	inbox inbox
	lost  func(error) // called once with the reason when the link breaks; not after Close

	mu      sync.Mutex
	buf     []byte
	pongDue atomic.Bool // a pong must be sent
	closed  atomic.Bool
}

const (
	linkTimeout = 5 * time.Second // for the dial and for the login
	linkBuffer  = 64 << 10
	joinBelow   = 64 << 10 // smaller messages are copied after their header and sent in one write
)

// openLink logs in on nc with the token for the server's nonce. The server must require TLS if, and
// only if, over is set. openLink owns nc from here on. No message is delivered before subscribe.
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
		return fmt.Errorf("natsbus: the server requires TLS: %w", nats.ErrSecureConnRequired)
	case !info.TLS && over != nil: // or an attacker in between has removed it
		return fmt.Errorf("natsbus: the server does not offer TLS: %w", nats.ErrSecureConnWanted)
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

// subscribe subscribes to a subject with subscription id sid.
func (l *link) subscribe(subject string, sid int) error {
	_, err := fmt.Fprintf(l.nc, "SUB %s %d\r\n", subject, sid)
	return err
}

// roundTrip returns when the server has processed everything sent so far, and clears the deadline
// of the login. It must not be called after deliverTo.
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
		case "PING": // servers send one right after CONNECT
			if _, err := io.WriteString(l.nc, "PONG\r\n"); err != nil {
				return err
			}
		}
	}
}

// line reads one line, without its end. It is valid until the next read.
func (l *link) line() ([]byte, error) {
	b, err := l.in.ReadSlice('\n')
	if err != nil {
		return nil, err
	}
	return bytes.TrimRight(b, "\r\n"), nil
}

// refusal converts an -ERR of the server to the errors of nats.go.
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

// Publish writes one message. It returns when the connection has accepted all of it.
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

// pong answers pings. The reader never waits for a write: the write may wait for the server, and the
// server for this reader. So the goroutine that holds the lock answers a ping that arrives meanwhile,
// and checks for one after it has unlocked.
func (l *link) pong() {
	for l.pongDue.Load() && l.mu.TryLock() {
		if l.pongDue.Swap(false) {
			if _, err := io.WriteString(l.nc, "PONG\r\n"); err != nil {
				l.end(err)
			}
		}
		l.mu.Unlock()
	}
}

// deliverTo sets the functions that receive messages, with their subscription id and in buffers of
// pool, and the reason of the link's end. The caller must then start the reading.
func (l *link) deliverTo(pool *buffers, deliver func(sid int, msg []byte), lost func(error)) {
	l.lost = lost
	l.inbox = inbox{buf: make([]byte, linkBuffer), pool: pool, deliver: deliver, ping: func() {
		l.pongDue.Store(true)
		l.pong()
	}}
	rest, _ := l.in.Peek(l.in.Buffered()) // bytes received after the login
	l.inbox.end = copy(l.inbox.buf, rest)
}

// read starts a goroutine that reads until the link ends.
func (l *link) read() { go func() { l.end(l.inbox.from(l.nc.Read)) }() }

// end closes the link and reports the reason, once.
func (l *link) end(err error) {
	if l.closed.Swap(true) {
		return
	}
	l.nc.Close()
	if l.lost != nil {
		l.lost(err)
	}
}

// Close ends the link. It may be called more than once and does not wait.
func (l *link) Close() {
	if !l.closed.Swap(true) {
		l.nc.Close()
	}
}

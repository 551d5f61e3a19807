package natsbus

import (
	"bytes"
	"context"
	"net"
	"testing"
	"time"
)

// said is a connection on which the other side has said all that it will say.
type said struct{ *bytes.Reader }

func (said) Write(b []byte) (int, error)      { return len(b), nil }
func (said) Close() error                     { return nil }
func (said) LocalAddr() net.Addr              { return nil }
func (said) RemoteAddr() net.Addr             { return nil }
func (said) SetDeadline(time.Time) error      { return nil }
func (said) SetReadDeadline(time.Time) error  { return nil }
func (said) SetWriteDeadline(time.Time) error { return nil }

// FuzzLink: whatever a server says, a link ends with an error, and a message that it
// delivers is one that was sent.
func FuzzLink(f *testing.F) {
	const greeting = "INFO {\"max_payload\":100}\r\nPONG\r\n"
	for _, s := range []string{"", "MSG a.b 0 3\r\nabc\r\n", "MSG a 1 reply 0\r\n\r\n", "MSG a 1 999999999\r\n", "MSG  1 \r\n", "-ERR 'x'\r\nPING\r\n", "\r\n\n"} {
		f.Add([]byte(greeting + s))
	}
	f.Add([]byte("INFO {\"tls_required\":true}\r\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		l, err := openLink(context.Background(), said{bytes.NewReader(b)}, nil, "fuzz", "x")
		if err != nil {
			return
		}
		err = l.read(new(buffers), func(sid int, msg []byte) {
			if sid < 0 || !bytes.Contains(b, msg) {
				t.Errorf("delivered %d bytes under %d that nobody sent", len(msg), sid)
			}
		})
		if err == nil {
			t.Error("a link ended without a reason")
		}
		l.Close()
	})
}

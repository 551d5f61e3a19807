package natsbus

import (
	"bytes"
	"context"
	"net"
	"regexp"
	"strconv"
	"testing"
	"time"
)

// incoming is a connection with all bytes that its peer will send.
type incoming struct{ *bytes.Reader }

func (incoming) Write(b []byte) (int, error)      { return len(b), nil }
func (incoming) Close() error                     { return nil }
func (incoming) LocalAddr() net.Addr              { return nil }
func (incoming) RemoteAddr() net.Addr             { return nil }
func (incoming) SetDeadline(time.Time) error      { return nil }
func (incoming) SetReadDeadline(time.Time) error  { return nil }
func (incoming) SetWriteDeadline(time.Time) error { return nil }

// header matches a message's header, with its subscription id and size.
var header = regexp.MustCompile(`MSG [^ \n]* (\d{1,9}) (?:[^\n]* )?(\d{1,9})\r*\n`)

// sent reports whether a message is one of those that the peer sent.
func sent(b []byte, sid int, msg []byte) bool {
	for _, m := range header.FindAllSubmatchIndex(b, -1) {
		s, _ := strconv.Atoi(string(b[m[2]:m[3]]))
		n, _ := strconv.Atoi(string(b[m[4]:m[5]]))
		if s == sid && n == len(msg) && bytes.HasPrefix(b[m[1]:], msg) {
			return true
		}
	}
	return false
}

// FuzzLink: for any bytes of a server, a link ends with an error and delivers only messages that
// were sent, under their own subscription id.
func FuzzLink(f *testing.F) {
	const greeting = "INFO {\"max_payload\":100}\r\nPONG\r\n"
	for _, s := range []string{"", "MSG a.b 0 3\r\nabc\r\n", "MSG a 1 reply 0\r\n\r\n", "MSG a 1 999999999\r\n", "MSG  1 \r\n",
		"MSG a\r\n", "MSG a 12\r\n", "MSG a -1 0\r\n\r\n", "MSG a 0 ;\r\n0123456789a\r\n",
		"MSG a 1 0 2\r\n\r\n\r\n", "-ERR 'x'\r\nPING\r\n", "\r\n\n"} {
		f.Add([]byte(greeting + s))
	}
	f.Add([]byte("INFO {\"tls_required\":true}\r\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		l, err := openLink(context.Background(), incoming{bytes.NewReader(b)}, nil, "fuzz", func(string) string { return "x" })
		if err != nil {
			return
		}
		l.deliverTo(new(buffers), func(sid int, msg []byte) {
			if !sent(b, sid, msg) {
				t.Errorf("delivered %d bytes under %d that the peer did not send", len(msg), sid)
			}
		}, nil)
		err = l.inbox.from(l.nc.Read)
		if err == nil {
			t.Error("a link ended without a reason")
		}
		l.Close()
	})
}

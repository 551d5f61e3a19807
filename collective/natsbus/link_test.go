package natsbus

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/shoal-llm/shoal/collective"
)

// TestOneServerBetween: ranks receive one another at the sender's server, also under TLS; over
// routes where that is impossible; and in mixtures of both.
func TestOneServerBetween(t *testing.T) {
	pki := authority(t)
	for _, c := range []struct {
		name  string
		edit  func(int, *Config)
		links [3]int // of each rank
	}{
		{"plain", nil, [3]int{2, 2, 2}},
		{"TLS", func(_ int, c *Config) { c.RouteTLS, c.ClientTLS = pki, pki }, [3]int{2, 2, 2}},
		{"names", func(_ int, c *Config) { c.Advertise = "localhost:0" }, [3]int{2, 2, 2}},
		{"one behind another address", func(i int, c *Config) {
			if i == 1 {
				c.Advertise = "127.0.0.1:1"
			}
		}, [3]int{1, 2, 1}},
		{"listener that requires a certificate that no rank has", func(_ int, c *Config) { c.ClientTLS = pki }, [3]int{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			servers := startServers(t, 3, c.edit)
			ts := openTransports(t, servers, 1)
			for r, tr := range ts {
				n := 0
				tr.mu.Lock()
				for _, p := range tr.peers {
					if p.link != nil {
						n++
					}
				}
				tr.mu.Unlock()
				if n != c.links[r] {
					t.Errorf("rank %d hears %d of 2 at their servers, want %d", r, n, c.links[r])
				}
			}
			gs := openGroups(t, ts, 1, collective.Config{})
			errs := make(chan error, 3)
			for r, g := range gs {
				go func() {
					w := newRankWork(r, 3, 40000)
					errs <- errors.Join(w.reduce(g, 1), w.gather(g, 2))
				}()
			}
			for range gs {
				if err := <-errs; err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// TestEveryPingIsAnswered: also a ping that arrives while the previous pong or a message is being
// written and nothing is published afterwards.
func TestEveryPingIsAnswered(t *testing.T) {
	client, server := net.Pipe() // a write ends when all of it was read
	defer server.Close()
	if err := server.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	say := func(text string) {
		t.Helper()
		if _, err := io.WriteString(server, text); err != nil {
			t.Fatalf("%q: %v", text, err)
		}
	}
	hear := func(want string) {
		t.Helper()
		for got, b := "", make([]byte, 1); !strings.HasSuffix(got, want); got += string(b) {
			if _, err := io.ReadFull(server, b); err != nil {
				t.Fatalf("%q after %q: %v", want, got, err)
			}
		}
	}
	opened := make(chan *link, 1)
	go func() {
		l, err := openLink(t.Context(), client, nil, "test", func(string) string { return "" })
		if err != nil {
			t.Error(err)
		}
		opened <- l
	}()
	say(`INFO {"max_payload": 100}` + "\r\n")
	hear("PING\r\n")
	say("PONG\r\n")
	l := <-opened
	l.deliverTo(new(buffers), func(int, []byte) {}, func(error) {})
	l.read()
	published := make(chan error, 1)
	go func() { published <- l.Publish("s", nil) }()
	hear("P") // while the rest is being written
	say("PING\r\n")
	say("+OK\r\n") // read only after everything before it was processed
	hear("UB s 0\r\n\r\nP")
	say("PING\r\n")
	say("+OK\r\n")
	hear("ONG\r\nPONG\r\n")
	if err := <-published; err != nil {
		t.Error(err)
	}
	l.Close()
}

// TestLinkWantsItsTLS: a link with TLS refuses a server without it, which may be an attacker in
// between.
func TestLinkWantsItsTLS(t *testing.T) {
	client, server := net.Pipe()
	defer server.Close()
	go func() { _, _ = io.WriteString(server, "INFO {\"max_payload\":100}\r\n") }()
	token := func(string) string { t.Error("the login was written"); return "" }
	if _, err := openLink(t.Context(), client, authority(t), "test", token); !errors.Is(err, nats.ErrSecureConnWanted) {
		t.Error(err)
	}
}

// TestTickets: only a holder of the secret can subscribe to tensors, and only to those for the
// rank, group and epoch that the ticket names.
func TestTickets(t *testing.T) {
	s := startServers(t, 1, nil)[0]
	tr := open(t, s, TransportConfig{Group: "g", Epoch: 4, Rank: 0, Size: 3})
	dialAs := func(token func(nonce string) string) (*link, error) {
		nc, err := net.Dial("tcp", s.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		l, err := openLink(t.Context(), nc, nil, "test", token)
		if err == nil {
			t.Cleanup(l.Close)
		}
		return l, err
	}
	at := s.Addr().String()
	secrets := func(s string) func() []string { return func() []string { return []string{s} } }
	ticket := func(u *users, addr string) func(string) string {
		return func(nonce string) string { return u.ticket("g", 4, 1, nonce, addr) }
	}
	good := ticket(s.users, at)
	dial := func() (*link, error) { return dialAs(good) }
	used := ""
	if _, err := dialAs(func(nonce string) string { used = good(nonce); return used }); err != nil {
		t.Fatal(err)
	}
	edit := func(old, new string) func(string) string {
		return func(nonce string) string { return strings.Replace(good(nonce), old, new, 1) }
	}
	for what, bad := range map[string]func(string) string{
		"nothing": func(string) string { return "" }, "a word": func(string) string { return "hear" },
		"rank": edit(".1.", ".2."), "epoch": edit(".4.", ".5."), "group": edit("g", "h"),
		"cut": func(nonce string) string { return good(nonce)[:len(used)-1] }, "a ticket that was used": func(string) string { return used },
		"secret": ticket(newUsers("shoal", secrets("other"), nil), at), "cluster": ticket(newUsers("other", secrets("s3"), nil), at),
		"a ticket for another listener": ticket(s.users, "127.0.0.1:1"),
	} {
		if _, err := dialAs(bad); err == nil {
			t.Errorf("%s: was let in", what)
		}
	}
	for _, foreign := range []string{"tp.shoal.g.4.p.2.*", "tp.shoal.g.5.b.0", "tp.shoal.>", ">"} {
		l, err := dial()
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(l.subscribe(foreign, 1), l.roundTrip()); !errors.Is(err, nats.ErrPermissionViolation) {
			t.Errorf("subscription to %s: %v", foreign, err)
		}
	}
	l, err := dial()
	if err != nil {
		t.Fatal(err)
	}
	reported := make(chan error, 1)
	l.deliverTo(&tr.pool, func(int, []byte) {}, func(err error) { reported <- err })
	l.read()
	if err := l.Publish("tp.shoal.g.4.b.0", nil); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-reported:
		if !errors.Is(err, nats.ErrPermissionViolation) {
			t.Errorf("a listener spoke: %v", err)
		}
	case <-time.After(patience):
		t.Error("a listener spoke")
	}

	// A peer that is admitted while the server shuts down finds no listener.
	late := good("nonce")
	if s.users.admit(late, "nonce") == nil {
		t.Error("the ticket was no good before")
	}
	s.Shutdown()
	if s.users.admit(late, "nonce") != nil {
		t.Error("a server without a listener admitted a peer")
	}
	if at := s.RouteAddr(); at != "" {
		t.Errorf("a server without a listener has routes at %s", at)
	}
}

// TestLinkReads: messages that a server may send, and messages that it must not send.
func TestLinkReads(t *testing.T) {
	big := strings.Repeat("x", 100000)
	for _, c := range []struct{ in, want, err string }{
		{"MSG a.b 0 3\r\nabc\r\nPING\r\nMSG a.b 1 reply 0\r\n\r\n+OK\r\nINFO {}\r\n", "0 abc|1 |", "EOF"},
		{"MSG a 12 " + fmt.Sprint(len(big)) + "\r\n" + big + "\r\n", "12 " + big + "|", "EOF"},
		{"MSG a 1 3\r\nabcd\r\n", "", "does not end"},
		{"MSG a 1 3\r\nab", "", "EOF"},
		{"MSG a 1 99999999\r\n", "", "not a message"},
		{"MSG a 1 -1\r\n", "", "not a message"},
		{"MSG a\r\n", "", "not a message"},
		{"-ERR 'Slow Consumer'\r\n", "", "Slow Consumer"},
		{big + "\r\n", "", "buffer full"},
	} {
		ours, theirs := net.Pipe()
		// wait for both before the server ends: a closed pipe accepts no deadline and no pong
		received, ponged := make(chan struct{}), make(chan struct{})
		go func() {
			defer theirs.Close()
			in := []byte("INFO {\"max_payload\":100}\r\n")
			buf := make([]byte, 4096)
			if _, err := theirs.Write(in); err != nil {
				return
			}
			for n := 0; !bytes.Contains(buf[:n], []byte("PING\r\n")); {
				k, err := theirs.Read(buf[n:])
				if err != nil {
					return
				}
				n += k
			}
			go func() { // reads the pong
				_, _ = io.ReadFull(theirs, buf[:len("PONG\r\n")])
				close(ponged)
			}()
			_, _ = theirs.Write([]byte("PONG\r\n"))
			<-received
			_, _ = theirs.Write([]byte(c.in))
			if strings.Contains(c.in, "PING\r\n") {
				<-ponged
			}
		}()
		l, err := openLink(context.Background(), ours, nil, "test", func(string) string { return "x" })
		if err != nil {
			t.Fatal(err)
		}
		close(received)
		got := ""
		reported := make(chan error, 1)
		l.deliverTo(new(buffers), func(sid int, msg []byte) { got += fmt.Sprintf("%d %s|", sid, msg) }, func(err error) { reported <- err })
		l.read()
		if err := <-reported; err == nil || !strings.Contains(err.Error(), c.err) {
			t.Errorf("%.40q: %v, want %s", c.in, err, c.err)
		}
		if got != c.want {
			t.Errorf("%.40q: delivered %.60q, want %.60q", c.in, got, c.want)
		}
		if err := l.Publish("a", make([]byte, 101)); !errors.Is(err, nats.ErrMaxPayload) {
			t.Errorf("too large: %v", err)
		}
		if err := l.Publish("a", nil); !errors.Is(err, nats.ErrConnectionClosed) {
			t.Errorf("after its end: %v", err)
		}
	}
}

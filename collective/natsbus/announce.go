package natsbus

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/shoal-llm/shoal/collective"
	"github.com/shoal-llm/shoal/internal/sys/openfiles"
)

// How ranks find one another. With embedded servers each rank sends the address of its process's
// server to every other rank over the mesh of routes, until the hello barrier completes. The receiver
// connects to that server and subscribes to the subjects of the rank. Its messages then cross one
// server. A route would take them across two, with six more goroutines. Routes carry all other traffic,
// and tensors of ranks whose server cannot be reached directly.

// peer is the connection over which this rank receives from another rank.
type peer struct {
	known bool  // it has announced its address
	link  *link // nil: not connected yet, or received over a route
}

// announce sends this rank's address to each of the ranks and requests theirs.
func (t *Transport) announce(ranks []int) {
	if t.server.ns == nil {
		return
	}
	for _, r := range ranks {
		t.sendAddr(r, replyRequested)
	}
}

func (t *Transport) sendAddr(dst int, flags byte) {
	if err := t.out.Publish(t.names.call(dst, t.cfg.Rank), t.helloMessage(flags, t.server.announcedAddr())); err != nil {
		t.fail(fmt.Errorf("%w: call: %w", ErrLost, err))
	}
}

// announced handles the address of rank src. Addresses from another incarnation of the group are
// ignored. If the placement differs, the hello barrier reports that to both sides.
func (t *Transport) announced(src int, msg []byte) {
	h, payload, bad := collective.ParseMessage(msg)
	t.mu.Lock()
	fits := !t.closed && t.admits(src, h, bad) && len(payload) >= helloBytes
	fresh := fits && !t.peers[src].known
	if fresh {
		t.peers[src].known = true
	}
	t.mu.Unlock()
	if !fits {
		return
	}
	if fresh {
		go t.connectTo(src, string(payload[helloBytes:]))
	}
	if payload[helloBytes-1]&replyRequested != 0 {
		t.sendAddr(src, 0)
	}
}

// connectTo opens the connection over which rank src is received from now on.
func (t *Transport) connectTo(src int, addr string) {
	var l *link
	err := errors.New("the rank announced no address")
	if addr != "" {
		l, err = t.reach(t.dialing, src, addr)
	}
	if err != nil { // fall back to a route
		t.server.cfg.Log.Debug("a rank is heard over a route", "rank", src, "server", addr, "error", err)
		if err := t.listen(t.names.from(src)...); err != nil {
			t.fail(fmt.Errorf("%w: rank %d: %w", ErrLost, src, err))
		} else if err := t.in.FlushTimeout(linkTimeout); err != nil {
			t.fail(fmt.Errorf("%w: rank %d: %w", ErrLost, src, err))
		}
		return
	}
	t.mu.Lock()
	t.peers[src].link = l
	closed := t.closed
	t.mu.Unlock()
	if closed {
		l.Close()
		return
	}
	l.deliverTo(&t.pool, func(sid int, msg []byte) {
		if isHello(msg) {
			t.hello(src, sid == subDirect, msg)
			return
		}
		t.deliver(src, msg)
	}, func(err error) {
		t.fail(&collective.OpError{Ranks: []int{src}, Err: collective.ErrPeerLost,
			Cause: fmt.Errorf("%w: connection to its server: %w", ErrLost, err)})
	})
	if !t.poller.add(l) {
		l.read()
	}
	// Send a hello now, so that neither side waits for its next round of hellos.
	t.mu.Lock()
	before := t.barrier.peers[src].received
	t.mu.Unlock()
	t.sendHellos([]hello{{src, before | replyRequested}})
}

// pipe connects to the embedded server without a socket.
func (s *Server) pipe(ctx context.Context, role string, p *server.Permissions) (*link, func(), error) {
	s.mu.Lock()
	closed := s.closed
	s.mu.Unlock()
	if closed {
		return nil, nil, fmt.Errorf("%w: connect as %s", ErrClosed, role)
	}
	token := s.users.mint(&server.User{Permissions: p})
	forget := func() { s.users.drop(token) }
	nc, err := s.ns.InProcessConn()
	var l *link
	if err == nil {
		l, err = openLink(ctx, nc, nil, s.cfg.Name+"/"+role, func(string) string { return token })
	}
	if err != nil {
		forget()
		return nil, nil, fmt.Errorf("natsbus: connect as %s: %w", role, err)
	}
	return l, forget, nil
}

// reach connects to the client listener of another rank's server and subscribes to the subjects of that
// rank. Messages then cross one server and no route.
func (t *Transport) reach(ctx context.Context, src int, addr string) (*link, error) {
	ctx, cancel := context.WithTimeout(ctx, linkTimeout)
	defer cancel()
	nc, err := openfiles.Dial(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	l, err := openLink(ctx, nc, t.server.dialTLS(addr),
		fmt.Sprintf("%s/rank-%s-%d-%d-hear", t.server.cfg.Name, t.cfg.Group, t.cfg.Epoch, t.cfg.Rank),
		func(nonce string) string {
			return t.server.users.ticket(t.cfg.Group, t.cfg.Epoch, t.cfg.Rank, nonce, addr)
		})
	if err != nil {
		return nil, err
	}
	for sid, subject := range t.names.from(src) {
		if err == nil {
			err = l.subscribe(subject, sid)
		}
	}
	if err == nil {
		err = l.roundTrip()
	}
	if err == nil {
		err = t.poller.adopt(l)
	}
	if err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

// dialTLS returns the TLS config for connections to another server's client listener. They are secured
// like those to this server's own.
func (s *Server) dialTLS(addr string) *tls.Config {
	if s.cfg.ClientTLS == nil {
		return nil
	}
	c := s.cfg.RouteTLS
	if c != nil && c.ServerName == "" {
		c = c.Clone()
		c.ServerName, _, _ = net.SplitHostPort(addr)
	}
	return c
}

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

// How ranks find one another. With embedded servers each rank tells each other
// one, over the mesh of routes, the address of its process's server, until the
// hello barrier is through. Who is told connects there and subscribes to what that
// rank says. What it says then crosses one server, where a route would take it
// across two, with six more goroutines. Routes stay for all else, and as the way
// for a rank whose server cannot be reached like this.

// peer is the way on which another rank is heard.
type peer struct {
	known bool  // it has said where it is heard
	link  *link // nil: not yet, or over a route
}

// call tells each of the ranks where this one is heard, and asks for the same.
func (t *Transport) call(ranks []int) {
	if t.server.ns == nil {
		return
	}
	for _, r := range ranks {
		t.say(r, ask)
	}
}

func (t *Transport) say(dst int, flags byte) {
	if err := t.out.Publish(t.names.call(dst, t.cfg.Rank), t.helloMessage(flags, t.server.heardAt())); err != nil {
		t.fail(fmt.Errorf("%w: call: %w", ErrLost, err))
	}
}

// called takes such a message. Ranks of another life of the group are refused; with
// another placement the barrier will say so, to both.
func (t *Transport) called(src int, msg []byte) {
	h, payload, bad := collective.ParseMessage(msg, true)
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
		go t.hear(src, string(payload[helloBytes:]))
	}
	if payload[helloBytes-1]&ask != 0 {
		t.say(src, 0)
	}
}

// hear opens the way on which rank src is heard from now on.
func (t *Transport) hear(src int, addr string) {
	var l *link
	err := errors.New("it gives no address")
	if addr != "" {
		l, err = t.reach(t.dialing, src, addr)
	}
	if err != nil { // over a route then
		t.server.cfg.Log.Debug("a rank is heard over a route", "rank", src, "server", addr, "why", err)
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
	l.hears(&t.pool, func(sid int, msg []byte) {
		if isHello(msg) {
			t.hello(src, sid == hearDirect, msg)
			return
		}
		t.take(src, msg)
	}, func(err error) {
		t.fail(&collective.OpError{Ranks: []int{src}, Err: collective.ErrPeerGone, Cause: fmt.Errorf("%w: connection to its server: %w", ErrLost, err)})
	})
	if !t.poller.add(l) {
		l.read()
	}
	// It need not wait for its next round of hellos, nor this rank for its own.
	t.mu.Lock()
	heard := t.greeter.pairs[src].heard
	t.mu.Unlock()
	t.greet([]greeting{{src, heard | ask}})
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

// reach connects to the client listener of another rank's server, to hear what
// that rank says: one server between the two, and no route.
func (t *Transport) reach(ctx context.Context, src int, addr string) (*link, error) {
	ctx, cancel := context.WithTimeout(ctx, linkTimeout)
	defer cancel()
	nc, err := openfiles.Dial(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	l, err := openLink(ctx, nc, t.server.dialTLS(addr), fmt.Sprintf("%s/rank-%s-%d-%d-hear", t.server.cfg.Name, t.cfg.Group, t.cfg.Epoch, t.cfg.Rank),
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

// dialTLS is how connections to the client listener of another server are secured, as
// those to this one's are.
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

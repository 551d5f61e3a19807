package httpserver

import (
	"context"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/shoal-llm/shoal/internal/sys/openfiles"
)

// connections bounds the number of open connections. Beyond the limit, the connection that has
// been idle longest is closed. If none is idle, a few more connections are accepted for brief
// routes (see brief); further ones are closed.
type connections struct {
	net.Listener
	limit, spare int
	reserve      *openfiles.Reserve

	mu   sync.Mutex
	open map[net.Conn]*connection
	turn uint64
}

type connection struct {
	idle  uint64 // when it began to wait for a request, in turns; 0: it carries one
	brief bool   // it was let in beyond the limit
}

func newConnections(l net.Listener, limit int) *connections {
	return &connections{Listener: l, limit: limit, spare: max(2, min(16, limit/4)),
		reserve: openfiles.NewReserve(), open: map[net.Conn]*connection{}}
}

func (c *connections) Close() error {
	c.reserve.Close()
	return c.Listener.Close()
}

func (c *connections) Accept() (net.Conn, error) {
	for {
		conn, err := c.Listener.Accept()
		if openfiles.Exhausted(err) {
			if !c.reserve.Take() && !c.evict(1) {
				time.Sleep(5 * time.Millisecond) // a file may be closed meanwhile
			}
			continue
		}
		if err != nil {
			return nil, err
		}
		c.reserve.Fill()
		if held := c.admit(conn); held != nil {
			return held, nil
		}
		_ = conn.Close()
	}
}

// admit counts a connection, or returns nil when there is no room for it.
func (c *connections) admit(conn net.Conn) net.Conn {
	c.evict(c.limit)
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.open) >= c.limit+c.spare {
		return nil
	}
	shortQueue(conn)
	held := &heldConn{Conn: conn, of: c}
	c.turn++
	c.open[held] = &connection{idle: c.turn, brief: len(c.open) >= c.limit}
	return held
}

// evict closes the connection that has been idle longest, if at least full connections are open.
func (c *connections) evict(full int) bool {
	c.mu.Lock()
	var oldest net.Conn
	if len(c.open) >= full {
		first := uint64(0)
		for conn, x := range c.open {
			if x.idle > 0 && (oldest == nil || x.idle < first) {
				oldest, first = conn, x.idle
			}
		}
	}
	c.mu.Unlock()
	if oldest == nil {
		return false
	}
	_ = oldest.Close()
	return true
}

// state follows net/http's state of a connection, which is new until its first request
// has been read.
func (c *connections) state(conn net.Conn, s http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	x := c.open[plain(conn)]
	switch {
	case x == nil:
	case s == http.StateActive:
		x.idle = 0
	case s == http.StateIdle:
		c.turn++
		x.idle = c.turn
	}
}

type connectionKey struct{}

// context marks the requests of a connection.
func (c *connections) context(ctx context.Context, conn net.Conn) context.Context {
	c.mu.Lock()
	defer c.mu.Unlock()
	return context.WithValue(ctx, connectionKey{}, c.open[plain(conn)])
}

// brief reports whether a request came by a connection beyond the limit, on which only brief
// routes answer.
func brief(r *http.Request) bool {
	x, _ := r.Context().Value(connectionKey{}).(*connection)
	return x != nil && x.brief
}

// plain returns the connection below TLS.
func plain(conn net.Conn) net.Conn {
	if t, ok := conn.(interface{ NetConn() net.Conn }); ok {
		return t.NetConn()
	}
	return conn
}

// heldConn leaves the count of connections when it is closed.
type heldConn struct {
	net.Conn
	of *connections
}

func (h *heldConn) Close() error {
	h.of.mu.Lock()
	delete(h.of.open, h)
	h.of.mu.Unlock()
	err := h.Conn.Close()
	h.of.reserve.Fill()
	return err
}

// CloseWrite lets net/http end an answer whose request it does not read to the end.
func (h *heldConn) CloseWrite() error {
	if c, ok := h.Conn.(interface{ CloseWrite() error }); ok {
		return c.CloseWrite()
	}
	return nil
}

// connectionLimit limits wanted to three quarters of the free file descriptors: caches, jobs and
// nodes need some too.
func connectionLimit(wanted, files, open int) int {
	if files <= 0 {
		return wanted
	}
	return max(4, min(wanted, (files-open)*3/4))
}

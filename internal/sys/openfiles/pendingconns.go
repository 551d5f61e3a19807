// Package openfiles divides the open files of a process, so that unauthenticated connections cannot
// use up all of them. Every connection is an open file.
//
// A listener holds at most MaxPendingConns unauthenticated connections (PendingConns). A Reserve keeps
// some files for the listener of the API.
package openfiles

import (
	"net"
	"sync"
)

// pendingPart: the unauthenticated connections of one listener may use 1/pendingPart of all
// files.
const (
	pendingPart = 16
	minPending  = 4
	maxPending  = 1024
)

// MaxPendingConns returns how many unauthenticated connections a listener may hold: a sixteenth of the
// files, from 4 to 1024.
func MaxPendingConns() int { return maxPendingOf(Limit()) }

func maxPendingOf(limit int) int {
	if limit == 0 {
		return maxPending
	}
	return max(minPending, min(limit/pendingPart, maxPending))
}

// PendingConns are the unauthenticated connections of a listener. Above the limit the oldest is
// closed: a legitimate peer authenticates within moments, so the oldest is an idle one.
type PendingConns struct {
	most  int
	mu    sync.Mutex
	byAge []*PendingConn // the oldest first
}

// NewPendingConns returns a set with a limit of connections.
func NewPendingConns(most int) *PendingConns { return &PendingConns{most: most} }

// PendingConn is a connection that counts until it is closed or authenticated.
type PendingConn struct {
	net.Conn
	of *PendingConns
}

// Admit counts a connection. The caller uses the returned one instead of c.
func (s *PendingConns) Admit(c net.Conn) *PendingConn {
	in := &PendingConn{c, s}
	s.mu.Lock()
	s.byAge = append(s.byAge, in)
	var out *PendingConn
	if len(s.byAge) > s.most {
		out, s.byAge = s.byAge[0], s.byAge[1:]
	}
	s.mu.Unlock()
	if out != nil {
		_ = out.Conn.Close()
	}
	return in
}

// Authenticated stops counting a connection whose peer has authenticated.
func (c *PendingConn) Authenticated() {
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	for i, x := range c.of.byAge {
		if x == c {
			c.of.byAge = append(c.of.byAge[:i:i], c.of.byAge[i+1:]...)
			return
		}
	}
}

// Close closes the connection.
func (c *PendingConn) Close() error {
	c.Authenticated()
	return c.Conn.Close()
}

// Package openfiles divides the open files of a process, so that unauthenticated connections cannot
// use up all of them. Every connection is an open file.
//
// A listener holds at most MaxStrangers unauthenticated connections (Strangers). A Reserve keeps
// some files for the listener of the API.
package openfiles

import (
	"net"
	"sync"
)

// strangersPart: the unauthenticated connections of one listener may use 1/strangersPart of all
// files.
const (
	strangersPart = 16
	fewStrangers  = 4
	manyStrangers = 1024
)

// MaxStrangers returns how many unauthenticated connections a listener may hold: a sixteenth of the
// files, from 4 to 1024.
func MaxStrangers() int { return strangersOf(Limit()) }

func strangersOf(limit int) int {
	if limit == 0 {
		return manyStrangers
	}
	return max(fewStrangers, min(limit/strangersPart, manyStrangers))
}

// Strangers are the unauthenticated connections of a listener. Above the limit the oldest is
// closed: a legitimate peer authenticates within moments, so the oldest is an idle one.
type Strangers struct {
	most  int
	mu    sync.Mutex
	byAge []*Stranger // the oldest first
}

// NewStrangers returns a set with a limit of connections.
func NewStrangers(most int) *Strangers { return &Strangers{most: most} }

// Stranger is a connection that counts until it is closed or trusted.
type Stranger struct {
	net.Conn
	of *Strangers
}

// Admit counts a connection. The caller uses the returned one instead of c.
func (s *Strangers) Admit(c net.Conn) *Stranger {
	in := &Stranger{c, s}
	s.mu.Lock()
	s.byAge = append(s.byAge, in)
	var out *Stranger
	if len(s.byAge) > s.most {
		out, s.byAge = s.byAge[0], s.byAge[1:]
	}
	s.mu.Unlock()
	if out != nil {
		_ = out.Conn.Close()
	}
	return in
}

// Trust stops counting a connection whose peer has authenticated.
func (c *Stranger) Trust() {
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
func (c *Stranger) Close() error {
	c.Trust()
	return c.Conn.Close()
}

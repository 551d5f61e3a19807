// Package openfiles divides the files that a process may open, so that connections of strangers
// do not take those of everything else. Every open connection is a file.
//
// A listener holds at most MaxStrangers connections that have not proved who they are
// (Strangers). A Reserve keeps some files for the listener of the API.
package openfiles

import (
	"net"
	"sync"
)

// strangersPart is the part of all files that the strangers of one listener may take.
const (
	strangersPart = 16
	fewStrangers  = 4
	manyStrangers = 1024
)

// MaxStrangers is how many connections a listener may hold that have not proved who they are: a
// sixteenth of the files, from 4 to 1024.
func MaxStrangers() int { return strangersOf(Limit()) }

func strangersOf(limit int) int {
	if limit == 0 {
		return manyStrangers
	}
	return max(fewStrangers, min(limit/strangersPart, manyStrangers))
}

// Strangers are the connections of a listener that have not proved who they are. When one more
// comes than there may be, the oldest is closed: a peer proves itself within moments, and a
// connection that idles is the oldest soon.
type Strangers struct {
	most  int
	mu    sync.Mutex
	byAge []*Stranger // the oldest first
}

// NewStrangers holds at most that many connections.
func NewStrangers(most int) *Strangers { return &Strangers{most: most} }

// Stranger is a connection that counts until it is closed or trusted.
type Stranger struct {
	net.Conn
	of *Strangers
}

// Admit counts a connection. Use the result in its place.
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

// Trust ends the count of a connection whose peer has proved who it is.
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

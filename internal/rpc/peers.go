package rpc

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
)

// Peer is the process that completed the handshake at an address.
type Peer struct {
	Address     string
	ID          string
	Role        string
	Incarnation uint64
	Version     uint32 // newest wire version that both sides support
	Build       string
}

// link is a known peer, until the connection to it is lost.
type link struct{ peer Peer }

// outbox counts the queued messages of one address's connection. Proto.Actor's own queue is
// unbounded, so the bound is enforced where messages enter it.
type outbox struct{ messages, bytes atomic.Int64 }

// reserve reserves space for one message of n bytes.
func (o *outbox) reserve(n, maxMessages, maxBytes int64) bool {
	if o.messages.Add(1) <= maxMessages {
		if o.bytes.Add(n) <= maxBytes {
			return true
		}
		o.bytes.Add(-n)
	}
	o.messages.Add(-1)
	return false
}

func (o *outbox) release(messages, bytes int64) {
	o.messages.Add(-messages)
	o.bytes.Add(-bytes)
}

// peers holds the links by address. Concurrent first contacts share one handshake.
type peers struct {
	mu         sync.Mutex
	links      map[string]*link
	inProgress map[string]*handshake
}

type handshake struct {
	done chan struct{}
	link *link
	err  error
}

func (p *peers) get(address string) *link {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.links[address]
}

// drop removes a link. The next message performs a new handshake.
func (p *peers) drop(address string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.links, address)
}

// connect returns the link to address and performs the handshake if there is none.
func (p *peers) connect(ctx context.Context, address string, shake func(context.Context, string) (Peer, error)) (*link, error) {
	for {
		p.mu.Lock()
		if l := p.links[address]; l != nil {
			p.mu.Unlock()
			return l, nil
		}
		g, going := p.inProgress[address]
		if !going {
			g = &handshake{done: make(chan struct{})}
			if p.inProgress == nil {
				p.inProgress, p.links = map[string]*handshake{}, map[string]*link{}
			}
			p.inProgress[address] = g
		}
		p.mu.Unlock()
		if !going {
			p.handshake(ctx, address, g, shake)
			return g.link, g.err
		}
		select {
		case <-g.done:
			// The caller that performed the handshake may have had an earlier deadline.
			if g.err == nil || !expired(g.err) || ctx.Err() != nil {
				return g.link, g.err
			}
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (p *peers) handshake(ctx context.Context, address string, g *handshake, shake func(context.Context, string) (Peer, error)) {
	peer, err := shake(ctx, address)
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.inProgress, address)
	if err != nil {
		g.err = err
	} else {
		g.link = &link{peer: peer}
		p.links[address] = g.link
	}
	close(g.done)
}

func expired(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
}

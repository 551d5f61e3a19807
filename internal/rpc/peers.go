package rpc

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
)

// Peer is who answered the handshake at an address.
type Peer struct {
	Address     string
	ID          string
	Role        string
	Incarnation uint64
	Version     uint32 // newest wire version that both speak
	Build       string
}

// link is an acquaintance that lasts until the connection is lost.
type link struct{ peer Peer }

// outbox counts what waits for one address's connection. Proto.Actor's own
// queue grows without bound, so the bound is kept where messages enter it.
type outbox struct{ messages, bytes atomic.Int64 }

// reserve takes room for one message of n bytes.
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

// peers holds the links by address. Concurrent first contacts share one
// handshake.
type peers struct {
	mu    sync.Mutex
	links map[string]*link
	going map[string]*greeting
}

type greeting struct {
	done chan struct{}
	link *link
	err  error
}

func (p *peers) get(address string) *link {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.links[address]
}

// drop forgets a link; the next message greets again.
func (p *peers) drop(address string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.links, address)
}

// meet returns the link to address, greeting if there is none.
func (p *peers) meet(ctx context.Context, address string, greet func(context.Context, string) (Peer, error)) (*link, error) {
	for {
		p.mu.Lock()
		if l := p.links[address]; l != nil {
			p.mu.Unlock()
			return l, nil
		}
		g, going := p.going[address]
		if !going {
			g = &greeting{done: make(chan struct{})}
			if p.going == nil {
				p.going, p.links = map[string]*greeting{}, map[string]*link{}
			}
			p.going[address] = g
		}
		p.mu.Unlock()
		if !going {
			p.greet(ctx, address, g, greet)
			return g.link, g.err
		}
		select {
		case <-g.done:
			// The one who greeted may have had less patience than this caller.
			if g.err == nil || !expired(g.err) || ctx.Err() != nil {
				return g.link, g.err
			}
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (p *peers) greet(ctx context.Context, address string, g *greeting, greet func(context.Context, string) (Peer, error)) {
	peer, err := greet(ctx, address)
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.going, address)
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

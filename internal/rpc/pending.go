package rpc

import (
	"sync"

	"github.com/shoal-llm/shoal/internal/proto"
)

// result is the outcome of one attempt of a call.
type result struct {
	reply *proto.Envelope
	err   error
}

// pending holds the calls that wait for a reply, by request number.
type pending struct {
	mu    sync.Mutex
	calls map[uint64]*waiter
}

// waiter is one attempt. It accepts only a reply from that peer and incarnation.
type waiter struct {
	peer Peer
	done chan result // capacity 1; the first result wins
}

func (p *pending) add(request uint64, peer Peer) *waiter {
	w := &waiter{peer: peer, done: make(chan result, 1)}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.calls == nil {
		p.calls = map[uint64]*waiter{}
	}
	p.calls[request] = w
	return w
}

func (p *pending) remove(request uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.calls, request)
}

// complete passes a reply to its call and reports whether there was one. Two kinds of reply can
// carry the request number of an unrelated call: one to an earlier incarnation of this process
// (numbers start at random, which does not exclude it), and a late one from a peer that has
// restarted.
func (p *pending) complete(incarnation uint64, e *proto.Envelope) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	w, ok := p.calls[e.Request]
	if !ok || e.To != incarnation || e.Incarnation != w.peer.Incarnation || e.From != w.peer.ID {
		return false
	}
	return w.finish(result{reply: e})
}

// fail ends every call to an address with err.
func (p *pending) fail(address string, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, w := range p.calls {
		if address == "" || w.peer.Address == address {
			w.finish(result{err: err})
		}
	}
}

func (w *waiter) finish(r result) bool {
	select {
	case w.done <- r:
		return true
	default:
		return false
	}
}

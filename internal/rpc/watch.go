package rpc

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"github.com/asynkron/protoactor-go/remote"
	"google.golang.org/grpc"

	"github.com/shoal-llm/shoal/internal/proto"
)

// PeerDown is sent to the actor that watches an address, once per Watch.
type PeerDown struct {
	Peer   Peer   // the watched process, or the first one that answered
	Reason string // for display
	// Restarted: the address answers with another incarnation.
	Restarted bool
}

// Watch sends one *PeerDown to the local actor when a peer dies, freezes, restarts, or
// cannot be reached within three times ConnectTimeout. peer is identified by Address and
// Incarnation (0: the first process that answers there). The kernel closes the connection
// of a dead process within about a millisecond. Keepalive detects a dead machine or
// a frozen process after 13 s, unless PeerLost reports it earlier.
//
// Before it reports, the watch pings the address over a new connection. If the same
// incarnation answers, the alarm was false and the watch continues. stop ends the
// watch without a report and may be called at any time.
func (s *System) Watch(peer Peer, to *actor.PID) (stop func(), err error) {
	if !s.begin() {
		return nil, ErrClosed
	}
	ctx, cancel := context.WithCancel(s.ctx)
	w := newWatch()
	address := peer.Address
	s.watches.add(address, w)
	go func() {
		defer s.wg.Done()
		defer cancel()
		defer s.watches.remove(address, w)
		if down := s.observe(ctx, peer, w); down != nil && ctx.Err() == nil {
			s.log.Debug("peer down", "address", address, "id", down.Peer.ID, "reason", down.Reason)
			s.actors.EventStream.Publish(&remote.EndpointTerminatedEvent{Address: address})
			s.actors.Root.Send(to, down)
		}
	}()
	return cancel, nil
}

// observe returns when the peer is down, or returns nil when ctx ends.
func (s *System) observe(ctx context.Context, known Peer, w *watch) *PeerDown {
	address := known.Address
	begun := time.Now()
	for {
		p, cause := s.holdWatch(ctx, address, &known, w)
		switch {
		case ctx.Err() != nil:
			return nil
		case known.Incarnation != 0 && p.Incarnation != 0 && p.Incarnation != known.Incarnation:
			return &PeerDown{Peer: known, Restarted: true, Reason: fmt.Sprintf("restarted as incarnation %d", p.Incarnation)}
		case !w.hasAnswered():
			if time.Since(begun) > 3*s.cfg.ConnectTimeout {
				return &PeerDown{Peer: known, Reason: "never answered: " + cause.Error()}
			}
			pause(ctx, 50*time.Millisecond)
			continue
		}
		probe, cancel := context.WithTimeout(ctx, s.cfg.ProbeTimeout)
		p, err := s.Hello(probe, address)
		cancel()
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return &PeerDown{Peer: known, Reason: fmt.Sprintf("%v, and it does not answer: %v", cause, err)}
		case p.Incarnation != known.Incarnation:
			return &PeerDown{Peer: known, Restarted: true, Reason: fmt.Sprintf("restarted as incarnation %d", p.Incarnation)}
		}
		s.log.Debug("false alarm about a peer", "address", address, "id", p.ID, "cause", cause)
		pause(ctx, 10*time.Millisecond) // limits the rate of this loop if a peer flaps
	}
}

var errReported = errors.New("another source reported it dead")

// holdWatch holds a watch stream open until it breaks or an alarm arrives. The first answer fills
// known. A later answer from another process is returned immediately.
func (s *System) holdWatch(ctx context.Context, address string, known *Peer, w *watch) (Peer, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	cc, err := s.connect(address)
	if err != nil {
		return Peer{}, err
	}
	defer cc.Close()
	patience := time.AfterFunc(s.timeout(w), cancel)
	defer patience.Stop()
	stream, err := cc.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, watchMethod)
	if err != nil {
		return Peer{}, s.explain(address, err)
	}
	if err := errors.Join(stream.SendMsg(s.hello()), stream.CloseSend()); err != nil {
		return Peer{}, fmt.Errorf("%w: %s: %w", ErrUnreachable, address, err)
	}
	var e proto.Envelope
	if err := stream.RecvMsg(&e); err != nil {
		return Peer{}, s.explain(address, err)
	}
	p, err := checkHello(&e, "")
	p.Address = address
	if err != nil {
		return Peer{}, err
	}
	if !w.confirm(known, p) {
		return p, nil
	}
	patience.Stop()
	broke := make(chan error, 1)
	s.wg.Go(func() {
		broke <- stream.RecvMsg(&e)
	})
	select {
	case err := <-broke:
		return p, fmt.Errorf("its connection broke: %w", err)
	case <-w.alarm:
		return p, errReported
	case <-ctx.Done():
		return p, ctx.Err()
	}
}

// timeout returns ProbeTimeout for a peer that has answered before: if it froze between a false
// alarm and the reconnect, ConnectTimeout would delay the report.
func (s *System) timeout(w *watch) time.Duration {
	if w.hasAnswered() {
		return s.cfg.ProbeTimeout
	}
	return s.cfg.ConnectTimeout
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// watches holds the watches by address, to wake them.
type watches struct {
	mu sync.Mutex
	by map[string]map[*watch]struct{}
}

type watch struct {
	alarm    chan struct{} // capacity 1
	answered chan struct{} // closed at the peer's first answer
}

func newWatch() *watch { return &watch{alarm: make(chan struct{}, 1), answered: make(chan struct{})} }

// confirm records which process answered and reports whether it is the watched one.
func (w *watch) confirm(known *Peer, p Peer) bool {
	if known.Incarnation == 0 {
		*known = p
	}
	if p.Incarnation != known.Incarnation {
		return false
	}
	if !w.hasAnswered() {
		close(w.answered)
	}
	return true
}

func (w *watch) hasAnswered() bool {
	select {
	case <-w.answered:
		return true
	default:
		return false
	}
}

func (ws *watches) add(address string, w *watch) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if ws.by == nil {
		ws.by = map[string]map[*watch]struct{}{}
	}
	if ws.by[address] == nil {
		ws.by[address] = map[*watch]struct{}{}
	}
	ws.by[address][w] = struct{}{}
}

func (ws *watches) remove(address string, w *watch) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	delete(ws.by[address], w)
	if len(ws.by[address]) == 0 {
		delete(ws.by, address)
	}
}

func (ws *watches) kick(address string) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	for w := range ws.by[address] {
		select {
		case w.alarm <- struct{}{}:
		default:
		}
	}
}

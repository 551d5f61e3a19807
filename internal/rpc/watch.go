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

// PeerDown is sent to the actor that watches an address, once a Watch.
type PeerDown struct {
	Peer   Peer   // whom the watch was about, or who answered first
	Reason string // for people
	// Restarted: the address answers, but as another incarnation.
	Restarted bool
}

// Watch sends one *PeerDown to the local actor when peer, a process by its Address
// and Incarnation (0: whoever answers there first), dies, freezes, restarts, or
// cannot be reached within 3 ConnectTimeouts. A dead process is noticed by the
// kernel closing its connection (about a millisecond); a dead machine or a frozen
// process by keepalive (13 s) unless PeerGone says so earlier.
//
// Before it reports, the watch pings the address back over a new connection:
// while the same incarnation still answers, the alarm was false and the watch
// goes on. stop ends the watch without a report; it may be called at any time.
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

// observe returns when the peer is down, or nil when ctx ends.
func (s *System) observe(ctx context.Context, known Peer, w *watch) *PeerDown {
	address := known.Address
	begun := time.Now()
	for {
		p, cause := s.stayWith(ctx, address, &known, w)
		switch {
		case ctx.Err() != nil:
			return nil
		case known.Incarnation != 0 && p.Incarnation != 0 && p.Incarnation != known.Incarnation:
			return &PeerDown{Peer: known, Restarted: true, Reason: fmt.Sprintf("restarted as incarnation %d", p.Incarnation)}
		case !w.hasMet():
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
			return &PeerDown{Peer: known, Reason: fmt.Sprintf("%v; and it does not answer: %v", cause, err)}
		case p.Incarnation != known.Incarnation:
			return &PeerDown{Peer: known, Restarted: true, Reason: fmt.Sprintf("restarted as incarnation %d", p.Incarnation)}
		}
		s.log.Debug("false alarm about a peer", "address", address, "id", p.ID, "cause", cause)
		pause(ctx, 10*time.Millisecond) // a peer that flaps must not make this loop spin
	}
}

var errReported = errors.New("it was reported gone")

// stayWith holds a watch stream open until it breaks or an alarm comes. The
// first answer fills known; a later different one is returned at once.
func (s *System) stayWith(ctx context.Context, address string, known *Peer, w *watch) (Peer, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	cc, err := s.connect(address)
	if err != nil {
		return Peer{}, err
	}
	defer cc.Close()
	patience := time.AfterFunc(s.patience(w), cancel)
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
	p, err := meetHello(&e, "")
	p.Address = address
	if err != nil {
		return Peer{}, err
	}
	if !w.meet(known, p) {
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

// patience is shorter with a peer that has answered before: one that froze
// between a false alarm and the reconnect should not get ConnectTimeout.
func (s *System) patience(w *watch) time.Duration {
	if w.hasMet() {
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

// watches holds the watches by address, to be alarmed.
type watches struct {
	mu sync.Mutex
	by map[string]map[*watch]struct{}
}

type watch struct {
	alarm chan struct{} // holds one
	met   chan struct{} // closed when the peer has answered for the first time
}

func newWatch() *watch { return &watch{alarm: make(chan struct{}, 1), met: make(chan struct{})} }

// meet is told who answered, and whether it is whom the watch is about.
func (w *watch) meet(known *Peer, p Peer) bool {
	if known.Incarnation == 0 {
		*known = p
	}
	if p.Incarnation != known.Incarnation {
		return false
	}
	if !w.hasMet() {
		close(w.met)
	}
	return true
}

func (w *watch) hasMet() bool {
	select {
	case <-w.met:
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

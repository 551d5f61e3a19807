package rpc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	pb "google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/shoal-llm/shoal/internal/proto"
)

type options struct {
	idempotent bool
	attempt    time.Duration
}

type Option func(*options)

// Idempotent declares that the receiver may process this request more than once with the same
// effect. The call is then retried, with the same request number and growing pauses, until the
// context ends. It retries if the peer is unreachable or lost, if its queue is full, and if an
// attempt gets no reply within attempt (0: 2 s).
func Idempotent(attempt time.Duration) Option {
	return func(o *options) {
		o.idempotent = true
		o.attempt = attempt
		o.attempt = cmp.Or(o.attempt, 2*time.Second)
	}
}

// Call sends payload to an actor, waits for the reply and decodes it into reply
// (nil: the reply's payload is ignored). It ends with the context, or after
// Config.CallTimeout if the context has no deadline.
//
// Errors: ErrUnreachable (nothing was sent), ErrPeerLost and ErrTimeout (the
// peer may have acted), ErrBusy, ErrVersion, ErrTooLarge, ErrClosed, or a
// *RemoteError with the error of the handler.
func (s *System) Call(ctx context.Context, to *actor.PID, kind uint32, payload, reply pb.Message, opts ...Option) error {
	var o options
	for _, f := range opts {
		f(&o)
	}
	if !s.begin() {
		return ErrClosed
	}
	defer s.wg.Done()
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, s.cfg.CallTimeout)
		defer cancel()
	}
	m, err := encode(kind, payload)
	if err != nil {
		return err
	}
	request := s.requests.Add(1)
	if request == 0 { // 0: no reply is sent
		request = s.requests.Add(1)
	}
	pause := 5 * time.Millisecond
	for {
		answer, err := s.attempt(ctx, to, m, request, &o)
		if err == nil {
			return decodeReply(answer, reply)
		}
		if !o.idempotent || !retryable(err) {
			return err
		}
		select {
		case <-time.After(pause):
			pause = min(2*pause, 250*time.Millisecond)
		case <-ctx.Done():
			return err
		case <-s.ctx.Done():
			return ErrClosed
		}
	}
}

func (s *System) attempt(ctx context.Context, to *actor.PID, m *message, request uint64, o *options) (*proto.Envelope, error) {
	if o.attempt > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, o.attempt)
		defer cancel()
	}
	l, err := s.connectTo(ctx, to.Address)
	if err != nil {
		return nil, err
	}
	if err := m.fits(&l.peer); err != nil {
		return nil, err
	}
	w := s.calls.add(request, l.peer)
	defer s.calls.remove(request)
	// The peer may have been lost between connectTo and add, unseen by both.
	if to.Address != s.address && s.peers.get(to.Address) != l {
		return nil, fmt.Errorf("%w: the connection to %s broke before the message was sent", ErrUnreachable, to.Address)
	}
	if err := s.transmit(to, s.envelope(l.peer.Version, m.kind, request, m.body, l.peer.Incarnation)); err != nil {
		return nil, err
	}
	select {
	case r := <-w.done:
		if r.err != nil {
			return nil, r.err
		}
		if r.reply.Error != "" {
			return nil, &RemoteError{Peer: r.reply.From, Text: r.reply.Error}
		}
		return r.reply, nil
	case <-ctx.Done():
		if errors.Is(ctx.Err(), context.Canceled) {
			return nil, ctx.Err()
		}
		return nil, fmt.Errorf("%w: kind %d to %s at %s: %w", ErrTimeout, m.kind, to.Id, to.Address, ctx.Err())
	case <-s.ctx.Done():
		return nil, ErrClosed
	}
}

// Send sends payload without a reply. It waits only for the first handshake with that address. A
// nil error means that the message was queued, not that it arrived.
func (s *System) Send(ctx context.Context, to *actor.PID, kind uint32, payload pb.Message) error {
	m, err := encode(kind, payload)
	if err != nil {
		return err
	}
	l, err := s.connectTo(ctx, to.Address)
	if err != nil {
		return err
	}
	if err := m.fits(&l.peer); err != nil {
		return err
	}
	return s.transmit(to, s.envelope(l.peer.Version, kind, 0, m.body, l.peer.Incarnation))
}

// connectTo returns the link to an address. The first call performs the handshake.
func (s *System) connectTo(ctx context.Context, address string) (*link, error) {
	if address == s.address {
		return &link{peer: s.self()}, nil
	}
	l, err := s.peers.connect(ctx, address, s.Hello)
	switch {
	case err == nil:
		return l, nil
	case s.ctx.Err() != nil:
		return nil, ErrClosed
	case expired(err) && !errors.Is(err, ErrUnreachable):
		return nil, fmt.Errorf("%w: %s did not complete the handshake in time: %w", ErrUnreachable, address, err)
	}
	return nil, err
}

func (s *System) self() Peer {
	return Peer{Address: s.address, ID: s.cfg.ID, Role: s.cfg.Role, Incarnation: s.cfg.Incarnation, Version: Version, Build: s.cfg.Build}
}

// envelope wraps a payload in a wire version that the receiver reads.
func (s *System) envelope(version, kind uint32, request uint64, body []byte, to uint64) *proto.Envelope {
	return &proto.Envelope{
		Version: version, Kind: kind, Request: request,
		Incarnation: s.cfg.Incarnation, From: s.cfg.ID, Payload: body, To: to,
	}
}

// transmit sends an envelope, which the caller must not change afterwards.
func (s *System) transmit(to *actor.PID, e *proto.Envelope) error {
	sender := actor.NewPID(s.address, replies)
	if to.Address == s.address {
		if s.ctx.Err() != nil {
			return ErrClosed
		}
		s.deliver(to.Id, e, sender) // may send a reply, so it must not run under the gate
		return nil
	}
	s.gate.RLock()
	defer s.gate.RUnlock()
	if s.closed {
		return ErrClosed
	}
	o, _ := s.outboxes.LoadOrStore(to.Address, &outbox{})
	if !o.(*outbox).reserve(int64(pb.Size(e)), s.cfg.QueueMessages, s.cfg.QueueBytes) {
		return fmt.Errorf("%w: the send queue to %s is full", ErrBusy, to.Address)
	}
	s.actors.Root.RequestWithCustomSender(to, e, sender)
	return nil
}

// answer replies to a request. For a one-way message it does nothing.
func (s *System) answer(to *actor.PID, request *proto.Envelope, payload []byte, failure error) error {
	if request.Request == 0 || to == nil {
		return nil
	}
	// Reply in the version of the request. If this build cannot write that version, use the nearest
	// one.
	version := min(max(request.Version, MinVersion), Version)
	e := s.envelope(version, request.Kind, request.Request, payload, request.Incarnation)
	if failure != nil {
		e.Payload, e.Error = nil, errText(failure)
	}
	return s.transmit(to, e)
}

// message is an encoded payload.
type message struct {
	kind  uint32
	body  []byte
	needs uint32 // wire version that introduced its newest field; 0: any
	field protoreflect.FullName
}

func encode(kind uint32, m pb.Message) (*message, error) {
	if m == nil {
		return &message{kind: kind}, nil
	}
	body, err := pb.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("rpc: kind %d: %w", kind, err)
	}
	if len(body) > MaxPayload {
		return nil, fmt.Errorf("kind %d: %w", kind, tooLarge(len(body)))
	}
	e := &message{kind: kind, body: body}
	e.needs, e.field = proto.Needs(m)
	return e, nil
}

// fits returns an error if an older peer would silently drop a field of the message.
func (m *message) fits(p *Peer) error {
	if m.needs > p.Version {
		return fmt.Errorf("%w: %s (build %.96s) has wire version %d, but %s needs version %d", ErrVersion,
			p.ID, p.Build, p.Version, m.field, m.needs)
	}
	return nil
}

func decodeReply(e *proto.Envelope, into pb.Message) error {
	if into == nil {
		return nil
	}
	if err := pb.Unmarshal(e.Payload, into); err != nil {
		return fmt.Errorf("%w: reply of %s to kind %d: %v", ErrBadPayload, e.From, e.Kind, err)
	}
	return understood(into, e)
}

package rpc

import (
	"fmt"
	"sync/atomic"

	"github.com/asynkron/protoactor-go/actor"
	pb "google.golang.org/protobuf/proto"

	"github.com/shoal-llm/shoal/internal/proto"
)

// Mux dispatches envelopes to the handler of their kind. Register handlers before the actor starts;
// afterwards a Mux is read-only and may be shared.
type Mux struct {
	sys      *System
	handlers map[uint32]handler
}

type handler struct {
	decode func(*Ctx) error // decodes the payload and calls the handler
}

// NewMux returns a Mux whose handlers reply through s.
func NewMux(s *System) *Mux { return &Mux{sys: s, handlers: map[uint32]handler{}} }

// Handle registers h for a kind whose payload is a T. A payload with unknown fields is refused with
// ErrIncompatible, unless it is a report (package proto). Handle panics if the kind is
// below FirstKind or already registered; both are programming errors.
//
// A handler runs in its actor and must not block. It answers with Reply or Fail,
// immediately or later, from any goroutine. A request without an answer ends at the
// caller's deadline. If h panics, the caller gets an error and the actor's supervisor
// decides how to continue.
func Handle[T any, M interface {
	*T
	pb.Message
}](m *Mux, kind uint32, h func(c *Ctx, msg M)) {
	if kind < FirstKind {
		panic(fmt.Sprintf("rpc: kind %d is reserved; the first free one is %d", kind, FirstKind))
	}
	if _, taken := m.handlers[kind]; taken {
		panic(fmt.Sprintf("rpc: kind %d has two handlers", kind))
	}
	m.handlers[kind] = handler{decode: func(c *Ctx) error {
		msg := M(new(T))
		if err := pb.Unmarshal(c.envelope.Payload, msg); err != nil {
			return fmt.Errorf("%w: kind %d from %s: %v", ErrBadPayload, kind, c.envelope.From, err)
		}
		if err := understood(msg, c.envelope); err != nil {
			return err
		}
		h(c, msg)
		return nil
	}}
}

// Receive handles the actor's current message and reports whether it was an envelope.
func (m *Mux) Receive(a actor.Context) bool {
	e, ok := a.Message().(*proto.Envelope)
	if !ok {
		return false
	}
	c := &Ctx{Actor: a, sys: m.sys, envelope: e, sender: a.Sender()}
	h, ok := m.handlers[e.Kind]
	if !ok {
		c.Fail(fmt.Errorf("%w %d (peer speaks version %d): %s has no handler for it; is it an older build?",
			ErrUnknownKind, e.Kind, Version, a.Self().Id))
		return true
	}
	defer func() {
		if p := recover(); p != nil {
			c.Fail(fmt.Errorf("%w: kind %d at %s: %v", ErrPanic, e.Kind, m.sys.cfg.ID, p))
			panic(p)
		}
	}()
	if err := h.decode(c); err != nil {
		c.Fail(err)
	}
	return true
}

// understood returns an error if the payload has fields unknown to this build. Without them the handler
// could do something else than the sender meant.
func understood(m pb.Message, e *proto.Envelope) error {
	if err := proto.Unknown(m); err != nil {
		return fmt.Errorf("%w: %w (this build reads wire versions %d to %d, %s wrote version %d)", ErrIncompatible,
			err, MinVersion, Version, e.From, e.Version)
	}
	return nil
}

// Ctx is one received message and its reply.
type Ctx struct {
	// Actor is the context of the receiving actor. It is valid only during the handler.
	Actor    actor.Context
	sys      *System
	envelope *proto.Envelope
	sender   *actor.PID
	answered atomic.Bool
}

// Reply answers the call. Only the first answer counts. For a one-way message it does nothing.
func (c *Ctx) Reply(m pb.Message) error {
	e, err := encode(c.envelope.Kind, m)
	if err != nil {
		c.Fail(err)
		return err
	}
	if !c.answered.CompareAndSwap(false, true) {
		return nil
	}
	return c.sys.answer(c.sender, c.envelope, e.body, nil)
}

// Fail answers the call with an error, sent as text (see RemoteError).
func (c *Ctx) Fail(err error) {
	if !c.answered.CompareAndSwap(false, true) {
		return
	}
	if sent := c.sys.answer(c.sender, c.envelope, nil, err); sent != nil && c.sys.ctx.Err() == nil {
		c.sys.log.Warn("sending a reply failed", "to", c.envelope.From, "error", sent, "reply_error", err)
	}
}

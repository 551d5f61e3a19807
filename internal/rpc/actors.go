package rpc

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/shoal-llm/shoal/internal/proto"
)

// replies is the actor name that replies are addressed to. No actor has it.
const replies = "rpc.replies"

// box bounds one actor's mailbox. Proto.Actor's own bounded mailbox makes the sender spin when it
// is full, so one slow actor could stall a peer's whole connection. Here the mailbox is unbounded,
// and messages beyond the limit are refused with an error to the caller.
type box struct {
	pid     *actor.PID
	waiting atomic.Int64
	limit   int64
}

func (b *box) reserve() bool {
	if b.waiting.Add(1) <= b.limit {
		return true
	}
	b.waiting.Add(-1)
	return false
}

// Spawn starts an actor that peers reach under name. It receives *proto.Envelope messages (see Mux)
// besides Proto.Actor's own. Config.MailboxLimit bounds its mailbox. props decide the supervision.
func (s *System) Spawn(name string, props *actor.Props) (*actor.PID, error) {
	if name == "" || name == replies || len(name) > maxName {
		return nil, fmt.Errorf("rpc: actor name %q: it must have 1 to %d bytes and not be %q", name, maxName, replies)
	}
	s.gate.RLock()
	defer s.gate.RUnlock()
	if s.closed {
		return nil, ErrClosed
	}
	b := &box{limit: int64(s.cfg.MailboxLimit)}
	if _, taken := s.boxes.LoadOrStore(name, b); taken {
		return nil, fmt.Errorf("rpc: spawn: an actor is already named %q", name)
	}
	b.pid = actor.NewPID(s.address, name)
	pid, err := s.actors.Root.SpawnNamed(props.Clone(
		actor.WithMailbox(actor.Unbounded()),
		actor.WithReceiverMiddleware(s.release(name, b)),
	), name)
	if err != nil {
		s.boxes.CompareAndDelete(name, b)
		return nil, fmt.Errorf("rpc: spawn %q: %w", name, err)
	}
	return pid, nil
}

// release returns the middleware that uncounts each envelope before the actor handles it, since a panic
// would skip any code after. It also removes the box when the actor stops.
func (s *System) release(name string, b *box) actor.ReceiverMiddleware {
	return func(next actor.ReceiverFunc) actor.ReceiverFunc {
		return func(c actor.ReceiverContext, m *actor.MessageEnvelope) {
			switch m.Message.(type) {
			case *proto.Envelope:
				b.waiting.Add(-1)
			case *actor.Stopped:
				s.boxes.CompareAndDelete(name, b)
			}
			next(c, m)
		}
	}
}

// deliver passes an envelope that checkEnvelope has accepted to a local actor. A refused request
// gets an error reply, so that its caller does not wait for the deadline. A refused one-way message
// is dropped and counted.
func (s *System) deliver(name string, e *proto.Envelope, sender *actor.PID) {
	if name == replies {
		if !s.calls.complete(s.cfg.Incarnation, e) {
			s.drops.late.Add(1)
		}
		return
	}
	if err := s.post(name, e, sender); err != nil {
		s.drops.refused.Add(1)
		_ = s.answer(sender, e, nil, err) // on failure, the caller's deadline applies
	}
}

func (s *System) post(name string, e *proto.Envelope, sender *actor.PID) error {
	if e.To != 0 && e.To != s.cfg.Incarnation {
		return fmt.Errorf("%w: %s runs as %d now, the message was for %d", ErrStale, s.cfg.ID, s.cfg.Incarnation, e.To)
	}
	v, ok := s.boxes.Load(name)
	if !ok {
		return fmt.Errorf("%w: %s has none named %.64q", ErrNoActor, s.cfg.ID, name)
	}
	b := v.(*box)
	if !b.reserve() {
		return fmt.Errorf("%w: %d messages are queued for %s at %s", ErrBusy, b.limit, name, s.cfg.ID)
	}
	s.actors.Root.Send(b.pid, &actor.MessageEnvelope{Message: e, Sender: sender})
	return nil
}

// stopActors stops the spawned actors, within a bounded time.
func (s *System) stopActors() {
	var futures []*actor.Future
	s.boxes.Range(func(_, v any) bool {
		futures = append(futures, s.actors.Root.StopFuture(v.(*box).pid))
		return true
	})
	deadline := time.Now().Add(3 * time.Second)
	for _, f := range futures {
		if time.Now().After(deadline) {
			return // an actor blocks in a handler and keeps its goroutine
		}
		_ = f.Wait() // the deadline above covers a timeout
	}
}

// drops counts discarded messages and connections.
type drops struct{ refused, late, hostile, handshakes atomic.Uint64 }

// Stats counts the messages that were discarded since Start.
type Stats struct {
	Refused uint64 // for missing or busy actors, or for another incarnation
	Late    uint64 // replies without a waiting call
	Hostile uint64 // messages that a correct peer never sends
	// Handshakes counts refused connections: no TLS, another key, or a role that is not allowed.
	Handshakes uint64
}

func (s *System) Stats() Stats {
	return Stats{Refused: s.drops.refused.Load(), Late: s.drops.late.Load(), Hostile: s.drops.hostile.Load(),
		Handshakes: s.drops.handshakes.Load()}
}

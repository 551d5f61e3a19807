package rpc

import (
	"context"
	"fmt"
	"runtime/debug"

	"github.com/asynkron/protoactor-go/actor"
	"github.com/asynkron/protoactor-go/remote"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	pb "google.golang.org/protobuf/proto"

	"github.com/shoal-llm/shoal/internal/proto"
	"github.com/shoal-llm/shoal/internal/security"
)

const receiveMethod = "/remote.Remoting/Receive"

// refuseUnary blocks Remoting.ListProcesses and GetProcessDiagnostics. They panic, so any client
// that can connect could crash the process.
func refuseUnary(_ context.Context, _ any, info *grpc.UnaryServerInfo, _ grpc.UnaryHandler) (any, error) {
	return nil, status.Errorf(codes.Unimplemented, "rpc: %s is not served here", info.FullMethod)
}

// incoming accepts the streams that this package serves, and recovers from panics in them.
func (s *System) incoming(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) (err error) {
	defer func() {
		if p := recover(); p != nil {
			s.drops.hostile.Add(1)
			s.log.Error("a stream handler panicked; the stream was closed", "method", info.FullMethod, "panic", p, "stack", string(debug.Stack()))
			err = status.Error(codes.Internal, "rpc: stream handler panicked")
		}
	}()
	id, err := certified(stream.Context())
	if err != nil {
		return status.Error(codes.Unauthenticated, err.Error())
	}
	if info.FullMethod == receiveMethod {
		stream = &guard{ServerStream: stream, s: s, id: id}
	}
	return next(srv, stream)
}

// guard reads a peer's stream before Proto.Actor does. It delivers our envelopes itself and passes
// on only the connect request and well-formed watches. Proto.Actor trusts its input: table indices,
// type names (an unknown one is a nil dereference), system messages (Stop ends any actor), and
// addresses (messages for other addresses are forwarded).
type guard struct {
	grpc.ServerStream
	s  *System
	id string // node id of the peer's certificate
}

// RecvMsg returns when it has something for Proto.Actor to read.
func (g *guard) RecvMsg(m any) error {
	in, ok := m.(*remote.RemoteMessage)
	if !ok {
		return g.ServerStream.RecvMsg(m)
	}
	for {
		if err := g.ServerStream.RecvMsg(in); err != nil {
			return err
		}
		if g.s.ctx.Err() != nil {
			return status.Error(codes.Unavailable, "rpc: closing")
		}
		if g.s.sift(in, g.id) {
			return nil
		}
	}
}

// sift delivers the envelopes of a message and removes them and everything invalid. It reports
// whether Proto.Actor must read the rest.
func (s *System) sift(in *remote.RemoteMessage, id string) bool {
	switch m := in.MessageType.(type) {
	case *remote.RemoteMessage_ConnectRequest:
		sc := m.ConnectRequest.GetServerConnection()
		return sc != nil && len(sc.Address) <= maxAddress
	case *remote.RemoteMessage_MessageBatch:
		b := m.MessageBatch
		var keep []*remote.MessageEnvelope
		for _, e := range b.GetEnvelopes() {
			pass, err := s.siftOne(b, e, id)
			if err != nil {
				if n := s.drops.hostile.Add(1); isPowerOfTwo(n) {
					s.log.Warn("dropped an invalid message from a peer", "certificate", id, "error", err, "dropped_so_far", n)
				}
			}
			if pass {
				keep = append(keep, e)
			}
		}
		if len(keep) > 0 {
			b.Envelopes = keep
		}
		return len(keep) > 0
	}
	return false
}

const envelopeType = "shoal.Envelope"

func (s *System) siftOne(b *remote.MessageBatch, e *remote.MessageEnvelope, id string) (pass bool, err error) {
	if e == nil || !within(e.TypeId, len(b.TypeNames)) || !within(e.Target, len(b.Targets)) || e.Sender < 0 || int(e.Sender) > len(b.Senders) {
		return false, fmt.Errorf("rpc: index outside its table")
	}
	target := b.Targets[e.Target]
	if target == nil || len(target.Id) > maxName {
		return false, fmt.Errorf("rpc: no usable target")
	}
	if e.SerializerId != 0 {
		return false, fmt.Errorf("rpc: serializer %d", e.SerializerId)
	}
	switch name := b.TypeNames[e.TypeId]; name {
	case envelopeType:
		var sender *actor.PID
		if e.Sender > 0 {
			sender = b.Senders[e.Sender-1]
		}
		return false, s.accept(target.Id, e.MessageData, sender, id)
	case "actor.Watch":
		var w actor.Watch
		return wellFormed(e.MessageData, &w, func() *actor.PID { return w.Watcher })
	case "actor.Unwatch":
		var w actor.Unwatch
		return wellFormed(e.MessageData, &w, func() *actor.PID { return w.Watcher })
	case "actor.Terminated":
		var t actor.Terminated
		return wellFormed(e.MessageData, &t, func() *actor.PID { return t.Who })
	default:
		return false, fmt.Errorf("rpc: message type %.64q", name)
	}
}

func within(i int32, n int) bool { return i >= 0 && int(i) < n }

func wellFormed(data []byte, into pb.Message, who func() *actor.PID) (bool, error) {
	if err := pb.Unmarshal(data, into); err != nil {
		return false, err
	}
	p := who()
	if p == nil || p.Address == "" || p.Id == "" || len(p.Address) > maxAddress || len(p.Id) > maxName {
		return false, fmt.Errorf("rpc: watch without a usable address")
	}
	return true, nil
}

// accept decodes, checks and delivers one envelope from the wire.
func (s *System) accept(name string, data []byte, sender *actor.PID, id string) error {
	if len(data) > MaxPayload+maxErrText+2*maxName {
		return tooLarge(len(data))
	}
	if sender != nil {
		if _, port, err := security.HostPort(sender.Address); err != nil || port == 0 ||
			len(sender.Address) > maxAddress || sender.Id != replies {
			return fmt.Errorf("%w: invalid address for replies: %.64q of %.64q", ErrIdentity, sender.Id, sender.Address)
		}
	}
	e := &proto.Envelope{}
	if err := pb.Unmarshal(data, e); err != nil {
		return fmt.Errorf("%w: %v", ErrBadPayload, err)
	}
	if err := checkEnvelope(e, id); err != nil {
		if name != replies {
			_ = s.answer(sender, e, nil, err)
		}
		return err
	}
	s.deliver(name, e, sender)
	return nil
}

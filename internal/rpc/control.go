package rpc

import (
	"context"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	pb "google.golang.org/protobuf/proto"

	"github.com/shoal-llm/shoal/internal/proto"
	"github.com/shoal-llm/shoal/internal/security"
)

// The control service uses the same port and certificates as Proto.Actor, but shares no state with
// its endpoints.
const (
	helloMethod = "/shoal.Control/Hello"
	watchMethod = "/shoal.Control/Watch"

	kindHello = 1
)

// Hello performs a handshake with the process at address over a separate connection
// and returns its identity. Call and Send do so before their first message.
//
// Errors: ErrUnreachable, ErrVersion, ErrIdentity, or those of package security
// (another key, no key, a role that is not allowed).
func (s *System) Hello(ctx context.Context, address string) (Peer, error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.ConnectTimeout)
	defer cancel()
	defer context.AfterFunc(s.ctx, cancel)()
	cc, err := s.connect(address)
	if err != nil {
		return Peer{}, err
	}
	defer cc.Close()
	return s.handshake(ctx, cc, address)
}

func (s *System) connect(address string) (*grpc.ClientConn, error) {
	if s.ctx.Err() != nil {
		return nil, ErrClosed
	}
	if _, port, err := security.HostPort(address); err != nil || port == 0 || len(address) > maxAddress {
		return nil, fmt.Errorf("%w: %.64q is not host:port", ErrUnreachable, address)
	}
	cc, err := grpc.NewClient("passthrough:///"+address, s.dialOptions()...)
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrUnreachable, address, err)
	}
	return cc, nil
}

func (s *System) handshake(ctx context.Context, cc *grpc.ClientConn, address string) (Peer, error) {
	var answer proto.Envelope
	var from peer.Peer
	if err := cc.Invoke(ctx, helloMethod, s.hello(), &answer, grpc.Peer(&from)); err != nil {
		return Peer{}, s.explain(address, err)
	}
	id, err := certifiedID(from.AuthInfo)
	if err != nil {
		return Peer{}, err
	}
	p, err := checkHello(&answer, id)
	p.Address = address
	return p, err
}

func (s *System) hello() *proto.Envelope {
	body, err := pb.Marshal(&proto.Hello{
		MinVersion: MinVersion, MaxVersion: Version, Id: s.cfg.ID, Role: s.cfg.Role,
		Incarnation: s.cfg.Incarnation, Build: s.cfg.Build,
	})
	e := s.envelope(Version, kindHello, 1, body, 0)
	if err != nil { // role or build is not valid UTF-8
		e.Error = errText(err)
	}
	return e
}

// checkHello validates a hello from either side. It ignores the version of the envelope, because
// the hello must be readable between any two builds.
func checkHello(e *proto.Envelope, certificate string) (Peer, error) {
	if e.Error != "" {
		return Peer{}, &RemoteError{Peer: e.From, Text: e.Error}
	}
	if e.Kind != kindHello {
		return Peer{}, fmt.Errorf("%w: kind %d in place of a hello", ErrVersion, e.Kind)
	}
	if len(e.Payload) > maxErrText {
		return Peer{}, tooLarge(len(e.Payload))
	}
	var h proto.Hello
	if err := pb.Unmarshal(e.Payload, &h); err != nil {
		return Peer{}, fmt.Errorf("%w: hello: %v", ErrBadPayload, err)
	}
	if h.MaxVersion < MinVersion || h.MinVersion > Version || h.MinVersion > h.MaxVersion {
		return Peer{}, versionError(h.MinVersion, h.MaxVersion, h.Build)
	}
	if !idPattern.MatchString(h.Id) || len(h.Role) > maxID || len(h.Build) > maxName {
		return Peer{}, fmt.Errorf("%w: hello without a usable node id", ErrIdentity)
	}
	if certificate != "" && certificate != h.Id {
		return Peer{}, fmt.Errorf("%w: it claims to be %s but its certificate is for %s", ErrIdentity, h.Id, certificate)
	}
	return Peer{ID: h.Id, Role: h.Role, Incarnation: h.Incarnation, Version: min(h.MaxVersion, Version), Build: h.Build}, nil
}

// serveControl serves Hello and Watch and refuses other methods.
func (s *System) serveControl(_ any, stream grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(stream)
	if method != helloMethod && method != watchMethod {
		return status.Errorf(codes.Unimplemented, "rpc: %.128s is not served here", method)
	}
	var e proto.Envelope
	if err := stream.RecvMsg(&e); err != nil {
		return err
	}
	id, err := certified(stream.Context())
	if err != nil {
		return status.Error(codes.Unauthenticated, err.Error())
	}
	answer := s.hello()
	if _, err := checkHello(&e, id); err != nil {
		answer.Payload, answer.Error = nil, errText(err)
	}
	if err := stream.SendMsg(answer); err != nil || answer.Error != "" || method == helloMethod {
		return err
	}
	// A watch is a stream that stays open while this process runs.
	select {
	case <-stream.Context().Done():
		return nil
	case <-s.ctx.Done():
		return status.Error(codes.Unavailable, "rpc: closing")
	}
}

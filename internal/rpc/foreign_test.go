package rpc

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/shoal-llm/shoal/internal/proto"
)

// TestUnknownFieldIsRefused: a handler never receives a message with unknown fields, and the error
// names the field.
func TestUnknownFieldIsRefused(t *testing.T) {
	if !isolate(t) {
		return
	}
	p := spawn(t, "127.0.0.1:0", "far", 1)
	s := system(t)
	m := wrapperspb.String("hello")
	m.ProtoReflect().SetUnknown(protowire.AppendVarint(protowire.AppendTag(nil, 77, protowire.VarintType), 1))
	reply := new(wrapperspb.StringValue)
	err := s.Call(deadline(t, patience), s.PID(p.address, "echo"), kindEcho, m, reply)
	wantErr(t, err, ErrIncompatible)
	if !IsIncompatible(err) || !strings.Contains(err.Error(), "StringValue has the field 77, which is unknown to this build") {
		t.Errorf("error %q", err)
	}
	mustSay(t, s, p.address, "a known message")

	// The same for a reply.
	body, err := encode(kindEcho, m)
	if err != nil {
		t.Fatal(err)
	}
	wantErr(t, decodeReply(&proto.Envelope{Payload: body.body, From: "far", Version: Version}, reply), ErrIncompatible)
}

// TestOlderPeer: a peer with the oldest version receives envelopes in that version, replies in it,
// and never receives a field that was added later.
func TestOlderPeer(t *testing.T) {
	if !isolate(t) {
		return
	}
	p := spawn(t, "127.0.0.1:0", "far", 1)
	s := system(t)
	mustSay(t, s, p.address, "hello")
	older := *s.peers.get(p.address)
	older.peer.Version = 5
	s.peers.mu.Lock()
	s.peers.links[p.address] = &older
	s.peers.mu.Unlock()
	err := s.Call(deadline(t, patience), s.PID(p.address, "echo"), kindEcho, &proto.StepRequest{Passes: 2}, nil)
	wantErr(t, err, ErrVersion)
	if !IsIncompatible(err) || !strings.Contains(err.Error(), "shoal.StepRequest.passes needs version 6") {
		t.Errorf("error %q", err)
	}
	wantErr(t, s.Send(deadline(t, patience), s.PID(p.address, "echo"), kindEcho, &proto.StepRequest{ThreadShift: 1}), ErrVersion)
	older.peer.Version = MinVersion
	m, err := encode(kindEcho, wrapperspb.String("in an old version"))
	if err != nil {
		t.Fatal(err)
	}
	answer, err := s.attempt(deadline(t, patience), s.PID(p.address, "echo"), m, 12345, &options{})
	if err != nil || answer.Version != MinVersion {
		t.Errorf("an answer of version %d, want %d: %v", answer.GetVersion(), MinVersion, err)
	}
}

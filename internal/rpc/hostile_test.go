package rpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/asynkron/protoactor-go/actor"
	"github.com/asynkron/protoactor-go/remote"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	pb "google.golang.org/protobuf/proto"

	"github.com/shoal-llm/shoal/internal/proto"
)

// stranger returns a gRPC client that may send anything.
func stranger(t *testing.T, address string) *grpc.ClientConn {
	t.Helper()
	cc, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cc.Close() })
	return cc
}

func stream(t *testing.T, ctx context.Context, cc *grpc.ClientConn) remote.Remoting_ReceiveClient {
	t.Helper()
	st, err := remote.NewRemotingClient(cc).Receive(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return st
}

func batch(types []string, targets []*actor.PID, senders []*actor.PID, es ...*remote.MessageEnvelope) *remote.RemoteMessage {
	return &remote.RemoteMessage{MessageType: &remote.RemoteMessage_MessageBatch{MessageBatch: &remote.MessageBatch{
		TypeNames: types, Targets: targets, Senders: senders, Envelopes: es}}}
}

func marshal(t testing.TB, m pb.Message) []byte {
	t.Helper()
	b, err := pb.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// hostileBatches has messages that once ended a process, ended an actor, or reached a wrong
// destination.
func hostileBatches(t testing.TB) map[string]*remote.RemoteMessage {
	echo := []*actor.PID{{Address: "x", Id: "echo"}}
	one := func(typ string, data []byte) *remote.RemoteMessage {
		return batch([]string{typ}, echo, nil, &remote.MessageEnvelope{MessageData: data})
	}
	good := marshal(t, &proto.Envelope{Version: Version, Kind: kindEcho, From: "x", Incarnation: 1})
	return map[string]*remote.RemoteMessage{
		"unknown type":           one("shoal.FromTheFuture", []byte{1, 2, 3}),
		"stop":                   one("actor.Stop", nil),
		"poison":                 one("actor.PoisonPill", nil),
		"failure":                one("actor.Failure", nil),
		"activation":             batch([]string{"remote.ActorPidRequest"}, []*actor.PID{{Id: "activator"}}, nil, &remote.MessageEnvelope{}),
		"watch without watcher":  one("actor.Watch", nil),
		"watch of garbage":       one("actor.Watch", []byte{0xff}),
		"terminated without who": one("actor.Terminated", nil),
		"type index":             batch([]string{envelopeType}, echo, nil, &remote.MessageEnvelope{TypeId: 7, MessageData: good}),
		"negative type index":    batch([]string{envelopeType}, echo, nil, &remote.MessageEnvelope{TypeId: -1, MessageData: good}),
		"target index":           batch([]string{envelopeType}, echo, nil, &remote.MessageEnvelope{Target: 9, MessageData: good}),
		"sender index":           batch([]string{envelopeType}, echo, nil, &remote.MessageEnvelope{Sender: 5, MessageData: good}),
		"no tables":              batch(nil, nil, nil, &remote.MessageEnvelope{}),
		"json":                   batch([]string{envelopeType}, echo, nil, &remote.MessageEnvelope{SerializerId: 1, MessageData: good}),
		"serializer index":       batch([]string{envelopeType}, echo, nil, &remote.MessageEnvelope{SerializerId: 100, MessageData: good}),
		"garbage envelope":       one(envelopeType, []byte("\xff\xff\xff")),
		"not UTF-8":              one(envelopeType, []byte("\x32\x01\xff")),
		"huge payload": one(envelopeType,
			marshal(t, &proto.Envelope{Version: Version, Kind: 16, From: "x", Payload: make([]byte, MaxPayload+1)})),
		"nameless":  one(envelopeType, marshal(t, &proto.Envelope{Version: Version, Kind: 16})),
		"kind 0":    one(envelopeType, marshal(t, &proto.Envelope{Version: Version, From: "x"})),
		"version 9": one(envelopeType, marshal(t, &proto.Envelope{Version: 9, Kind: 16, From: "x"})),
		"reply to another actor": batch([]string{envelopeType}, echo, []*actor.PID{{Address: "10.0.0.1:1", Id: "echo"}},
			&remote.MessageEnvelope{Sender: 1, MessageData: good}),
		"connect with nothing": {MessageType: &remote.RemoteMessage_ConnectRequest{
			ConnectRequest: &remote.ConnectRequest{ConnectionType: &remote.ConnectRequest_ServerConnection{}}}},
		"connect as client": {MessageType: &remote.RemoteMessage_ConnectRequest{
			ConnectRequest: &remote.ConnectRequest{ConnectionType: &remote.ConnectRequest_ClientConnection{}}}},
		"empty": {},
	}
}

func TestHostileClient(t *testing.T) {
	if !isolate(t) {
		return
	}
	p := spawn(t, "127.0.0.1:0", "far", 1)
	s := system(t)
	mustSay(t, s, p.address, "before")
	ch := watching(t, s, p.address)
	cc := stranger(t, p.address)
	ctx := deadline(t, patience)

	for _, method := range []string{"/remote.Remoting/ListProcesses", "/remote.Remoting/GetProcessDiagnostics",
		"/shoal.Control/Nonsense", "/x.y/z"} {
		var out proto.Envelope
		err := cc.Invoke(ctx, method, &proto.Envelope{}, &out)
		if err == nil || !strings.Contains(err.Error(), "Unimplemented") {
			t.Errorf("%s: %v", method, err)
		}
	}
	for name, m := range hostileBatches(t) {
		st := stream(t, ctx, cc)
		if err := st.Send(m); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		// The stream continues: a valid message after the bad one is served.
		good := &proto.Envelope{Version: Version, Kind: kindEcho, From: "stranger"}
		st.Send(batch([]string{envelopeType}, []*actor.PID{{Id: "echo"}}, nil, &remote.MessageEnvelope{MessageData: marshal(t, good)}))
		st.CloseSend()
		var err error
		for err == nil { // the connect request is answered first
			_, err = st.Recv()
		}
		if !errors.Is(err, io.EOF) {
			t.Errorf("%s: the stream ended with %v", name, err)
		}
	}
	got, err := say(s, ctx, p.address, kindCount, "")
	if err != nil {
		t.Fatal(err)
	}
	if want := 1 + len(hostileBatches(t)); got != itoa(want) {
		t.Errorf("%s good messages arrived, want %d", got, want)
	}
	select {
	case d := <-ch:
		t.Errorf("a hostile client got the peer reported as down: %s", d.Reason)
	default:
	}
}

func TestEveryHostileBatchIsDropped(t *testing.T) {
	if !isolate(t) {
		return
	}
	s := system(t)
	for name, m := range hostileBatches(t) {
		if s.sift(m, "") && name != "connect as client" {
			t.Errorf("%s: passed to Proto.Actor", name)
		}
	}
	watch := marshal(t, &actor.Watch{Watcher: &actor.PID{Address: "127.0.0.1:1", Id: "w"}})
	if !s.sift(batch([]string{"actor.Watch"}, []*actor.PID{{Id: "echo"}}, nil, &remote.MessageEnvelope{MessageData: watch}), "") {
		t.Error("a good watch was dropped")
	}
}

func TestVersionHandshake(t *testing.T) {
	if !isolate(t) {
		return
	}
	s := system(t)
	cc := stranger(t, s.Address())
	future := func(low, high uint32) string {
		body := marshal(t, &proto.Hello{MinVersion: low, MaxVersion: high, Id: "future", Incarnation: 1, Build: "v9"})
		var out proto.Envelope
		if err := cc.Invoke(deadline(t, patience), helloMethod,
			&proto.Envelope{Version: high, Kind: kindHello, From: "future", Payload: body}, &out); err != nil {
			t.Fatal(err)
		}
		return out.Error
	}
	if got := future(Version+1, Version+2); got != fmt.Sprintf("rpc: wire versions do not meet: the peer (build "+
		"v9) speaks versions %d to %d, this process %d to %d; upgrade the older of the two", Version+1, Version+2, MinVersion, Version) {
		t.Errorf("error %q", got)
	}
	if got := future(Version, Version+6); got != "" {
		t.Errorf("a peer that also speaks version %d was refused: %s", Version, got)
	}
	if got := future(Version+2, Version); got == "" {
		t.Error("an impossible range was accepted")
	}
}

// A server that supports only newer versions refuses with a readable error.
func TestNewerServer(t *testing.T) {
	_, err := checkHello(&proto.Envelope{Version: Version + 3, Kind: kindHello, From: "new",
		Error: errText(versionError(Version+2, Version+3, ""))}, "")
	wantErr(t, err, ErrVersion)
	body := marshal(t, &proto.Hello{MinVersion: Version + 1, MaxVersion: Version + 3, Id: "new"})
	_, err = checkHello(&proto.Envelope{Version: Version + 3, Kind: kindHello, From: "new", Payload: body}, "")
	wantErr(t, err, ErrVersion)
}

func FuzzSift(f *testing.F) {
	if !isolate(f) {
		f.Skip("ran in a process of its own")
	}
	for _, m := range hostileBatches(f) {
		f.Add(marshal(f, m))
	}
	s, err := Start(Config{ID: "fuzz", Bind: "127.0.0.1:0", Logger: quiet()})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { s.Close() })
	if err := spawnEcho(s); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var m remote.RemoteMessage
		if pb.Unmarshal(data, &m) != nil {
			return
		}
		s.sift(&m, "x") // with a certificate, nothing from another node passes
		s.sift(&m, "")
	})
}

func FuzzEnvelope(f *testing.F) {
	if !isolate(f) {
		f.Skip("ran in a process of its own")
	}
	f.Add(marshal(f, &proto.Envelope{Version: Version, Kind: kindEcho, From: "x", Request: 5, Payload: []byte{10, 1, 'a'}}))
	f.Add(marshal(f, &proto.Envelope{Version: Version, Kind: kindMissing, From: "x", To: 3}))
	f.Add(marshal(f, &proto.Envelope{Version: Version + 1, Kind: kindHello,
		Payload: marshal(f, &proto.Hello{Id: "x", MinVersion: Version, MaxVersion: Version + 1})}))
	s, err := Start(Config{ID: "fuzz", Bind: "127.0.0.1:0", Logger: quiet()})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { s.Close() })
	if err := spawnEcho(s); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		// Replies go to this process, so nothing is dialled.
		back := actor.NewPID(s.Address(), replies)
		for _, name := range []string{"echo", "nobody", replies} {
			if err := s.accept(name, data, back, ""); err != nil {
				continue
			}
			var e proto.Envelope
			if err := pb.Unmarshal(data, &e); err != nil || checkEnvelope(&e, "") != nil {
				t.Errorf("accepted %q", data)
			}
		}
		var e proto.Envelope
		if pb.Unmarshal(data, &e) == nil {
			if p, err := checkHello(&e, ""); err == nil && !idPattern.MatchString(p.ID) {
				t.Errorf("met %+v", p)
			}
		}
	})
}

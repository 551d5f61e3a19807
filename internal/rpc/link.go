package rpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/asynkron/protoactor-go/remote"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
)

// outgoing wraps the stream that Proto.Actor's endpoint opens to a peer.
//
//   - Connecting: the endpoint would try five times, sleep two seconds after each, and
//     process no messages meanwhile. Here grpc redials quickly for ConnectTimeout. A
//     failure is not returned, which would cause the sleep, but appears as a stream
//     that breaks immediately (see broken).
//   - Ending: after an endpoint got a stop request, the error of its old stream would
//     be published again and end the new endpoint to the same address. A stream that
//     we closed therefore ends without an error. Conversely, Proto.Actor does not treat
//     an end by the peer as an error and would keep writing; here it is an error.
//   - Sending: sent messages are released from the peer's outbox.
func (s *System) outgoing(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer,
	opts ...grpc.CallOption) (grpc.ClientStream, error) {
	address := cc.Target()
	dial := s.dial(address)
	dial.arm()
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(s.ctx, cancel)
	end := func() { stop(); cancel() }

	patience := time.AfterFunc(s.cfg.ConnectTimeout, cancel)
	stream, err := streamer(ctx, desc, cc, method, append(opts, grpc.WaitForReady(true))...)
	if !patience.Stop() && err == nil {
		err = context.DeadlineExceeded
	}
	if err != nil {
		end()
		if s.ctx.Err() != nil {
			cc.Close() // possibly no goroutine is left to stop the endpoint
		}
		return &broken{ctx: ctx, s: s, dial: dial, why: fmt.Errorf("%w: %s: %w", ErrUnreachable, address, err)}, nil
	}
	return &outStream{ClientStream: stream, s: s, address: address, end: end}, nil
}

type outStream struct {
	grpc.ClientStream
	s       *System
	address string
	end     func()
	closed  atomic.Bool
}

var errHungUp = errors.New("rpc: the peer ended the connection")

func (o *outStream) RecvMsg(m any) error {
	err := o.ClientStream.RecvMsg(m)
	if err == nil {
		return nil
	}
	o.end()
	switch {
	case o.closed.Load() || o.s.ctx.Err() != nil:
		return io.EOF
	case errors.Is(err, io.EOF):
		return errHungUp
	}
	return err
}

func (o *outStream) SendMsg(m any) error {
	err := o.ClientStream.SendMsg(m)
	if b := m.(*remote.RemoteMessage).GetMessageBatch(); b != nil {
		if box, ok := o.s.outboxes.Load(o.address); ok {
			n, bytes := ours(b)
			box.(*outbox).release(n, bytes)
		}
	}
	return err
}

func (o *outStream) CloseSend() error {
	o.closed.Store(true)
	err := o.ClientStream.CloseSend()
	o.end()
	return err
}

func ours(b *remote.MessageBatch) (n, bytes int64) {
	for _, e := range b.Envelopes {
		if b.TypeNames[e.TypeId] == envelopeType {
			n++
			bytes += int64(len(e.MessageData))
		}
	}
	return n, bytes
}

// broken is the stream to an unreachable peer. To the endpoint it looks like a stream that was
// accepted and then lost, which the endpoint handles without sleeping: it publishes
// EndpointTerminatedEvent and stops.
type broken struct {
	ctx      context.Context
	s        *System
	dial     *dialState
	why      error
	answered atomic.Bool
	closed   atomic.Bool
}

func (b *broken) Header() (metadata.MD, error) { return nil, b.why }
func (b *broken) Trailer() metadata.MD         { return nil }
func (b *broken) Context() context.Context     { return b.ctx }
func (b *broken) SendMsg(m any) error {
	if m.(*remote.RemoteMessage).GetConnectRequest() != nil {
		return nil
	}
	return b.why
}
func (b *broken) CloseSend() error { b.closed.Store(true); return nil }

func (b *broken) RecvMsg(m any) error {
	if b.answered.CompareAndSwap(false, true) {
		m.(*remote.RemoteMessage).MessageType = &remote.RemoteMessage_ConnectResponse{ConnectResponse: &remote.ConnectResponse{}}
		return nil
	}
	// Publish the loss only after the endpoint has published that it is connected. Otherwise that
	// event would create a new endpoint, which would fail again, and so on.
	b.dial.settled(b.s.ctx)
	if b.closed.Load() || b.s.ctx.Err() != nil {
		return io.EOF
	}
	return b.why
}

// dialState tracks the latest connection attempt to an address until its EndpointConnectedEvent has
// been handled.
type dialState struct {
	mu   sync.Mutex
	done chan struct{}
}

func (s *System) dial(address string) *dialState {
	d, _ := s.dialing.LoadOrStore(address, &dialState{})
	return d.(*dialState)
}

func (d *dialState) arm() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.done = make(chan struct{})
}

func (d *dialState) settle() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.done != nil {
		close(d.done)
		d.done = nil
	}
}

func (d *dialState) settled(ctx context.Context) {
	d.mu.Lock()
	done := d.done
	d.mu.Unlock()
	if done == nil {
		return
	}
	select {
	case <-done:
	case <-ctx.Done():
	case <-time.After(time.Second):
	}
}

package gossip

import (
	"context"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/shoal-llm/shoal/internal/sys/openfiles"
)

// transport is memberlist's own transport with a limit on its connections. A connection counts as
// unauthenticated until its first message is decrypted, and closes soon after. memberlist's limit
// for that is TCPTimeout.
type transport struct {
	*memberlist.NetTransport
	strangers *openfiles.PendingConns
	streams   chan net.Conn
	stop      chan struct{}
	once      sync.Once
	done      sync.WaitGroup
}

var _ memberlist.NodeAwareTransport = (*transport)(nil)

// freePorts is the number of attempts to find a port that is free for both TCP and UDP.
const freePorts = 10

// listen opens the configured listeners. If the port is 0, it stores the chosen port in c.
func listen(c *memberlist.Config) (*transport, error) {
	nc := &memberlist.NetTransportConfig{BindAddrs: []string{c.BindAddr}, BindPort: c.BindPort, Logger: c.Logger}
	inner, err := memberlist.NewNetTransport(nc)
	for try := 1; err != nil && c.BindPort == 0 && try < freePorts && strings.Contains(err.Error(), "address already in use"); try++ {
		inner, err = memberlist.NewNetTransport(nc)
	}
	if err != nil {
		return nil, err
	}
	if c.BindPort == 0 {
		c.BindPort = inner.GetAutoBindPort()
		c.AdvertisePort = c.BindPort
	}
	t := &transport{NetTransport: inner, strangers: openfiles.NewPendingConns(openfiles.MaxPendingConns()),
		streams: make(chan net.Conn), stop: make(chan struct{})}
	t.done.Go(t.admit)
	return t, nil
}

// admit passes connections on, and closes the oldest ones when there are too many.
func (t *transport) admit() {
	for {
		select {
		case c := <-t.NetTransport.StreamCh():
			select {
			case t.streams <- t.strangers.Admit(c):
			case <-t.stop:
				_ = c.Close()
			}
		case <-t.stop:
			return
		}
	}
}

// DialAddressTimeout implements memberlist.NodeAwareTransport.
func (t *transport) DialAddressTimeout(to memberlist.Address, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	return openfiles.Dial(ctx, "tcp", to.Addr)
}

// StreamCh implements memberlist.Transport.
func (t *transport) StreamCh() <-chan net.Conn { return t.streams }

// Shutdown implements memberlist.Transport. It may be called twice.
func (t *transport) Shutdown() (err error) {
	t.once.Do(func() {
		err = t.NetTransport.Shutdown()
		close(t.stop)
		t.done.Wait()
	})
	return err
}

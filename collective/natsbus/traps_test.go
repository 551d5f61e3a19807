package natsbus

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/shoal-llm/shoal/collective"
	"github.com/shoal-llm/shoal/internal/testutil"
)

// TestSettings checks the settings whose defaults lose messages or never start.
func TestSettings(t *testing.T) {
	s := &Server{cfg: Config{Name: "n"}.ensureDefaults(), users: newUsers("shoal", func() []string { return []string{""} }, nil)}
	o := s.options([]string{"127.0.0.1:1"})
	if o.DontListen || o.Port != server.RANDOM_PORT || o.Host != "127.0.0.1" {
		t.Error("without a client listener, routes never start")
	}
	if o.NoFastProducerStall {
		t.Error("NoFastProducerStall drops messages on live connections")
	}
	if o.Cluster.PoolSize != -1 || o.Cluster.Compression.Mode != server.CompressionOff {
		t.Error("one uncompressed route per pair")
	}
	if o.MaxPayload < collective.MaxPayload+collective.HeaderBytes+4 || o.MaxPending < 4*int64(o.MaxPayload) {
		t.Error("the largest message does not fit")
	}
	if o.Cluster.PingInterval > time.Second || o.Cluster.MaxPingsOut == 0 {
		t.Error("a hung peer would go unnoticed")
	}
	if d := o.PingInterval * time.Duration(o.MaxPingsOut+1); d <= 0 || d > o.WriteDeadline || d < 30*time.Second {
		t.Errorf("a client of a frozen process stays for %v", d)
	}
	if !o.NoSigs {
		t.Error("the server must not take the process's signals")
	}
}

// patience bounds every wait. JetStream alone takes 4 to 9 s to elect its first leader, and the
// machine may be shared.
const patience = 2 * time.Minute

// waitFor waits until ok, at most for patience.
func waitFor(t testing.TB, what string, ok func() bool) {
	t.Helper()
	testutil.Eventually(t, patience, what, func() (bool, string) { return ok(), "not yet" })
}

func lone(t *testing.T) *Server {
	t.Helper()
	return startServers(t, 1, nil)[0]
}

func open(t *testing.T, s *Server, cfg TransportConfig) *Transport {
	t.Helper()
	tr, err := s.Transport(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tr.Close() })
	return tr
}

// TestSlowConsumerSurfaces: messages that NATS drops at the receiver fail the group. A link never
// drops: it stops reading, and the sender waits.
func TestSlowConsumerSurfaces(t *testing.T) {
	s := external(t, "a")[0]
	a := open(t, s, TransportConfig{Group: "g", Rank: 0, Size: 2})
	b := open(t, s, TransportConfig{Group: "g", Rank: 1, Size: 2, PendingBytes: 1 << 20})
	ready(t, []*Transport{a, b})
	release := make(chan struct{})
	reported := make(chan error, 1)
	b.OnError(func(err error) { reported <- err })
	b.Receive(func(int, []byte) { <-release })
	for range 8 {
		if err := a.Send(1, make([]byte, 512<<10)); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case err := <-reported:
		if !errors.Is(err, ErrLost) || !errors.Is(err, nats.ErrSlowConsumer) {
			t.Error(err)
		}
	case <-time.After(patience):
		t.Error("dropped messages went unnoticed")
	}
	close(release)
}

// TestEarlyMessagesAreHeldWithinBounds: a peer that is ready first may send before this rank has
// created its group.
func TestEarlyMessagesAreHeldWithinBounds(t *testing.T) {
	s := lone(t)
	a := open(t, s, TransportConfig{Group: "g", Rank: 0, Size: 2})
	b := open(t, s, TransportConfig{Group: "g", Rank: 1, Size: 2, PendingBytes: 5000})
	ready(t, []*Transport{a, b})
	for i := range 4 {
		a.Send(1, []byte(strings.Repeat("x", 1000+i)))
	}
	waitFor(t, "four messages held", func() bool { b.mu.Lock(); defer b.mu.Unlock(); return len(b.early) == 4 })
	var mu sync.Mutex
	var sizes []int
	b.Receive(func(src int, m []byte) { mu.Lock(); sizes = append(sizes, len(m)); mu.Unlock() })
	if !slices.Equal(sizes, []int{1000, 1001, 1002, 1003}) {
		t.Errorf("delivered %v", sizes)
	}

	c := open(t, s, TransportConfig{Group: "h", Rank: 1, Size: 2, PendingBytes: 1500})
	d := open(t, s, TransportConfig{Group: "h", Rank: 0, Size: 2})
	ready(t, []*Transport{d, c})
	reported := make(chan error, 1)
	c.OnError(func(err error) { reported <- err })
	d.Send(1, make([]byte, 1000))
	d.Send(1, make([]byte, 1000))
	if err := <-reported; !errors.Is(err, ErrLost) {
		t.Error(err)
	}
}

// TestPermissions: a rank cannot publish as another or receive another's messages, a control
// connection cannot access tensors, and clients without the secret cannot log in.
func TestPermissions(t *testing.T) {
	s := lone(t)
	tr := open(t, s, TransportConfig{Group: "g", Epoch: 4, Rank: 1, Size: 3})
	denied := make(chan error, 16)
	control, err := s.Connect("control", nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { denied <- err }))
	if err != nil {
		t.Fatal(err)
	}
	defer control.Close()
	tr.OnError(func(err error) { denied <- err })
	expect := func(what string) {
		t.Helper()
		select {
		case err := <-denied:
			if !errors.Is(err, nats.ErrPermissionViolation) {
				t.Errorf("%s: %v", what, err)
			}
		case <-time.After(patience):
			t.Errorf("%s was allowed", what)
		}
	}
	tr.out.Publish("tp.shoal.g.4.b.2", nil)
	expect("broadcast as rank 2")
	tr.mu.Lock()
	tr.err = nil
	tr.mu.Unlock()
	tr.in.SubscribeSync("tp.shoal.g.4.p.0.*")
	expect("hearing for rank 0")
	control.Publish("tp.shoal.g.4.b.1", nil)
	expect("tensors from control")
	control.SubscribeSync("tp.shoal.g.4.b.*")
	expect("tensors to control")

	url := "nats://" + s.Addr().String()
	for _, o := range [][]nats.Option{nil, {nats.Token("")}, {nats.Token("guess")}, {nats.UserInfo("route", "s3")}} {
		if nc, err := nats.Connect(url, o...); err == nil {
			nc.Close()
			t.Error("a stranger logged in")
		}
	}
}

// TestControlDoesNotBuffer: during an outage a publish fails at once and nothing arrives late.
func TestControlDoesNotBuffer(t *testing.T) {
	s := lone(t)
	nc, err := s.Connect("control")
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	tr := open(t, s, TransportConfig{Group: "g", Rank: 0, Size: 2})
	reported := make(chan error, 1)
	g, err := collective.NewGroup(collective.Config{Rank: 0, Size: 2, OnFail: func(err error) { reported <- err }}, tr)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { g.Close(); <-g.Done() }()
	s.Shutdown()
	if err := <-reported; !errors.Is(err, collective.ErrTransport) || !errors.Is(err, ErrLost) {
		t.Errorf("the group's error after its server is gone: %v", err)
	}
	waitFor(t, "a publish that fails", func() bool { return nc.Publish("x", nil) != nil })
	// The connection that ends first fails the group.
	waitFor(t, "a broadcast that fails", func() bool { return tr.Broadcast([]byte("x")) != nil })
	if _, err := s.Connect("late"); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
}

// TestHelloCoversTheStart: servers that are not connected yet lose all messages. After Ready the very
// first message arrives.
func TestHelloCoversTheStart(t *testing.T) {
	servers := startServers(t, 3, func(i int, c *Config) { c.Seeds = nil })
	ts := make([]*Transport, 3)
	got := make(chan int, 64)
	for r, s := range servers {
		ts[r] = open(t, s, TransportConfig{Group: "g", Rank: r, Size: 3})
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	err := ts[0].Ready(ctx)
	cancel()
	var missing *NotReadyError
	if !errors.As(err, &missing) || !slices.Equal(missing.Missing(), []int{1, 2}) || !errors.Is(err, ErrNotReady) {
		t.Fatalf("without routes: %v", err)
	}
	errs := make(chan error, 3)
	for r, tr := range ts {
		go func() {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			err := tr.Ready(ctx)
			if err == nil {
				tr.Broadcast(make([]byte, 100)) // immediately after Ready
				tr.Send((r+1)%3, make([]byte, 100))
			}
			errs <- err
		}()
		tr.Receive(func(int, []byte) { got <- r })
	}
	time.Sleep(30 * time.Millisecond) // the first hellos are lost
	for _, s := range servers[1:] {
		if err := s.AddRoute(servers[0].RouteAddr()); err != nil {
			t.Fatal(err)
		}
	}
	for range ts {
		if err := <-errs; err != nil {
			t.Fatal(err)
		}
	}
	for range 9 {
		select {
		case <-got:
		case <-time.After(patience):
			t.Fatal("a message sent after Ready was lost")
		}
	}
}

func TestReadyNamesTheWrong(t *testing.T) {
	s := lone(t)
	a := open(t, s, TransportConfig{Group: "g", Rank: 0, Size: 3, Incarnations: []uint32{1, 1, 1}})
	b := open(t, s, TransportConfig{Group: "g", Rank: 1, Size: 3, Incarnations: []uint32{1, 2, 1}})
	go b.Ready(t.Context())
	waitFor(t, "rank 1 heard, of another incarnation, and rank 2 not", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 150*time.Millisecond)
		defer cancel()
		err := a.Ready(ctx)
		return err != nil && strings.Contains(err.Error(), "rank 1: incarnation 2, expected 1") &&
			strings.Contains(err.Error(), "no message from rank 2")
	})
	c := open(t, s, TransportConfig{Group: "h", Rank: 0, Size: 2})
	d := open(t, s, TransportConfig{Group: "h", Rank: 1, Size: 2, Digest: [32]byte{1}})
	go d.Ready(t.Context())
	if err := c.Ready(t.Context()); err == nil || !strings.Contains(err.Error(), "another placement") {
		t.Errorf("%v", err)
	}
}

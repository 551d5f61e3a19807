package natsbus

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"math/big"
	"net"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/shoal-llm/shoal/collective"
	"github.com/shoal-llm/shoal/internal/sys/fixedport"
)

func TestGossip(t *testing.T) {
	servers := startServers(t, 3, nil) // 1 and 2 have only the address of 0
	waitFor(t, "a full mesh", func() bool {
		return len(servers[0].Peers()) == 2 && len(servers[1].Peers()) == 2 && len(servers[2].Peers()) == 2
	})
	if got := servers[1].Peers(); !slices.Equal(got, []string{"node-0", "node-2"}) {
		t.Errorf("peers of node-1: %v", got)
	}
}

// TestGossipOfListeners: servers gossip their listen addresses, not the source addresses of their
// connections, which on loopback are 127.0.0.1.
func TestGossipOfListeners(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("all of 127.0.0.0/8 is this machine on Linux")
	}
	servers := startServers(t, 3, func(i int, c *Config) { c.Listen = fmt.Sprintf("127.0.0.%d:0", 2+i) })
	waitFor(t, "a full mesh", func() bool {
		return len(servers[0].Peers()) == 2 && len(servers[1].Peers()) == 2 && len(servers[2].Peers()) == 2
	})
}

func TestWrongSecretStaysOut(t *testing.T) {
	servers := startServers(t, 2, func(i int, c *Config) {
		if i == 1 {
			c.Secret = "other"
		}
	})
	time.Sleep(200 * time.Millisecond)
	if p := append(servers[0].Peers(), servers[1].Peers()...); len(p) != 0 {
		t.Errorf("joined in spite of another secret: %v", p)
	}
}

// authority makes TLS configs that trust only one another.
func authority(t *testing.T) *tls.Config {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, c, c, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	leaf, _ := x509.ParseCertificate(der)
	pool := x509.NewCertPool()
	pool.AddCert(leaf)
	return &tls.Config{
		Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}},
		RootCAs:      pool, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert, MinVersion: tls.VersionTLS13,
	}
}

func TestTLS(t *testing.T) {
	ours, theirs := authority(t), authority(t)
	servers := startServers(t, 3, func(i int, c *Config) {
		c.RouteTLS, c.ClientTLS = ours, ours
		if i == 2 {
			c.RouteTLS = theirs
		}
	})
	gs := openGroups(t, openTransports(t, servers[:2], 1), 1, collective.Config{})
	errs := make(chan error, 2)
	for r, g := range gs {
		go func() { errs <- newRankWork(r, 2, 40000).reduce(g, 1) }()
	}
	for range gs {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	if p := servers[2].Peers(); len(p) != 0 {
		t.Errorf("a server of another authority joined: %v", p)
	}
	// A route can be added while clients use TLS.
	if err := servers[0].AddRoute("127.0.0.1:9"); err != nil {
		t.Error(err)
	}
	if err := gs[0].Err(); err != nil {
		t.Errorf("adding a route broke a group: %v", err)
	}
}

// external starts an external NATS and processes that use it.
func external(t *testing.T, names ...string) (servers []*Server) {
	t.Helper()
	ns, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, NoSigs: true,
		NoLog: true, MaxPayload: maxPayload})
	if err != nil {
		t.Fatal(err)
	}
	ns.Start()
	t.Cleanup(func() { ns.Shutdown(); ns.WaitForShutdown() })
	if !ns.ReadyForConnections(patience) {
		t.Fatal("no listener")
	}
	for _, name := range names {
		s, err := Start(Config{Name: name, URL: ns.ClientURL()})
		if err != nil {
			t.Fatal(err)
		}
		servers = append(servers, s)
	}
	return servers
}

func TestExternalServer(t *testing.T) {
	var err error
	servers := external(t, "a", "b")
	ts := openTransports(t, servers, 1)
	gs := make([]*collective.Group, 2)
	for r := range ts {
		if gs[r], err = collective.NewGroup(collective.Config{Rank: r, Size: 2, Epoch: 1}, ts[r]); err != nil {
			t.Fatal(err)
		}
	}
	errs := make(chan error, 2)
	for r, g := range gs {
		go func() { errs <- newRankWork(r, 2, 400000).reduce(g, 1) }()
	}
	for range gs {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	for _, g := range gs {
		g.Close()
		<-g.Done()
	}
}

// startStores starts three servers with stores, on fixed free ports, as an operator would assign
// them. It retries if another test takes a port first.
func startStores(t *testing.T) []*Server {
	t.Helper()
	for again := 0; ; again++ {
		var addrs []string
		var free []net.Listener
		for range 3 {
			l, err := fixedport.Listen("127.0.0.1")
			if err != nil {
				t.Fatal(err)
			}
			addrs = append(addrs, l.Addr().String())
			free = append(free, l)
		}
		for _, l := range free { // keep all open until three different ports are known
			l.Close()
		}
		servers, err := tryServers(t, 3, func(i int, c *Config) { c.StoreDir, c.Listen, c.Seeds = t.TempDir(), addrs[i], addrs })
		if err == nil {
			return servers
		}
		for _, s := range servers {
			s.Shutdown()
		}
		if again == 10 {
			t.Fatal(err)
		}
	}
}

// asked repeats a request until an answer arrives: requests are lost without an error until a leader is
// elected.
func asked(t *testing.T, what string, ask func(context.Context) error) {
	t.Helper()
	var last error
	defer func() {
		if t.Failed() {
			t.Logf("%s: %v", what, last)
		}
	}()
	waitFor(t, what, func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		last = ask(ctx)
		return last == nil
	})
}

// TestJetStream: three of the servers keep streams, and an AddRoute does not disturb them.
func TestJetStream(t *testing.T) {
	servers := startStores(t)
	nc, err := servers[1].Connect("jobs")
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	var kv jetstream.KeyValue
	asked(t, "a replicated bucket", func(ctx context.Context) (err error) {
		kv, err = js.CreateOrUpdateKeyValue(ctx, jetstream.KeyValueConfig{Bucket: "placement", Replicas: 3})
		return err
	})
	if err := servers[1].AddRoute("127.0.0.1:9"); err != nil {
		t.Error(err)
	}
	var rev uint64
	asked(t, "an entry", func(ctx context.Context) (err error) {
		rev, err = kv.Put(ctx, "epoch", []byte("1"))
		return err
	})
	asked(t, "an answer to a wrong revision", func(ctx context.Context) error {
		_, err := kv.Update(ctx, "epoch", []byte("2"), rev+5)
		var api *jetstream.APIError
		if err == nil {
			t.Fatal("compare-and-swap with a wrong revision succeeded")
		} else if errors.As(err, &api) && api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence {
			return nil
		}
		return err
	})
	if nc.Status() != nats.CONNECTED || nc.Stats().Reconnects != 0 {
		t.Errorf("adding a route disturbed the connection: %v, %d reconnects", nc.Status(), nc.Stats().Reconnects)
	}
}

func TestAloneWithStore(t *testing.T) {
	s, err := Start(Config{Name: "a", Alone: true, StoreDir: t.TempDir(), Log: quiet})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Shutdown()
	nc, err := s.Connect("jobs")
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	asked(t, "a bucket", func(ctx context.Context) error {
		_, err := js.CreateOrUpdateKeyValue(ctx, jetstream.KeyValueConfig{Bucket: "placement"})
		return err
	})
	g := openGroups(t, openTransports(t, []*Server{s}, 1), 1, collective.Config{})[0]
	if err := newRankWork(0, 1, 100).reduce(g, 1); err != nil {
		t.Error(err)
	}
}

func TestConfigValidate(t *testing.T) {
	for _, c := range []Config{
		{}, {Name: "a.b"}, {Name: "a", Cluster: "x y"}, {Name: "a", Listen: "nowhere"}, {Name: "a", Seeds: []string{"h"}},
		{Name: "a", Seeds: []string{"h:0"}}, {Name: "a", Advertise: "x"}, {Name: "a", HungAfter: 1}, {Name: "a", StoreBytes: -1},
		{Name: "a", StoreDir: "x"}, {Name: "a", StoreDir: "x", Seeds: []string{"h:1"}}, {Name: "a", Alone: true, Seeds: []string{"h:1"}},
		{Name: "a", URL: "nats://x", Seeds: []string{"h:1"}},
	} {
		if _, err := Start(c); err == nil {
			t.Errorf("%+v accepted", c)
		}
	}
	s := lone(t)
	for _, c := range []TransportConfig{{}, {Group: "g"}, {Group: "g", Size: 1, Rank: 1}, {Group: "a.*", Size: 1},
		{Group: "g", Size: 2, Incarnations: []uint32{1}}} {
		if _, err := s.Transport(c); err == nil {
			t.Errorf("%+v accepted", c)
		}
	}
}

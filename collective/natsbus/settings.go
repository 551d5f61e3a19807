package natsbus

import (
	"net"
	"net/url"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

const (
	maxPayload = 16 << 20
	// maxPending is what a server holds for one slow connection. Below it,
	// producers are stalled, which is the back-pressure that we want.
	maxPending   = 512 << 20
	pingsPerHang = 3
	// clientSilence is for how long a client may take nothing and answer no ping.
	clientSilence = time.Minute
)

// options are the server's settings, the same for the start and for a reload
// with more routes (a reload refuses most other differences).
func (s *Server) options(seeds []string) *server.Options {
	c := s.cfg
	host, port, _ := splitAddress(c.Listen)
	if port == 0 {
		port = server.RANDOM_PORT
	}
	clients := c.ClientPort
	if clients == 0 {
		clients = server.RANDOM_PORT
	}
	// Without an address, servers tell one another the one that its connections come from,
	// which need not be the one that it listens at.
	advertise := c.Advertise
	if ip := net.ParseIP(host); advertise == "" && ip != nil && !ip.IsUnspecified() {
		advertise = net.JoinHostPort(host, "0") // the port it has
	}
	o := &server.Options{
		ServerName: c.Name,
		// DontListen would keep routes from ever starting: the route listener
		// waits for the client listener. Ranks of other processes log in here.
		Host: host, Port: clients,
		CustomClientAuthentication: s.users,
		AlwaysEnableNonce:          true,
		NoSigs:                     true,
		MaxPayload:                 maxPayload,
		MaxPending:                 maxPending,
		// true would skip deliveries above 75% of MaxPending, without a word.
		NoFastProducerStall: false,
		// A client that takes nothing for long is starved, not hung (routes and
		// deadlines tell of that), and what it misses would fail its group. One of a
		// frozen process that all has been written to is told by pings alone: its
		// goroutines, descriptor and subscriptions would stay for 6 minutes.
		WriteDeadline: clientSilence,
		PingInterval:  clientSilence / pingsPerHang, MaxPingsOut: pingsPerHang - 1,
		TLSConfig:   c.ClientTLS,
		TLSTimeout:  loginLimit,
		AuthTimeout: loginLimit,
		Cluster: server.ClusterOpts{
			Name: c.Cluster, Host: host, Port: port, Advertise: advertise,
			TLSConfig: c.RouteTLS, TLSTimeout: loginLimit, AuthTimeout: loginLimit,
			// One route per pair: a pool is spread by account and we have one.
			PoolSize:    -1,
			Compression: server.CompressionOpts{Mode: server.CompressionOff},
			// Without pings a stopped peer is not noticed in 14 s.
			PingInterval: c.HungAfter / pingsPerHang, MaxPingsOut: pingsPerHang,
			WriteDeadline: c.HungAfter,
			// A peer learned by gossip is tried again for a while; seeds for ever.
			ConnectRetries: 30,
		},
		// A dead peer is retried every second: say so now and then, not each time.
		ConnectErrorReports: 60, ReconnectErrorReports: 60,
	}
	// Both ends of TLS prove that they hold the key, which may change while they are
	// connected; a password of the server could not.
	password := c.Secret != "" && c.RouteTLS == nil
	if password && !c.Alone {
		o.Cluster.Username, o.Cluster.Password = "route", c.Secret
	}
	if c.Alone {
		o.Cluster, o.Host = server.ClusterOpts{}, "127.0.0.1"
	}
	for _, a := range seeds {
		u := &url.URL{Scheme: "nats-route", Host: a}
		if password {
			u.User = url.UserPassword("route", c.Secret)
		}
		o.Routes = append(o.Routes, u)
	}
	if c.StoreDir != "" {
		o.JetStream, o.StoreDir = true, c.StoreDir
		o.JetStreamMaxStore, o.JetStreamMaxMemory = c.StoreBytes, c.MemoryBytes
		o.SyncAlways = c.SyncAlways
		o.DisableJetStreamBanner = true
	}
	return o
}

package natsbus

import (
	"net"
	"net/url"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

const (
	maxPayload = 16 << 20
	// maxPending is the limit of unsent bytes for one slow connection. Below it the server stalls
	// producers, which is the intended back-pressure.
	maxPending   = 512 << 20
	pingsPerHang = 3
	// clientTimeout is how long a client may read nothing and answer no ping.
	clientTimeout = time.Minute
)

// options returns the server's settings. A start and a reload with more routes use the same ones, since
// a reload refuses most other differences.
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
	// Without an advertised address, the other servers gossip the source address of this server's
	// connections. It may differ from the address of its listener.
	advertise := c.Advertise
	if ip := net.ParseIP(host); advertise == "" && ip != nil && !ip.IsUnspecified() {
		advertise = net.JoinHostPort(host, "0") // the actual port
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
		// With true, the server would drop messages above 75% of MaxPending without an error.
		NoFastProducerStall: false,
		// A client that reads nothing for long is starved, not hung: routes and deadlines detect
		// hangs, and a missed message would fail its group. Only pings detect a frozen process that has
		// no unread data: its goroutines, descriptor and subscriptions would stay for 6 minutes.
		WriteDeadline: clientTimeout,
		PingInterval:  clientTimeout / pingsPerHang, MaxPingsOut: pingsPerHang - 1,
		TLSConfig:   c.ClientTLS,
		TLSTimeout:  loginLimit,
		AuthTimeout: loginLimit,
		Cluster: server.ClusterOpts{
			Name: c.Cluster, Host: host, Port: port, Advertise: advertise,
			TLSConfig: c.RouteTLS, TLSTimeout: loginLimit, AuthTimeout: loginLimit,
			// One route per pair: a pool is spread over accounts, and there is only one.
			PoolSize:    -1,
			Compression: server.CompressionOpts{Mode: server.CompressionOff},
			// Without pings a stopped peer goes unnoticed for 14 s.
			PingInterval: c.HungAfter / pingsPerHang, MaxPingsOut: pingsPerHang,
			WriteDeadline: c.HungAfter,
			// An address from gossip is retried for a while, seeds for ever.
			ConnectRetries: 30,
		},
		// A dead peer is retried every second. Log only every sixtieth error.
		ConnectErrorReports: 60, ReconnectErrorReports: 60,
	}
	// TLS proves that both ends hold the key, even if the key changes while they are connected. A
	// server password cannot change.
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

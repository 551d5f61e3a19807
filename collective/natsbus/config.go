package natsbus

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"time"
)

var (
	// ErrConfig means that a setting is wrong. The message names it.
	ErrConfig = errors.New("natsbus: bad configuration")
	// ErrNotReady: the hello barrier did not complete in time with every rank.
	ErrNotReady = errors.New("natsbus: ranks are missing")
	// ErrClosed: the server or transport was closed.
	ErrClosed = errors.New("natsbus: closed")
	// ErrLost: messages have been or may have been lost on a live transport.
	ErrLost = errors.New("natsbus: messages lost")
)

// Config describes the bus of one process.
type Config struct {
	// Name of this server: the node's id, unique in the cluster. One token of
	// letters, digits, - and _.
	Name string
	// Cluster names the cluster (default "shoal"; letters, digits, - and _). Servers with another
	// name are refused. On an external NATS it separates the subjects of several clusters:
	// tp.<Cluster>.>
	Cluster string

	// Listen is the host:port for routes (default 127.0.0.1:0; port 0: any free port). Advertise is
	// the host:port at which other servers reach it, if that differs.
	Listen    string
	Advertise string
	// Seeds are route addresses (host:port) of some other servers, which gossip the rest. A server
	// retries its seeds for ever.
	Seeds []string
	// ClientPort is the port on the host of Listen where ranks of other processes log in; 0 takes a
	// free one.
	ClientPort int

	// Secret must be equal on all servers. Without TLS it crosses the network in the clear.
	Secret string
	// Secrets returns the secrets that are accepted now, the current one first, for a Secret that
	// changes while servers run. It needs RouteTLS, which then protects the routes alone. nil: only
	// Secret is accepted.
	Secrets func() []string
	// RouteTLS secures both ends of routes: set ClientAuth, ClientCAs and RootCAs, since each
	// server dials and is dialled. ClientTLS secures the client listener, where ranks of other
	// processes subscribe. nil means plain TCP: logins cannot be replayed, but anyone who can read the
	// packets can read the tensors.
	RouteTLS  *tls.Config
	ClientTLS *tls.Config

	// HungAfter: a route whose peer answers no ping for this long is dropped (default 3 s; three
	// pings). Pings queue after data: with 1 s, a busy machine that moved a few MB per peer dropped
	// routes of healthy peers, and messages with them. Deadlines and gossip detect a hang sooner.
	HungAfter time.Duration

	// StoreDir turns JetStream on and is the directory of its files. The JetStream servers of a mesh
	// must have each other's addresses from the start: Seeds lists the route addresses of all servers
	// with a StoreDir, this one included (so Listen has a fixed port), two or more. StoreBytes bounds
	// the files (default 1 GiB), MemoryBytes the memory (default 64 MiB). SyncAlways makes every
	// acknowledged write survive a power loss, at 3 to 10 times the latency.
	StoreDir    string
	StoreBytes  int64
	MemoryBytes int64
	SyncAlways  bool

	// Alone turns routes off, for a cluster of one process. JetStream then needs no other server.
	Alone bool

	// URL of an external NATS (several: comma-separated). No server is embedded then. The external
	// server must allow payloads of 16 MB, and its operator manages permissions.
	URL string

	// Log receives the server's log (default: slog.Default).
	Log *slog.Logger
}

func (c Config) secrets() []string {
	if c.Secrets != nil {
		return c.Secrets()
	}
	return []string{c.Secret}
}

func (c Config) ensureDefaults() Config {
	c.Cluster = cmp.Or(c.Cluster, "shoal")
	c.Listen = cmp.Or(c.Listen, "127.0.0.1:0")
	c.HungAfter = cmp.Or(c.HungAfter, 3*time.Second)
	c.StoreBytes = cmp.Or(c.StoreBytes, 1<<30)
	c.MemoryBytes = cmp.Or(c.MemoryBytes, 64<<20)
	if c.Log == nil {
		c.Log = slog.Default()
	}
	return c
}

// Validate returns the error that Start would return for a config, or nil.
func (c Config) Validate() error {
	c = c.ensureDefaults()
	bad := func(format string, a ...any) error {
		return fmt.Errorf("%w: %s", ErrConfig, fmt.Sprintf(format, a...))
	}
	if !isToken(c.Name) {
		return bad("Name %q: want letters, digits, - and _", c.Name)
	}
	if !isToken(c.Cluster) {
		return bad("Cluster %q: want letters, digits, - and _", c.Cluster)
	}
	if c.URL != "" {
		if len(c.Seeds) > 0 || c.StoreDir != "" || c.Advertise != "" {
			return bad("URL %q names an external NATS: Seeds, Advertise and StoreDir have no meaning with it", redacted(c.URL))
		}
		return nil
	}
	if c.Alone && len(c.Seeds) > 0 {
		return bad("Alone with Seeds %v", c.Seeds)
	}
	if c.StoreDir != "" && !c.Alone && len(c.Seeds) < 2 {
		return bad("StoreDir in a mesh: Seeds must list all servers with a StoreDir, two or more, this one included (or set Alone)")
	}
	if _, _, err := splitAddress(c.Listen); err != nil {
		return bad("Listen: %v", err)
	}
	for _, s := range c.Seeds {
		if _, port, err := splitAddress(s); err != nil {
			return bad("Seeds: %v", err)
		} else if port == 0 {
			return bad("Seeds: %q has no port", s)
		}
	}
	if c.Advertise != "" {
		if _, _, err := splitAddress(c.Advertise); err != nil {
			return bad("Advertise: %v", err)
		}
	}
	if c.HungAfter < 50*time.Millisecond {
		return bad("HungAfter %v: want at least 50ms", c.HungAfter)
	}
	if c.StoreBytes < 0 || c.MemoryBytes < 0 {
		return bad("StoreBytes %d, MemoryBytes %d: want positive numbers", c.StoreBytes, c.MemoryBytes)
	}
	return nil
}

func splitAddress(s string) (host string, port int, err error) {
	host, p, err := net.SplitHostPort(s)
	if err != nil {
		return "", 0, fmt.Errorf("%q is not host:port: %w", s, err)
	}
	if port, err = net.LookupPort("tcp", p); err != nil {
		return "", 0, fmt.Errorf("%q: %w", s, err)
	}
	return host, port, nil
}

// isToken reports whether s is valid as one token of a subject.
func isToken(s string) bool {
	const ok = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_"
	return s != "" && len(s) <= 128 && strings.Trim(s, ok) == ""
}

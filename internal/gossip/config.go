package gossip

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/shoal-llm/shoal/internal/security"
)

// Profile is a set of timings.
type Profile uint8

// Profiles, with the time from kill -9 to Failed on an idle machine.
const (
	// LAN: about 3 s, and patient with busy machines. The default.
	LAN Profile = iota
	// Local: about 1 s; for processes of one machine.
	Local
)

// Config says who this member is.
type Config struct {
	// Name is unique in the cluster; a node keeps it across restarts.
	Name string
	// Bind is host:port for UDP and TCP; port 0 takes a free one.
	Bind string
	// Advertise is the IP:port others reach this member at. Default: Bind,
	// which must then name one interface. No port or port 0 means Bind's.
	Advertise string
	// Keys are of 32 bytes each (security.Key.Gossip): the first is used, all are
	// accepted; see SetKeys. Without one, traffic is plain and Bind must be a
	// loopback address.
	Keys [][]byte
	// Label keeps clusters apart that share a network; members of other labels
	// are not heard. At most 255 bytes.
	Label string
	// Meta is announced to all; see UpdateMeta.
	Meta Meta
	// Profile of timings. Default LAN.
	Profile Profile
	// Logger; default slog.Default.
	Logger *slog.Logger
	// OnEvent is told of every change of other members, one at a time and in
	// order, from a goroutine of its own; it may block and may call the Node,
	// except Leave and Close, which wait for it. nil: nobody is told.
	OnEvent func(Event)
}

var (
	// ErrKeySize is returned for a key that is not AES-256.
	ErrKeySize = errors.New("gossip: the key must have 32 bytes")
	// ErrWrongKey: a seed answered, but cannot read us, or we cannot read it.
	ErrWrongKey = errors.New("gossip: the seed has another cluster key or name")
	// ErrJoin: no seed could be reached, or not enough members met.
	ErrJoin = errors.New("gossip: could not join")
	// ErrClosed: this Node has left or was closed; start a new one.
	ErrClosed = errors.New("gossip: closed")
)

func (c *Config) memberlist() (*memberlist.Config, error) {
	if c.Name == "" || len(c.Name) > 128 {
		return nil, fmt.Errorf("gossip: name of %d bytes, want 1 to 128", len(c.Name))
	}
	for _, k := range c.Keys {
		if len(k) != 32 {
			return nil, fmt.Errorf("%w, it has %d", ErrKeySize, len(k))
		}
	}
	if len(c.Label) > 255 {
		return nil, fmt.Errorf("gossip: label of %d bytes, at most 255", len(c.Label))
	}
	if err := security.CheckBind(c.Bind, c.Keys != nil); err != nil {
		return nil, fmt.Errorf("gossip: %w", err)
	}
	host, port, err := security.HostPort(c.Bind)
	if err != nil {
		return nil, fmt.Errorf("gossip: bind address: %w", err)
	}
	m := memberlist.DefaultLANConfig()
	m.Name, m.Label = c.Name, c.Label
	m.BindAddr, m.BindPort = host, port
	if host == "localhost" {
		m.BindAddr = "127.0.0.1"
	}
	m.AdvertisePort = port
	if c.Advertise != "" {
		h, p, err := security.HostPort(c.Advertise)
		if err != nil {
			h, p = c.Advertise, 0
		}
		if net.ParseIP(h) == nil {
			return nil, fmt.Errorf("gossip: advertised address %q must be an IP address", c.Advertise)
		}
		m.AdvertiseAddr = h
		if p != 0 {
			m.AdvertisePort = p
		}
	} else if ip := net.ParseIP(m.BindAddr); ip == nil || ip.IsUnspecified() {
		return nil, fmt.Errorf("gossip: %s is not one IP address, and others need to be told one: bind to the address of this machine that they reach (or set Advertise)", c.Bind)
	}
	if c.Keys != nil {
		if m.Keyring, err = memberlist.NewKeyring(c.Keys, c.Keys[0]); err != nil {
			return nil, fmt.Errorf("gossip: %w", err)
		}
	}
	m.GossipVerifyIncoming, m.GossipVerifyOutgoing = true, true
	m.EnableCompression = false // messages are small, and nobody should unpack a stranger's
	m.RequireNodeNames = false
	return m, c.Profile.apply(m)
}

// apply sets the timings. Measured with 16 processes on 2 cores: Local detects
// in 1.0 to 1.4 s, LAN in 2.5 to 3.6 s, also under load; memberlist's own
// settings need 6 to 12 s. Half of Local's would detect in 0.5 s and raise
// false alarms. push/pull every few seconds repairs what parallel joins miss.
//
// Who asked others to probe for it hears from them after two ProbeTimeouts, and
// counts an answer that is not there after one ProbeInterval as a sign of its own
// slowness (Node.Health). So two of the former end well before the latter: else
// one frozen member makes every other one doubt itself, and detection takes as
// many times longer.
func (p Profile) apply(m *memberlist.Config) error {
	m.SuspicionMult, m.SuspicionMaxTimeoutMult = 3, 3
	m.GossipInterval = 50 * time.Millisecond
	m.TCPTimeout = 2 * time.Second
	// A process that takes a dead one's name at another address need not wait until
	// the dead one is forgotten (GossipToTheDeadTime).
	m.DeadNodeReclaimTime = time.Second
	switch p {
	case Local:
		m.ProbeInterval, m.ProbeTimeout = 200*time.Millisecond, 60*time.Millisecond
		m.PushPullInterval = 3 * time.Second
		m.GossipToTheDeadTime = 15 * time.Second
	case LAN:
		m.ProbeInterval, m.ProbeTimeout = 500*time.Millisecond, 150*time.Millisecond
		m.PushPullInterval = 10 * time.Second
		m.GossipToTheDeadTime = 30 * time.Second
	default:
		return fmt.Errorf("gossip: unknown profile %d; known are LAN (0) and Local (1)", p)
	}
	return nil
}

func errConflict(existing, other *memberlist.Node) error {
	return fmt.Errorf("gossip: two members are named %s, at %s and %s; the second is ignored until the first is gone", other.Name, existing.Address(), other.Address())
}

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

// Profiles, with the time from kill -9 to the Failed event on an idle machine.
const (
	// LAN: about 3 s, tolerates loaded machines. The default.
	LAN Profile = iota
	// Local: about 1 s, for processes on one machine.
	Local
)

// Config has the identity, the addresses and the timings of a member.
type Config struct {
	// Name is unique in the cluster and survives restarts.
	Name string
	// Bind is the host:port for UDP and TCP; port 0 chooses a free one.
	Bind string
	// Advertise is the IP:port at which others reach this member. Default: Bind, which must then
	// name one interface. No port or port 0 means that of Bind.
	Advertise string
	// Keys has keys of 32 bytes each (security.Key.Gossip). The first encrypts, all decrypt; see
	// SetKeys. Without keys, traffic is unencrypted and Bind must be a loopback address.
	Keys [][]byte
	// Label separates clusters that share a network: messages with another label are ignored. At
	// most 255 bytes.
	Label string
	// Meta is announced to all members; see UpdateMeta.
	Meta Meta
	// Profile selects the timings. Default LAN.
	Profile Profile
	// Logger receives the log. Default slog.Default.
	Logger *slog.Logger
	// OnEvent is called for every change of other members, one at a time and in order, from its own
	// goroutine. It may block and may call the Node, except Leave and Close, which wait for it. It
	// may be nil.
	OnEvent func(Event)
}

var (
	// ErrKeySize is returned for a key that is not AES-256.
	ErrKeySize = errors.New("gossip: the key must have 32 bytes")
	// ErrWrongKey: a seed answered, but one side cannot decrypt the other's messages.
	ErrWrongKey = errors.New("gossip: the seed has another cluster key or name")
	// ErrJoin: no seed was reachable, or too few members were found.
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
		return nil, fmt.Errorf("gossip: label of %d bytes exceeds the limit of 255", len(c.Label))
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
		return nil, fmt.Errorf("gossip: %s is not one IP address, but members need one: bind to an address of this machine that they can "+
			"reach (or set Advertise)", c.Bind)
	}
	if c.Keys != nil {
		if m.Keyring, err = memberlist.NewKeyring(c.Keys, c.Keys[0]); err != nil {
			return nil, fmt.Errorf("gossip: %w", err)
		}
	}
	m.GossipVerifyIncoming, m.GossipVerifyOutgoing = true, true
	m.EnableCompression = false // messages are small, and decompressing untrusted data is a risk
	m.RequireNodeNames = false
	return m, c.Profile.apply(m)
}

// apply sets the timings. Measured with 16 processes on 2 cores: Local detects failures
// in 1.0 to 1.4 s and LAN in 2.5 to 3.6 s, also under load. memberlist's own settings
// need 6 to 12 s. Half of Local's would detect in 0.5 s, with false alarms. A push/pull
// every few seconds repairs what concurrent joins miss.
//
// A member that asked others for an indirect probe gets their negative answers after
// two ProbeTimeouts. It counts an answer missing after one ProbeInterval as a sign of
// its own slowness (Node.Health). So two ProbeTimeouts must end well before a
// ProbeInterval. Otherwise one frozen member makes all others doubt themselves, which
// slows detection several times.
func (p Profile) apply(m *memberlist.Config) error {
	m.SuspicionMult, m.SuspicionMaxTimeoutMult = 3, 3
	m.GossipInterval = 50 * time.Millisecond
	m.TCPTimeout = 2 * time.Second
	// A process may reuse a dead member's name at another address before GossipToTheDeadTime ends.
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
	return fmt.Errorf("gossip: two members are named %s, at %s and %s; the second is ignored until the first is gone: "+
		"stop one of them, or start it with another --id",
		other.Name, existing.Address(), other.Address())
}

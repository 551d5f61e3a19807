package rpc

import (
	"cmp"
	"crypto/rand"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"regexp"
	"strconv"
	"time"

	"github.com/shoal-llm/shoal/internal/security"
)

// Limits of the wire format, equal in every process.
const (
	// MaxPayload is the maximum size of one payload in bytes, checked by both sides.
	MaxPayload = 1_000_000
	// FirstKind is the first kind that applications may use.
	FirstKind = 16

	maxID       = 64
	maxErrText  = 4096
	maxName     = 256
	maxAddress  = 256
	writerBatch = 64       // messages per gRPC message: 64 * MaxPayload is below maxMessage
	maxMessage  = 64 << 20 // maximum bytes of a gRPC message
)

// Config has the identity, the addresses and the limits of a System.
type Config struct {
	// ID is the node id: 1 to 64 letters, digits, '.', '_', '-'. With TLS it
	// must be the id in the certificate.
	ID string
	// Role is sent to peers in the handshake.
	Role string
	// Incarnation distinguishes this run of the process from others with the same ID or address.
	// Default: a NewIncarnation.
	Incarnation uint64
	// Build is sent to peers, for display.
	Build string
	// Bind is the host:port to listen on; port 0 chooses a free one. Without TLS it must be a
	// loopback address.
	Bind string
	// Advertise is the host:port that peers dial. Default: Bind with the actual port, which
	// requires that Bind names one interface. Port 0 or no port means that of Bind.
	Advertise string
	// ServerTLS and ClientTLS are both set (see security.Key.TLS) or both nil.
	ServerTLS, ClientTLS *tls.Config
	// Logger receives the log of this package and of Proto.Actor. Default: slog.Default.
	Logger *slog.Logger
	// CallTimeout is the deadline of a Call whose context has none. Default 10 s.
	CallTimeout time.Duration
	// ConnectTimeout is the deadline of one attempt to connect and shake hands. Default 2 s.
	ConnectTimeout time.Duration
	// ProbeTimeout is the deadline of the ping that decides whether a peer with a broken connection
	// is dead. A dead process on a running machine refuses immediately, so the timeout is for dead
	// machines and frozen processes. Default 500 ms.
	ProbeTimeout time.Duration
	// MailboxLimit is the maximum number of envelopes in one actor's mailbox. Further ones are
	// refused with ErrBusy. Default 4096.
	MailboxLimit int
	// QueueBytes and QueueMessages limit the queue of one peer's connection. Beyond them Send and
	// Call fail with ErrBusy. Defaults 32 MB and 8192.
	QueueBytes, QueueMessages int64
}

var idPattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

// NewIncarnation returns a random number that identifies one run of a process, never 0.
// Incarnations have no order: they contain no clock, which might be set back between two runs.
func NewIncarnation() (n uint64) {
	var b [8]byte
	for uint32(n) == 0 { // collectives compare the low 32 bits
		_, _ = rand.Read(b[:]) // never fails
		n = binary.NativeEndian.Uint64(b[:])
	}
	return n
}

func (c *Config) ensureDefaults() {
	if c.Incarnation == 0 {
		c.Incarnation = NewIncarnation()
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	c.CallTimeout = cmp.Or(c.CallTimeout, 10*time.Second)
	c.ConnectTimeout = cmp.Or(c.ConnectTimeout, 2*time.Second)
	c.ProbeTimeout = cmp.Or(c.ProbeTimeout, 500*time.Millisecond)
	c.MailboxLimit = cmp.Or(c.MailboxLimit, 4096)
	c.QueueBytes = cmp.Or(c.QueueBytes, 32<<20)
	c.QueueMessages = cmp.Or(c.QueueMessages, 8192)
}

func (c *Config) Validate() error {
	if !idPattern.MatchString(c.ID) {
		return fmt.Errorf("rpc: node id %q must be 1 to %d letters, digits, '.', '_' or '-', beginning with a letter or digit", c.ID, maxID)
	}
	if len(c.Role) > maxID {
		return fmt.Errorf("rpc: role of %d bytes exceeds the limit of %d", len(c.Role), maxID)
	}
	if (c.ServerTLS == nil) != (c.ClientTLS == nil) {
		return errors.New("rpc: TLS is set for one direction only; set both ServerTLS and ClientTLS, or neither")
	}
	if c.CallTimeout < 0 || c.ConnectTimeout < 0 || c.ProbeTimeout < 0 || c.MailboxLimit < 0 || c.QueueBytes < 0 || c.QueueMessages < 0 {
		return errors.New("rpc: limits and timeouts must not be negative")
	}
	if _, _, err := security.HostPort(c.Bind); err != nil {
		return fmt.Errorf("rpc: bind address: %w", err)
	}
	if err := security.CheckBind(c.Bind, c.ServerTLS != nil); err != nil {
		return fmt.Errorf("rpc: %w", err)
	}
	if len(c.Advertise) > maxAddress {
		return fmt.Errorf("rpc: advertised address of %d bytes exceeds the limit of %d", len(c.Advertise), maxAddress)
	}
	return nil
}

// advertised returns the address that peers dial, given the port that Bind got.
func (c *Config) advertised(port int) (string, error) {
	host, _, err := security.HostPort(c.Bind)
	if err != nil {
		return "", err
	}
	if c.Advertise != "" {
		h, p, err := net.SplitHostPort(c.Advertise)
		if err != nil {
			h, p = c.Advertise, "0"
		}
		if p != "0" && p != "" {
			return c.Advertise, nil
		}
		return net.JoinHostPort(h, strconv.Itoa(port)), nil
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		return "", fmt.Errorf("rpc: %s listens on every interface, but peers need one address: bind to an address of this machine that they "+
			"can reach (or set Advertise)", c.Bind)
	}
	return net.JoinHostPort(host, strconv.Itoa(port)), nil
}

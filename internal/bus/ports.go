package bus

import (
	"net"
	"strconv"

	"github.com/shoal-llm/shoal/internal/hostname"
)

// Ports is the first of the four ports that a process listens on in addition to gossip; 0: any free
// ones.
type Ports int

// The listeners, in the order of their ports.
const (
	ControlPort = iota // steps, calls
	RoutesPort         // of the NATS mesh
	TensorsPort        // for logins of other ranks
	StorePort          // replicas of the store, with a data directory
	PortCount
)

func (p Ports) number(which int) int {
	if p == 0 {
		return 0
	}
	return int(p) + which
}

// At returns the address of a listener on a host.
func (p Ports) At(host string, which int) string {
	return net.JoinHostPort(host, strconv.Itoa(p.number(which)))
}

// StoreAt returns the place of the listener of the store.
func (p Ports) StoreAt(at hostname.Place) hostname.Place {
	host, _, _ := net.SplitHostPort(at.Bind) // hostname.Locate has split it
	return hostname.Place{Bind: p.At(host, StorePort), Name: at.Name}
}

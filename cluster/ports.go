package cluster

import (
	"net"
	"strconv"
)

// Ports is the first of the four ports that a process listens on in addition to gossip; 0: any free
// ones.
type Ports int

// The listeners, in the order of their ports.
const (
	controlPort = iota // steps, calls
	routesPort         // of the NATS mesh
	tensorsPort        // for logins of other ranks
	storePort          // replicas of the store, with a data directory
	portsOfAll
)

func (p Ports) number(which int) int {
	if p == 0 {
		return 0
	}
	return int(p) + which
}

func (p Ports) at(host string, which int) string {
	return net.JoinHostPort(host, strconv.Itoa(p.number(which)))
}

package natsbus

import (
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// nats-server does not bound connections that have not logged in: its MaxConn counts all clients,
// this process's own included, and does not apply to routes. It ends each only after AuthTimeout.
// So a guard watches while file descriptors are scarce, and ends the oldest such connections above
// a limit.

const (
	guardEvery = 100 * time.Millisecond
	guardHurry = 5 * time.Millisecond // while file descriptors are scarce
	// loginLimit is the time in which a connection to a listener must log in. The guard ends it
	// earlier when there are too many.
	loginLimit = 5 // seconds
)

// excess returns the connections to end. Of the connections without a login, the newest `most` stay.
// since has the time at which each was first observed.
func excess(since map[netip.AddrPort]time.Time, most int) []netip.AddrPort {
	if len(since) <= most {
		return nil
	}
	all := make([]netip.AddrPort, 0, len(since))
	for a := range since {
		all = append(all, a)
	}
	slices.SortFunc(all, func(a, b netip.AddrPort) int { return since[a].Compare(since[b]) })
	return all[:len(all)-most]
}

// loggedIn returns the remote addresses of clients and routes that have logged in.
func loggedIn(ns *server.Server) map[netip.AddrPort]bool {
	in := map[netip.AddrPort]bool{}
	addPeer := func(ip string, port int) {
		if a, err := netip.ParseAddr(ip); err == nil {
			in[netip.AddrPortFrom(a.Unmap(), uint16(port))] = true
		}
	}
	if z, err := ns.Connz(&server.ConnzOptions{Limit: 1 << 20}); err == nil {
		for _, c := range z.Conns {
			if c.Lang != "" { // every client of Shoal sends it with its login
				addPeer(c.IP, c.Port)
			}
		}
	}
	if z, err := ns.Routez(nil); err == nil {
		for _, r := range z.Routes {
			addPeer(r.IP, r.Port)
		}
	}
	return in
}

// ports returns the ports of the listeners.
func ports(ns *server.Server) map[uint16]bool {
	p := map[uint16]bool{}
	if a, ok := ns.Addr().(*net.TCPAddr); ok {
		p[uint16(a.Port)] = true
	}
	if a := ns.ClusterAddr(); a != nil {
		p[uint16(a.Port)] = true
	}
	return p
}

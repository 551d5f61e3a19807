package natsbus

import (
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// nats-server has no bound on connections that have not logged in (its MaxConn counts all clients,
// this process's own included, and routes have none). It ends each after AuthTimeout. So a guard
// looks while files are short, and ends the oldest of those that are too many.

const (
	guardEvery = 100 * time.Millisecond
	guardHurry = 5 * time.Millisecond // while files are short
	// loginLimit is how long a connection to one of the listeners may take to log in. A guard ends
	// it earlier when there are many.
	loginLimit = 5 // seconds
)

// excess are the connections to end: all but the newest of those that have not logged in. since
// says when each was first seen.
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

// loggedIn are the remote ends of clients and routes that the server has let in.
func loggedIn(ns *server.Server) map[netip.AddrPort]bool {
	in := map[netip.AddrPort]bool{}
	note := func(ip string, port int) {
		if a, err := netip.ParseAddr(ip); err == nil {
			in[netip.AddrPortFrom(a.Unmap(), uint16(port))] = true
		}
	}
	if z, err := ns.Connz(&server.ConnzOptions{Limit: 1 << 20}); err == nil {
		for _, c := range z.Conns {
			if c.Lang != "" { // every client of ours says it as it logs in
				note(c.IP, c.Port)
			}
		}
	}
	if z, err := ns.Routez(nil); err == nil {
		for _, r := range z.Routes {
			note(r.IP, r.Port)
		}
	}
	return in
}

// ports are those of the listeners.
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

package network

import (
	"container/heap"
	"fmt"
	"net/netip"
	"time"

	"github.com/shoal-llm/shoal/test/wire/link"
	"github.com/shoal-llm/shoal/test/wire/nat"
	header "github.com/shoal-llm/shoal/test/wire/packet"
	"github.com/shoal-llm/shoal/test/wire/topology"
)

// fabric determines when and where packets arrive. It has no clock and no sockets.
type fabric struct {
	top      *topology.Topology
	up, down []*link.Link // of hosts, to and from their switch
	out, in  []*link.Link // of racks, to and from the core
	hosts    map[netip.Addr]int
	routers  []*nat.Table // of hosts; nil: none
	cut      map[[2]int]bool
	events   events
	sequence uint64
	refused  int64 // packets that a firewall dropped
	strays   int64 // packets to an address that no host has
	blocked  int64 // packets that a router with address translation dropped
	cutOff   int64
	free     [][]byte
	packets  []*packet // free
}

// packet is a packet on its way.
type packet struct {
	due      time.Duration // arrival at the end of the next link
	sequence uint64        // order of packets that are due at once
	from, to int
	hop      int // links that it has passed
	data     []byte
}

func newFabric(top *topology.Topology) *fabric {
	f := &fabric{top: top, cut: map[[2]int]bool{}, hosts: map[netip.Addr]int{}}
	stream := uint64(0)
	make := func(s link.Settings) *link.Link { stream++; return link.New(s, top.Seed, stream) }
	for i, h := range top.Hosts {
		for _, a := range h.Addresses() {
			f.hosts[a] = i
		}
		f.routers = append(f.routers, nil)
		if h.NAT.IsValid() {
			f.routers[i] = &nat.Table{Inner: h.NAT, Outer: h.Address}
		}
		f.up, f.down = append(f.up, make(h.Link)), append(f.down, make(h.Link))
	}
	for _, r := range top.Racks {
		f.out, f.in = append(f.out, make(r.Uplink)), append(f.in, make(r.Uplink))
	}
	return f
}

// buffer returns a buffer for one packet.
func (f *fabric) buffer() []byte {
	if n := len(f.free); n > 0 {
		b := f.free[n-1]
		f.free = f.free[:n-1]
		return b[:cap(b)]
	}
	return make([]byte, f.top.MTU+64)
}

func (f *fabric) release(b []byte) { f.free = append(f.free, b) }

// send accepts a packet from a host. The fabric owns data.
func (f *fabric) send(now time.Duration, from int, data []byte) {
	if r := f.routers[from]; r != nil && !r.Out(data) {
		f.blocked++
		f.release(data)
		return
	}
	h, ok := header.Parse(data)
	if owner, known := f.hosts[h.From]; !ok || !known || owner != from { // such as router solicitations of IPv6
		f.release(data)
		return
	}
	if h.To.IsMulticast() {
		for to := range f.top.Hosts {
			if to != from {
				f.pass(now, from, to, append(f.buffer()[:0], data...), h)
			}
		}
		f.release(data)
		return
	}
	to, ok := f.hosts[h.To]
	if !ok {
		f.strays++
		f.release(data)
		return
	}
	f.pass(now, from, to, data, h)
}

func (f *fabric) pass(now time.Duration, from, to int, data []byte, h header.Header) {
	switch {
	case f.cut[[2]int{from, to}]:
		f.cutOff++
	case !h.Fragment && (h.TCP || h.UDP) && !f.top.Hosts[to].Open(h.ToPort, h.UDP) &&
		(f.top.Hosts[from].Ports == nil || !f.top.Hosts[from].Open(h.FromPort, h.UDP)):
		f.refused++ // neither a request to an open port nor a reply from one
	case f.routers[to] != nil && !f.routers[to].In(data):
		f.blocked++
	default:
		f.enter(f.packet(packet{due: now, from: from, to: to, data: data}))
		return
	}
	f.release(data)
}

// packet returns a copy of p in memory of an earlier packet.
func (f *fabric) packet(p packet) *packet {
	q := &packet{}
	if n := len(f.packets); n > 0 {
		q, f.packets = f.packets[n-1], f.packets[:n-1]
	}
	*q = p
	return q
}

// drop returns the memory of a packet.
func (f *fabric) drop(p *packet) {
	f.release(p.data)
	f.packets = append(f.packets, p)
}

// enter passes a packet to its next link.
func (f *fabric) enter(p *packet) {
	arrivals, n := f.linkOf(p).Send(p.due, len(p.data))
	p.hop++
	if n == 0 {
		f.drop(p)
		return
	}
	for i := range n {
		q := p
		if i > 0 {
			q = f.packet(*p)
			q.data = append(f.buffer()[:0], p.data...)
		}
		q.due, q.sequence = arrivals[i], f.sequence
		f.sequence++
		heap.Push(&f.events, q)
	}
}

// hops returns the number of links of a path.
func (f *fabric) hops(p *packet) int {
	if f.top.Hosts[p.from].Rack == f.top.Hosts[p.to].Rack {
		return 2
	}
	return 4
}

func (f *fabric) linkOf(p *packet) *link.Link {
	switch {
	case p.hop == 0:
		return f.up[p.from]
	case p.hop == f.hops(p)-1:
		return f.down[p.to]
	case p.hop == 1:
		return f.out[f.top.Hosts[p.from].Rack]
	}
	return f.in[f.top.Hosts[p.to].Rack]
}

// next returns when the next packet is due.
func (f *fabric) next() (time.Duration, bool) {
	if len(f.events) == 0 {
		return 0, false
	}
	return f.events[0].due, true
}

// deliver calls write for each packet that has arrived at its host by now, in order.
func (f *fabric) deliver(now time.Duration, write func(p *packet)) {
	for len(f.events) > 0 && f.events[0].due <= now {
		p := heap.Pop(&f.events).(*packet)
		if p.hop < f.hops(p) {
			f.enter(p) // at the time when it arrived, not now: lateness does not add up
			continue
		}
		write(p)
		f.drop(p)
	}
}

// separate cuts or restores all pairs of hosts of two names, in both directions.
func (f *fabric) separate(a, b string, cut bool) error {
	from, err := f.top.Members(a)
	if err != nil {
		return err
	}
	to, err := f.top.Members(b)
	if err != nil {
		return err
	}
	for _, x := range from {
		for _, y := range to {
			if x != y {
				f.cut[[2]int{x, y}], f.cut[[2]int{y, x}] = cut, cut
			}
		}
	}
	return nil
}

// isolate cuts or restores the link of a host, or the uplink of a rack.
func (f *fabric) isolate(name string, cut bool) error {
	links, err := f.linksOf(name)
	for _, l := range links {
		l.Settings.Cut = cut
	}
	return err
}

// linksOf returns both directions of the link of a host or a rack.
func (f *fabric) linksOf(name string) ([]*link.Link, error) {
	if i := f.top.Host(name); i >= 0 {
		return []*link.Link{f.up[i], f.down[i]}, nil
	}
	if i := f.top.Rack(name); i >= 0 {
		return []*link.Link{f.out[i], f.in[i]}, nil
	}
	return nil, fmt.Errorf("no host or rack %q", name)
}

// heal ends all partitions. Settings of links stay.
func (f *fabric) heal() {
	clear(f.cut)
	for _, set := range [][]*link.Link{f.up, f.down, f.out, f.in} {
		for _, l := range set {
			l.Settings.Cut = false
		}
	}
}

// events is a heap of packets by time.
type events []*packet

func (e events) Len() int { return len(e) }
func (e events) Less(i, j int) bool {
	return e[i].due < e[j].due || e[i].due == e[j].due && e[i].sequence < e[j].sequence
}
func (e events) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)   { *e = append(*e, x.(*packet)) }
func (e *events) Pop() any {
	n := len(*e) - 1
	p := (*e)[n]
	(*e)[n] = nil
	*e = (*e)[:n]
	return p
}

// Package nat translates addresses of IPv4 packets, as a router in front of one host does. It has no clock
// and no sockets.
package nat

import (
	"encoding/binary"
	"net/netip"
)

// maxFlows bounds the connections of one host. A router that has no memory for more drops packets too.
const maxFlows = 1 << 16

// Table is the router of one host. It replaces the host's address Inner by Outer, and keeps the ports.
// Packets to Outer pass only if the host has sent to their source before.
type Table struct {
	Inner, Outer netip.Addr // IPv4
	flows        map[flow]bool
}

type flow struct {
	protocol      byte
	port, farPort uint16
	far           [4]byte
}

const (
	tcp, udp  = 6, 17
	fromAt    = 12 // offsets in an IPv4 header
	toAt      = 16
	headerSum = 10
)

// Out translates a packet of the host. It reports whether the packet is forwarded.
func (t *Table) Out(b []byte) bool {
	f, ok := parse(b, fromAt)
	if !ok || [4]byte(b[fromAt:]) != t.Inner.As4() {
		return false
	}
	if !t.flows[f] {
		if len(t.flows) >= maxFlows {
			return false
		}
		if t.flows == nil {
			t.flows = map[flow]bool{}
		}
		t.flows[f] = true
	}
	rewrite(b, fromAt, t.Outer.As4())
	return true
}

// In translates a packet to the host. It reports whether the packet is forwarded.
func (t *Table) In(b []byte) bool {
	f, ok := parse(b, toAt)
	if !ok || !t.flows[f] {
		return false
	}
	rewrite(b, toAt, t.Inner.As4())
	return true
}

// parse returns the flow of a TCP or UDP packet. own is the offset of the address on the host's side.
// Fragments have no ports and do not pass.
func parse(b []byte, own int) (f flow, ok bool) {
	if len(b) < 20 || b[0]>>4 != 4 || binary.BigEndian.Uint16(b[6:])&0x3fff != 0 {
		return f, false
	}
	at := int(b[0]&15) * 4
	if b[9] != tcp && b[9] != udp || at < 20 || len(b) < at+sumOffset(b[9])+2 {
		return f, false
	}
	f = flow{protocol: b[9], port: binary.BigEndian.Uint16(b[at:]), farPort: binary.BigEndian.Uint16(b[at+2:]), far: [4]byte(b[toAt:])}
	if own == toAt {
		f.port, f.farPort, f.far = f.farPort, f.port, [4]byte(b[fromAt:])
	}
	return f, true
}

func sumOffset(protocol byte) int {
	if protocol == tcp {
		return 16
	}
	return 6
}

// rewrite replaces an address and corrects both checksums (RFC 1624).
func rewrite(b []byte, at int, address [4]byte) {
	sums := []int{headerSum}
	payload := int(b[0]&15) * 4
	if s := payload + sumOffset(b[9]); b[9] == tcp || b[s] != 0 || b[s+1] != 0 { // UDP may have none
		sums = append(sums, s)
	}
	for _, s := range sums {
		sum := uint32(^binary.BigEndian.Uint16(b[s:]))
		for i := 0; i < 4; i += 2 {
			sum += uint32(^binary.BigEndian.Uint16(b[at+i:])) + uint32(binary.BigEndian.Uint16(address[i:]))
		}
		for sum>>16 != 0 {
			sum = sum&0xffff + sum>>16
		}
		binary.BigEndian.PutUint16(b[s:], ^uint16(sum))
	}
	copy(b[at:], address[:])
}

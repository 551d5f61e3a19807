// Package network forwards packets between the hosts of a topology in real time.
package network

import (
	"encoding/binary"
	"net/netip"
)

// header holds the fields of an IPv4 packet that the network uses.
type header struct {
	from, to         netip.Addr
	fromPort, toPort uint16
	udp, tcp         bool
	fragment         bool // not the first one: without ports
}

// parseHeader reads the header of an IPv4 packet. Other packets, such as router solicitations of
// IPv6, are not ok.
func parseHeader(b []byte) (h header, ok bool) {
	if len(b) < 20 || b[0]>>4 != 4 {
		return h, false
	}
	h.from, h.to = netip.AddrFrom4([4]byte(b[12:16])), netip.AddrFrom4([4]byte(b[16:20]))
	h.fragment = binary.BigEndian.Uint16(b[6:])&0x1fff != 0
	at := int(b[0]&15) * 4
	h.tcp, h.udp = b[9] == 6, b[9] == 17
	if (h.tcp || h.udp) && !h.fragment {
		if len(b) < at+4 {
			return h, false
		}
		h.fromPort, h.toPort = binary.BigEndian.Uint16(b[at:]), binary.BigEndian.Uint16(b[at+2:])
	}
	return h, true
}

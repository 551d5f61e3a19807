// Package packet reads the headers of IP packets of both versions.
package packet

import (
	"encoding/binary"
	"net/netip"
)

// Header holds the fields that a simulated network uses.
type Header struct {
	From, To         netip.Addr
	FromPort, ToPort uint16 // of TCP and UDP, except in later fragments
	UDP, TCP         bool
	Fragment         bool // not the first one: without ports
	Payload          int  // offset of the TCP or UDP header, or of the payload of another protocol
}

const (
	tcp, udp     = 6, 17
	headerBytes6 = 40
	fragment6    = 44 // next header of a fragment
)

// Parse reads the headers of an IPv4 or IPv6 packet. Other bytes are not ok.
func Parse(b []byte) (h Header, ok bool) {
	protocol := byte(0)
	switch {
	case len(b) >= 20 && b[0]>>4 == 4 && b[0]&15 >= 5:
		h.From, h.To = netip.AddrFrom4([4]byte(b[12:16])), netip.AddrFrom4([4]byte(b[16:20]))
		h.Fragment = binary.BigEndian.Uint16(b[6:])&0x1fff != 0
		protocol, h.Payload = b[9], int(b[0]&15)*4
	case len(b) >= headerBytes6 && b[0]>>4 == 6:
		h.From, h.To = netip.AddrFrom16([16]byte(b[8:24])), netip.AddrFrom16([16]byte(b[24:40]))
		protocol, h.Payload = b[6], headerBytes6
		if protocol == fragment6 {
			if len(b) < headerBytes6+8 {
				return h, false
			}
			protocol, h.Payload = b[headerBytes6], headerBytes6+8
			h.Fragment = binary.BigEndian.Uint16(b[headerBytes6+2:])>>3 != 0
		}
	default:
		return h, false
	}
	h.TCP, h.UDP = protocol == tcp, protocol == udp
	if (h.TCP || h.UDP) && !h.Fragment {
		if len(b) < h.Payload+4 {
			return h, false
		}
		h.FromPort, h.ToPort = binary.BigEndian.Uint16(b[h.Payload:]), binary.BigEndian.Uint16(b[h.Payload+2:])
	}
	return h, true
}

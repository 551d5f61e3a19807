package packet_test

import (
	"net/netip"
	"testing"

	"github.com/shoal-llm/shoal/test/wire/packet"
)

// v6 returns a packet whose first header is next.
func v6(next byte, more ...byte) []byte {
	b := make([]byte, 40, 60)
	b[0], b[6] = 0x60, next
	copy(b[8:], netip.MustParseAddr("fd77::1:2").AsSlice())
	copy(b[24:], netip.MustParseAddr("fd77::1:3").AsSlice())
	return append(b, more...)
}

// TestParse reads addresses, ports and fragments of both versions.
func TestParse(t *testing.T) {
	a4, z4 := netip.MustParseAddr("10.77.1.1"), netip.MustParseAddr("10.77.1.2")
	a6, z6 := netip.MustParseAddr("fd77::1:2"), netip.MustParseAddr("fd77::1:3")
	v4 := func(protocol, fragment byte) []byte {
		return []byte{0x45, 0, 0, 24, 0, 0, 0, fragment, 1, protocol, 0, 0, 10, 77, 1, 1, 10, 77, 1, 2, 1, 0, 0, 2}
	}
	for _, c := range []struct {
		name string
		b    []byte
		want packet.Header
		ok   bool
	}{
		{"UDP", v4(17, 0), packet.Header{From: a4, To: z4, FromPort: 256, ToPort: 2, UDP: true, Payload: 20}, true},
		{"a later fragment", v4(6, 9), packet.Header{From: a4, To: z4, TCP: true, Fragment: true, Payload: 20}, true},
		{"ICMP", v4(1, 0), packet.Header{From: a4, To: z4, Payload: 20}, true},
		{"without ports", v4(6, 0)[:22], packet.Header{}, false},
		{"TCP over IPv6", v6(6, 1, 0, 0, 2), packet.Header{From: a6, To: z6, FromPort: 256, ToPort: 2, TCP: true, Payload: 40}, true},
		{"ICMPv6", v6(58), packet.Header{From: a6, To: z6, Payload: 40}, true},
		{"a first fragment of IPv6", v6(44, 17, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 2),
			packet.Header{From: a6, To: z6, FromPort: 256, ToPort: 2, UDP: true, Payload: 48}, true},
		{"a later fragment of IPv6", v6(44, 17, 0, 0, 8, 0, 0, 0, 0),
			packet.Header{From: a6, To: z6, UDP: true, Fragment: true, Payload: 48}, true},
		{"half of a fragment header", v6(44, 17, 0), packet.Header{}, false},
		{"TCP over IPv6 without ports", v6(6, 1), packet.Header{}, false},
		{"another version", []byte{0x55, 19: 0}, packet.Header{}, false},
		{"nothing", nil, packet.Header{}, false},
	} {
		if got, ok := packet.Parse(c.b); ok != c.ok || ok && got != c.want {
			t.Errorf("%s: %+v, %v", c.name, got, ok)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte{0x45, 0, 0, 24, 0, 0, 0, 0, 1, 17, 0, 0, 10, 77, 1, 1, 10, 77, 1, 2, 0, 1, 0, 2})
	f.Add(v6(6, 0, 1, 0, 2))
	f.Add(v6(44, 17, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 2))
	f.Fuzz(func(t *testing.T, b []byte) {
		if h, ok := packet.Parse(b); ok && (h.From.Is4() != (b[0]>>4 == 4) || h.Payload > len(b) || h.From.BitLen() != h.To.BitLen()) {
			t.Errorf("%+v", h)
		}
	})
}

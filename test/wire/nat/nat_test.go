package nat_test

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/shoal-llm/shoal/test/wire/nat"
)

var inner, outer, far = netip.MustParseAddr("192.168.7.2"), netip.MustParseAddr("10.77.0.5"), netip.MustParseAddr("10.77.0.1")

// packet returns a packet with correct checksums.
func packet(protocol byte, from, to netip.Addr, fromPort, toPort uint16) []byte {
	b := make([]byte, 20+20)
	b[0], b[9] = 0x45, protocol
	binary.BigEndian.PutUint16(b[2:], uint16(len(b)))
	copy(b[12:], from.AsSlice())
	copy(b[16:], to.AsSlice())
	binary.BigEndian.PutUint16(b[20:], fromPort)
	binary.BigEndian.PutUint16(b[22:], toPort)
	b[39] = 7 // some data
	binary.BigEndian.PutUint16(b[10:], ^sum(b[:20]))
	at := 36
	if protocol == 17 {
		at = 26
	}
	binary.BigEndian.PutUint16(b[at:], ^sum(b[12:], []byte{0, protocol, 0, 20}))
	return b
}

func sum(parts ...[]byte) uint16 {
	s := uint32(0)
	for _, p := range parts {
		for i := 0; i < len(p); i += 2 {
			s += uint32(binary.BigEndian.Uint16(p[i:]))
		}
	}
	for s>>16 != 0 {
		s = s&0xffff + s>>16
	}
	return uint16(s)
}

func check(t *testing.T, b []byte, from, to netip.Addr) {
	t.Helper()
	if got := [2]netip.Addr{netip.AddrFrom4([4]byte(b[12:])), netip.AddrFrom4([4]byte(b[16:]))}; got != [2]netip.Addr{from, to} {
		t.Errorf("from and to %v", got)
	}
	if s := sum(b[:20]); s != 0xffff {
		t.Errorf("sum of the header %x", s)
	}
	if s := sum(b[12:], []byte{0, b[9], 0, 20}); s != 0xffff {
		t.Errorf("sum of the data %x", s)
	}
}

// TestTable: replies pass, and nothing else that comes from outside.
func TestTable(t *testing.T) {
	for _, protocol := range []byte{6, 17} {
		n := &nat.Table{Inner: inner, Outer: outer}
		if n.In(packet(protocol, far, outer, 80, 5000)) {
			t.Error("a packet passed before the host had sent one")
		}
		b := packet(protocol, inner, far, 5000, 80)
		if !n.Out(b) {
			t.Fatal("a packet of the host was dropped")
		}
		check(t, b, outer, far)
		b = packet(protocol, far, outer, 80, 5000)
		if !n.In(b) {
			t.Fatal("a reply was dropped")
		}
		check(t, b, far, inner)
		for _, b := range [][]byte{packet(protocol, far, outer, 81, 5000), packet(protocol, far, outer, 80, 5001),
			packet(protocol, inner, outer, 80, 5000)} {
			if n.In(b) {
				t.Errorf("passed: %x", b)
			}
		}
		if n.Out(packet(protocol, far, outer, 1, 2)) {
			t.Error("a packet with another source passed")
		}
	}
}

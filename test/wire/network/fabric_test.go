package network

import (
	"strings"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/test/wire/topology"
)

func newTestFabric(t *testing.T, text string) *fabric {
	t.Helper()
	top, err := topology.Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return newFabric(top)
}

// udp returns a packet of a number of bytes between two ports.
func udp(f *fabric, from, to string, fromPort, toPort byte, bytes int) []byte {
	b := append(f.buffer()[:0], make([]byte, bytes)...)
	x, y := &f.top.Hosts[f.top.Host(from)], &f.top.Hosts[f.top.Host(to)]
	if x.Address.Is6() || y.Address.Is6() {
		b[0], b[6] = 0x60, 17
		for at, h := range map[int]*topology.Host{8: x, 24: y} {
			all := h.Addresses() // that of IPv6 is last
			copy(b[at:], all[len(all)-1].AsSlice())
		}
		b[41], b[43] = fromPort, toPort
		return b
	}
	b[0], b[9] = 0x45, 17
	own := x.Address
	if x.NAT.IsValid() {
		own = x.NAT
	}
	copy(b[12:], own.AsSlice())
	copy(b[16:], y.Address.AsSlice())
	b[21], b[23] = fromPort, toPort
	return b
}

// arrivals sends a packet at time 0 and returns when it arrives.
func (f *fabric) arrivals(from, to string, fromPort, toPort byte, bytes int) (out []time.Duration) {
	f.send(0, f.top.Host(from), udp(f, from, to, fromPort, toPort, bytes))
	for {
		due, ok := f.next()
		if !ok {
			return out
		}
		f.deliver(due, func(p *packet) {
			if f.top.Hosts[p.to].Name == to {
				out = append(out, p.due)
			}
		})
	}
}

const twoRacks = `
host: {delay: 1ms}
rack: {delay: 10ms}
racks: {r1: [a, b], r2: [c]}
hosts: {c: {ports: 7/udp}}
`

// TestPaths: a packet passes two links within a rack, four between racks, and each takes its time.
func TestPaths(t *testing.T) {
	f := newTestFabric(t, twoRacks)
	if got := f.arrivals("a", "b", 1, 2, 100); len(got) != 1 || got[0] != 2*time.Millisecond {
		t.Errorf("within a rack: %v", got)
	}
	if got := f.arrivals("a", "c", 1, 7, 100); len(got) != 1 || got[0] != 22*time.Millisecond {
		t.Errorf("between racks: %v", got)
	}
}

// TestFirewall: a host with ports takes requests to them, and replies to requests of its own that
// went to an open port of another host.
func TestFirewall(t *testing.T) {
	f := newTestFabric(t, twoRacks)
	for _, c := range []struct {
		from, to         string
		fromPort, toPort byte
		want             int
	}{{"a", "c", 1, 7, 1}, {"a", "c", 7, 1, 0}, {"c", "a", 7, 1, 1}, {"c", "a", 1, 9, 1}} {
		if got := len(f.arrivals(c.from, c.to, c.fromPort, c.toPort, 100)); got != c.want {
			t.Errorf("%s:%d to %s:%d: %d packets, want %d", c.from, c.fromPort, c.to, c.toPort, got, c.want)
		}
	}
	if f.refused != 1 {
		t.Errorf("%d refused, want 1", f.refused)
	}
}

// TestBothVersions: IPv6 passes the same links and firewalls, between hosts that have an address of that version.
func TestBothVersions(t *testing.T) {
	f := newTestFabric(t, "addresses: both\n"+strings.Replace(twoRacks, "hosts: {", "hosts: {b: {addresses: ipv6}, ", 1))
	if got := f.arrivals("a", "b", 1, 2, 100); len(got) != 1 || got[0] != 2*time.Millisecond {
		t.Errorf("to a host with IPv6 only: %v", got)
	}
	for port, want := range map[byte]int{7: 1, 9: 0} {
		if got := f.arrivals("b", "c", 1, port, 100); len(got) != want || want == 1 && got[0] != 22*time.Millisecond {
			t.Errorf("to port %d of another rack: %v", port, got)
		}
	}
	stray := udp(f, "a", "b", 1, 2, 100)
	copy(stray[8:], udp(f, "b", "a", 1, 2, 100)[8:24])
	f.send(0, 0, stray)
	if _, ok := f.next(); ok {
		t.Error("a packet with the address of another host is on its way")
	}
}

// TestRouter: a host behind a router reaches others, whose packets reach it only as replies.
func TestRouter(t *testing.T) {
	f := newTestFabric(t, "racks: {r: [a, b]}\nhosts: {b: {nat: 10.200.7.2}}")
	if got := f.arrivals("a", "b", 5, 6, 50); len(got) != 0 || f.blocked != 1 {
		t.Errorf("a request passed: %v, %d blocked", got, f.blocked)
	}
	if got := f.arrivals("b", "a", 6, 5, 50); len(got) != 1 {
		t.Errorf("to the outside: %v", got)
	}
	if got := f.arrivals("a", "b", 5, 6, 50); len(got) != 1 {
		t.Errorf("the reply: %v", got)
	}
	if got := f.arrivals("a", "b", 5, 7, 50); len(got) != 0 {
		t.Errorf("a packet to another port passed: %v", got)
	}
}

// TestPartitions: pairs, hosts and racks are cut and healed.
func TestPartitions(t *testing.T) {
	f := newTestFabric(t, "racks: {r1: [a, b], r2: [c, d]}")
	reach := func(from, to string) bool { return len(f.arrivals(from, to, 1, 1, 50)) > 0 }
	check := func(when string, want ...bool) {
		t.Helper()
		got := []bool{reach("a", "b"), reach("b", "a"), reach("a", "c"), reach("c", "a"), reach("c", "d")}
		for i := range want {
			if got[i] != want[i] {
				t.Errorf("%s: reached %v, want %v (a-b, b-a, a-c, c-a, c-d)", when, got, want)
				return
			}
		}
	}
	check("at first", true, true, true, true, true)
	for _, c := range []struct {
		when string
		do   func() error
		want []bool
	}{
		{"pair", func() error { return f.separate("a", "b", true) }, []bool{false, false, true, true, true}},
		{"pair healed", func() error { return f.separate("a", "b", false) }, []bool{true, true, true, true, true}},
		{"racks", func() error { return f.separate("r1", "r2", true) }, []bool{true, true, false, false, true}},
		{"healed", func() error { f.heal(); return nil }, []bool{true, true, true, true, true}},
		{"uplink", func() error { return f.isolate("r2", true) }, []bool{true, true, false, false, true}},
		{"host", func() error { return f.isolate("a", true) }, []bool{false, false, false, false, true}},
	} {
		if err := c.do(); err != nil {
			t.Fatal(err)
		}
		check(c.when, c.want...)
	}
	if f.separate("a", "x", true) == nil || f.isolate("x", true) == nil {
		t.Error("an unknown host was cut")
	}
}

// TestSharedUplink: hosts of one rack share the rate of its uplink.
func TestSharedUplink(t *testing.T) {
	f := newTestFabric(t, "rack: {rate: 8mbit}\nracks: {r1: [a, b], r2: [c]}")
	f.send(0, 0, udp(f, "a", "c", 1, 1, 1000))
	f.send(0, 1, udp(f, "b", "c", 1, 1, 1000))
	var at []time.Duration
	for due, ok := f.next(); ok; due, ok = f.next() {
		f.deliver(due, func(p *packet) { at = append(at, p.due) })
	}
	if len(at) != 2 || at[0] != 2*time.Millisecond || at[1] != 3*time.Millisecond {
		t.Errorf("packets of 1 ms on each of two links arrived at %v, want 2 and 3 ms", at)
	}
}

func TestSetChangesNothingOnError(t *testing.T) {
	f := newTestFabric(t, twoRacks)
	if err := f.set("a", []string{"delay=5ms", "rate=fast"}); err == nil || f.up[0].Delay != time.Millisecond {
		t.Errorf("error %v, delay %v", err, f.up[0].Delay)
	}
	if err := f.set("a", []string{"delay=5ms", "loss=1%"}); err != nil || f.up[0].Delay != 5*time.Millisecond || f.down[0].Loss != 0.01 {
		t.Errorf("error %v, links %+v", err, f.down[0].Settings)
	}
}

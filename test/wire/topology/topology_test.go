package topology_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/test/wire/topology"
)

func TestExample(t *testing.T) {
	top, err := topology.Load("../examples/two-racks.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if len(top.Hosts) != 16 || len(top.Racks) != 2 {
		t.Fatalf("%d hosts in %d racks", len(top.Hosts), len(top.Racks))
	}
	if a := top.Hosts[top.Host("b3")].Address.String(); a != "10.77.2.3" {
		t.Errorf("b3 has address %s", a)
	}
	delay := func(a, b string) (d time.Duration) {
		for _, l := range top.Path(top.Host(a), top.Host(b)) {
			d += l.Delay
		}
		return d
	}
	if d := delay("a1", "a2"); d != 50*time.Microsecond {
		t.Errorf("within a rack: %v", d)
	}
	if d := delay("a1", "b8"); d != 200*time.Microsecond {
		t.Errorf("between racks: %v", d)
	}
}

// TestExamples: every example is read.
func TestExamples(t *testing.T) {
	files, err := filepath.Glob("../examples/*.yaml")
	if err != nil || len(files) < 4 {
		t.Fatalf("%v, %v", files, err)
	}
	for _, f := range files {
		if _, err := topology.Load(f); err != nil {
			t.Error(err)
		}
	}
}

func TestOverrides(t *testing.T) {
	top, err := topology.Parse([]byte(`
sysctl: {net.ipv4.tcp_sack: 0}
host: {rate: 1gbit}
rack: {delay: 1ms}
racks:
  r1: {hosts: [a, b], uplink: {loss: 1%}}
  r2: [c]
hosts:
  b: {delay: 5ms, ports: "7070-7074, 7070/udp"}
`))
	if err != nil {
		t.Fatal(err)
	}
	if u := top.Racks[0].Uplink; u.Loss != 0.01 || u.Delay != time.Millisecond {
		t.Errorf("uplink %+v", u)
	}
	if top.Sysctl["net.ipv4.tcp_sack"] != "0" {
		t.Errorf("sysctl %v", top.Sysctl)
	}
	b := top.Hosts[1]
	if b.Link.Rate != 125e6 || b.Link.Delay != 5*time.Millisecond || top.Hosts[2].Link.Delay != 0 {
		t.Errorf("links %+v, %+v", b.Link, top.Hosts[2].Link)
	}
	for _, c := range []struct {
		port uint16
		udp  bool
		want bool
	}{{7070, true, true}, {7071, true, false}, {7070, false, true}, {7074, false, true}, {7075, false, false}} {
		if b.Open(c.port, c.udp) != c.want || !top.Hosts[0].Open(c.port, c.udp) {
			t.Errorf("port %d, UDP %v: want %v", c.port, c.udp, c.want)
		}
	}
	if m, err := top.Members("r1"); err != nil || len(m) != 2 {
		t.Errorf("members of r1: %v, %v", m, err)
	}
	if _, err := top.Members("r3"); err == nil {
		t.Error("an unknown rack has members")
	}
}

// TestAddresses: hosts have IPv4, IPv6 or both, an address behind a router, and names.
func TestAddresses(t *testing.T) {
	top, err := topology.Parse([]byte(`
addresses: both
racks: {r1: [a, b, c], r2: [d]}
hosts:
  b: {addresses: ipv6}
  c: {addresses: ipv4, nat: 10.200.7.2}
names: {cluster: [a, b]}
`))
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{"[10.77.1.1 fd77::1:1] [10.77.1.1/16 fd77::1:1/64]", "[fd77::1:2] [fd77::1:2/64]",
		"[10.77.1.3] [10.200.7.2/8]", "[10.77.2.1 fd77::2:1] [10.77.2.1/16 fd77::2:1/64]"} {
		if h := top.Hosts[i]; fmt.Sprint(h.Addresses(), " ", h.Prefixes()) != want {
			t.Errorf("%s: %v %v, want %s", h.Name, h.Addresses(), h.Prefixes(), want)
		}
	}
	want := "127.0.0.1 localhost\n::1 localhost\n10.77.1.1 a\nfd77::1:1 a\nfd77::1:2 b\n10.77.1.3 c\n" +
		"10.77.2.1 d\nfd77::2:1 d\n10.77.1.1 cluster\nfd77::1:1 cluster\nfd77::1:2 cluster\n"
	if got := string(top.HostsFile()); got != want {
		t.Errorf("hosts file:\n%s", got)
	}
}

// TestErrors: an error names the line and the accepted values.
func TestErrors(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"", "want a mapping"},
		{"- a", "want a mapping"},
		{"seed: 1", "no racks"},
		{"racks: {r1: []}", "no hosts"},
		{"racks: {r1: a}", "line 1: rack r1: want a list of hosts"},
		{"racks:\n  r1: [a, a]", "line 2: \"a\" is defined twice"},
		{"racks:\n  r1: [a]\n  r1: [b]", "line 3: "},
		{"racks: {r1: [A]}", "is not a name"},
		{"racks: {r1: [a]}\nspeed: 1", "line 2: unknown key \"speed\""},
		{"racks: {r1: {hosts: [a], rate: 1}}", "unknown key \"rate\" of rack r1"},
		{"host: {rate: 1gb}\nracks: {r1: [a]}", "line 1: rate: \"1gb\" is not a rate"},
		{"host: {speed: 1gb}\nracks: {r1: [a]}", "no setting \"speed\""},
		{"sysctl: {kernel.x: 1}\nracks: {r1: [a]}", "want a setting below net."},
		{"sysctl: {net.ipv4/../x: 1}\nracks: {r1: [a]}", "want a setting below net."},
		{"mtu: 100\nracks: {r1: [a]}", "from 576 to 9000"},
		{"racks: {r1: [a]}\nhosts: {b: {delay: 1ms}}", "no rack has a host \"b\""},
		{"racks: {r1: [a]}\nhosts: {a: {ports: x}}", "is not a range of ports"},
		{"racks: {r1: [a]}\nhosts: {a: {ports: 9-3}}", "is not a range of ports"},
		{"addresses: ipv5\nracks: {r1: [a]}", "line 1: addresses: \"ipv5\": want ipv4, ipv6 or both"},
		{"addresses: [ipv4]\nracks: {r1: [a]}", "line 1: addresses: \"\": want ipv4"},
		{"racks: {r1: [a]}\nhosts: {a: {nat: 192.168.0.1}}", "line 2: nat: \"192.168.0.1\": want the host's own address"},
		{"racks: {r1: [a]}\nhosts: {a: {nat: 10.77.1.9}}", "except 10.77"},
		{"racks: {r1: [a]}\nhosts: {a: {nat: \"fd00::1\"}}", "want the host's own address"},
		{"addresses: both\nracks: {r1: [a]}\nhosts: {a: {nat: 10.200.7.2}}", "line 3: host a: a router translates IPv4 only"},
		{"racks: {r1: [a]}\nnames: {a: [a]}", "defined twice"},
		{"racks: {r1: [a]}\nnames: {x: [b]}", "name x: no rack has a host \"b\""},
		{"racks: {r1: [a]}\nnames: {x: []}", "name x: want a list of hosts"},
	} {
		if _, err := topology.Parse([]byte(c.text)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: error %v, want %q", c.text, err, c.want)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte("racks: {r1: [a]}\nhosts: {a: {ports: 7070/udp}}"))
	f.Fuzz(func(t *testing.T, text []byte) {
		if top, err := topology.Parse(text); err == nil && (len(top.Hosts) == 0 || len(top.Hosts) > topology.MaxHosts) {
			t.Errorf("%d hosts", len(top.Hosts))
		}
	})
}

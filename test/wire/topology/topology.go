// Package topology reads the description of a simulated network: hosts in racks, and their links.
package topology

import (
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/shoal-llm/shoal/test/wire/link"
)

// Topology is a tree of two levels: each host has a link to the switch of its rack, and each rack
// switch has a link to the core. Links are the same in both directions.
type Topology struct {
	MTU   int
	Seed  uint64
	Racks []Rack
	Hosts []Host
	// Names has further names, each of one or several hosts. A host has its own name too.
	Names map[string][]int
	// Sysctl has kernel settings of every host below net., such as ipv4.tcp_congestion_control.
	Sysctl map[string]string
}

// Rack is a switch with its link to the core.
type Rack struct {
	Name   string
	Uplink link.Settings
}

// Host is one machine.
type Host struct {
	Name    string
	Rack    int        // index in Racks
	Address netip.Addr // to which others send; of both versions: IPv4
	IPv6    netip.Addr // second address; invalid: none
	NAT     netip.Addr // the host's own address behind a router that translates it to Address; invalid: no router
	Link    link.Settings
	Ports   []PortRange // open to other hosts; nil: all

	at [2]byte // numbers of rack and host
}

// Addresses returns the addresses to which others send for a host.
func (h *Host) Addresses() []netip.Addr {
	if h.IPv6.IsValid() {
		return []netip.Addr{h.Address, h.IPv6}
	}
	return []netip.Addr{h.Address}
}

// Prefixes returns the host's own addresses with the network of all addresses that it reaches.
func (h *Host) Prefixes() (out []netip.Prefix) {
	if h.NAT.IsValid() {
		return []netip.Prefix{netip.PrefixFrom(h.NAT, outside.Bits())}
	}
	for _, a := range h.Addresses() {
		bits := bits4
		if a.Is6() {
			bits = bits6
		}
		out = append(out, netip.PrefixFrom(a, bits))
	}
	return out
}

// PortRange is a range of ports that a firewall leaves open.
type PortRange struct {
	First, Last uint16
	UDP         bool
}

// Limits of a topology.
const (
	MaxRacks = 250
	MaxHosts = 250 // in all
	MaxNames = 250
	bits4    = 16 // of the network prefix of all addresses
	bits6    = 64
)

// Addresses are 10.77.RACK.HOST and fd77::RACK:HOST. Behind a router they are elsewhere in outside.
var (
	subnet4 = [2]byte{10, 77}
	subnet6 = [2]byte{0xfd, 0x77}
	outside = netip.MustParsePrefix("10.0.0.0/8")
)

// Versions of IP that hosts have.
const (
	onlyIPv4 = "ipv4"
	onlyIPv6 = "ipv6"
	bothIP   = "both"
)

// setAddresses gives a host the addresses of some versions.
func (h *Host) setAddresses(version string, v *yaml.Node) error {
	six := [16]byte{0: subnet6[0], 1: subnet6[1], 13: h.at[0], 15: h.at[1]}
	four := netip.AddrFrom4([4]byte{subnet4[0], subnet4[1], h.at[0], h.at[1]})
	h.Address, h.IPv6 = four, netip.Addr{}
	switch version {
	case onlyIPv4:
	case onlyIPv6:
		h.Address = netip.AddrFrom16(six)
	case bothIP:
		h.IPv6 = netip.AddrFrom16(six)
	default:
		return at(v, "addresses: %q: want ipv4, ipv6 or both", version)
	}
	return nil
}

// setNAT puts a host behind a router.
func (h *Host) setNAT(text string, v *yaml.Node) error {
	a, err := netip.ParseAddr(text)
	if err != nil || !outside.Contains(a) || a.As4()[1] == subnet4[1] {
		return at(v, "nat: %q: want the host's own address behind its router, in %s except %d.%d, such as 10.200.7.2",
			text, outside, subnet4[0], subnet4[1])
	}
	h.NAT = a
	return nil
}

// Load reads a file. An error names the file and the line.
func Load(file string) (*Topology, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("topology: %w", err)
	}
	t, err := Parse(text)
	if err != nil {
		return nil, fmt.Errorf("topology: %s: %w", filepath.Base(file), err)
	}
	return t, nil
}

// Parse reads a topology.
func Parse(text []byte) (*Topology, error) {
	var doc yaml.Node
	if err := yaml.Unmarshal(text, &doc); err != nil {
		return nil, err
	}
	if len(doc.Content) != 1 || doc.Content[0].Kind != yaml.MappingNode {
		return nil, fmt.Errorf("want a mapping with the keys mtu, seed, addresses, sysctl, host, rack, racks, hosts and names")
	}
	p := parser{t: &Topology{MTU: 1500, Seed: 1}, version: &yaml.Node{Value: onlyIPv4}}
	var racks, hosts, names *yaml.Node
	err := pairs(doc.Content[0], func(key string, v *yaml.Node) (err error) {
		switch key {
		case "mtu":
			p.t.MTU, err = integer(v, 576, 9000)
		case "seed":
			var n int
			n, err = integer(v, 0, 1<<30)
			p.t.Seed = uint64(n)
		case "addresses":
			p.version = v
		case "sysctl":
			err = pairs(v, p.sysctl)
		case "host":
			err = settings(v, &p.host)
		case "rack":
			err = settings(v, &p.uplink)
		case "racks":
			racks = v
		case "hosts":
			hosts = v
		case "names":
			names = v
		default:
			err = at(v, "unknown key %q: want mtu, seed, addresses, sysctl, host, rack, racks, hosts or names", key)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	if racks == nil {
		return nil, fmt.Errorf("no racks: give at least one, such as `racks: {r1: [a, b]}`")
	}
	if err := pairs(racks, p.rack); err != nil {
		return nil, err
	}
	if len(p.t.Hosts) == 0 {
		return nil, at(racks, "the racks have no hosts")
	}
	if hosts != nil {
		if err := pairs(hosts, p.override); err != nil {
			return nil, err
		}
	}
	if names != nil {
		if err := pairs(names, p.name); err != nil {
			return nil, err
		}
	}
	return p.t, nil
}

type parser struct {
	t            *Topology
	version      *yaml.Node    // of the addresses
	host, uplink link.Settings // defaults
}

// rack reads one rack: a list of its hosts, or a mapping with hosts and uplink.
func (p *parser) rack(name string, v *yaml.Node) error {
	if err := p.checkName(name, v); err != nil {
		return err
	}
	if len(p.t.Racks) == MaxRacks {
		return at(v, "more than %d racks", MaxRacks)
	}
	r := Rack{Name: name, Uplink: p.uplink}
	list := v
	if v.Kind == yaml.MappingNode {
		list = nil
		err := pairs(v, func(key string, v *yaml.Node) error {
			switch key {
			case "hosts":
				list = v
			case "uplink":
				return settings(v, &r.Uplink)
			default:
				return at(v, "unknown key %q of rack %s: want hosts or uplink", key, name)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	if list == nil || list.Kind != yaml.SequenceNode {
		return at(v, "rack %s: want a list of hosts", name)
	}
	p.t.Racks = append(p.t.Racks, r)
	for i, h := range list.Content {
		if err := p.checkName(h.Value, h); err != nil {
			return err
		}
		if len(p.t.Hosts) == MaxHosts {
			return at(h, "more than %d hosts", MaxHosts)
		}
		rack := len(p.t.Racks) - 1
		x := Host{Name: h.Value, Rack: rack, Link: p.host, at: [2]byte{byte(rack + 1), byte(i + 1)}}
		if err := x.setAddresses(p.version.Value, p.version); err != nil {
			return err
		}
		p.t.Hosts = append(p.t.Hosts, x)
	}
	return nil
}

// name reads a further name of hosts.
func (p *parser) name(name string, v *yaml.Node) error {
	if err := p.checkName(name, v); err != nil {
		return err
	}
	if len(p.t.Names) == MaxNames {
		return at(v, "more than %d names", MaxNames)
	}
	if v.Kind != yaml.SequenceNode || len(v.Content) == 0 {
		return at(v, "name %s: want a list of hosts", name)
	}
	for _, h := range v.Content {
		i := p.t.Host(h.Value)
		if i < 0 {
			return at(h, "name %s: no rack has a host %q", name, h.Value)
		}
		if p.t.Names == nil {
			p.t.Names = map[string][]int{}
		}
		p.t.Names[name] = append(p.t.Names[name], i)
	}
	return nil
}

// override reads the settings of one host.
func (p *parser) override(name string, v *yaml.Node) error {
	i := p.t.Host(name)
	if i < 0 {
		return at(v, "no rack has a host %q", name)
	}
	h := &p.t.Hosts[i]
	err := pairs(v, func(key string, v *yaml.Node) (err error) {
		switch key {
		case "ports":
			if h.Ports, err = ParsePorts(v.Value); err != nil {
				return at(v, "host %s: %w", name, err)
			}
			return nil
		case "addresses":
			return h.setAddresses(v.Value, v)
		case "nat":
			return h.setNAT(v.Value, v)
		}
		return set(v, &h.Link, key)
	})
	if err == nil && h.NAT.IsValid() && (h.Address.Is6() || h.IPv6.IsValid()) {
		err = at(v, "host %s: a router translates IPv4 only: set addresses: ipv4 for this host", name)
	}
	return err
}

// HostsFile returns the hosts file (hosts(5)) with the names of all hosts.
func (t *Topology) HostsFile() []byte {
	text := []byte("127.0.0.1 localhost\n::1 localhost\n")
	add := func(name string, h *Host) {
		for _, a := range h.Addresses() {
			text = fmt.Appendf(text, "%s %s\n", a, name)
		}
	}
	for i := range t.Hosts {
		add(t.Hosts[i].Name, &t.Hosts[i])
	}
	for _, name := range slices.Sorted(maps.Keys(t.Names)) {
		for _, i := range t.Names[name] {
			add(name, &t.Hosts[i])
		}
	}
	return text
}

var validSysctl = regexp.MustCompile(`^net\.[a-z0-9_]+(\.[a-z0-9_]+)*$`)

func (p *parser) sysctl(key string, v *yaml.Node) error {
	if !validSysctl.MatchString(key) || v.Kind != yaml.ScalarNode {
		return at(v, "sysctl %q: want a setting below net. and one value, such as net.ipv4.tcp_congestion_control: cubic", key)
	}
	if p.t.Sysctl == nil {
		p.t.Sysctl = map[string]string{}
	}
	p.t.Sysctl[key] = v.Value
	return nil
}

var validName = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,30}$`)

func (p *parser) checkName(name string, v *yaml.Node) error {
	if !validName.MatchString(name) {
		return at(v, "%q is not a name: want at most 31 of a-z, 0-9 and -", name)
	}
	if p.t.Host(name) >= 0 || p.t.Rack(name) >= 0 {
		return at(v, "%q is defined twice", name)
	}
	return nil
}

// Host returns the index of a host, or -1.
func (t *Topology) Host(name string) int {
	return slices.IndexFunc(t.Hosts, func(h Host) bool { return h.Name == name })
}

// Rack returns the index of a rack, or -1.
func (t *Topology) Rack(name string) int {
	return slices.IndexFunc(t.Racks, func(r Rack) bool { return r.Name == name })
}

// Members returns the hosts of a name: one host, or all hosts of a rack.
func (t *Topology) Members(name string) (hosts []int, err error) {
	if i := t.Host(name); i >= 0 {
		return []int{i}, nil
	}
	rack := t.Rack(name)
	for i := range t.Hosts {
		if t.Hosts[i].Rack == rack {
			hosts = append(hosts, i)
		}
	}
	if len(hosts) == 0 {
		return nil, fmt.Errorf("no host or rack %q", name)
	}
	return hosts, nil
}

// Path returns the links from one host to another, in order.
func (t *Topology) Path(from, to int) (links []*link.Settings) {
	a, b := &t.Hosts[from], &t.Hosts[to]
	links = append(links, &a.Link)
	if a.Rack != b.Rack {
		links = append(links, &t.Racks[a.Rack].Uplink, &t.Racks[b.Rack].Uplink)
	}
	return append(links, &b.Link)
}

// ParsePorts reads a list such as "7070-7074, 7070/udp". A number without a protocol is TCP.
func ParsePorts(text string) (out []PortRange, err error) {
	for _, f := range strings.Split(text, ",") {
		f = strings.TrimSpace(f)
		ports, protocol, has := strings.Cut(f, "/")
		first, last, isRange := strings.Cut(ports, "-")
		if !isRange {
			last = first
		}
		a, errA := strconv.ParseUint(first, 10, 16)
		b, errB := strconv.ParseUint(last, 10, 16)
		if errA != nil || errB != nil || a == 0 || a > b || has && protocol != "udp" && protocol != "tcp" {
			return nil, fmt.Errorf("ports: %q is not a range of ports: want such as 7070-7074 or 7070/udp", f)
		}
		out = append(out, PortRange{First: uint16(a), Last: uint16(b), UDP: protocol == "udp"})
	}
	return out, nil
}

// Open reports whether the firewall of a host leaves a port open.
func (h *Host) Open(port uint16, udp bool) bool {
	return h.Ports == nil || slices.ContainsFunc(h.Ports, func(r PortRange) bool {
		return r.UDP == udp && r.First <= port && port <= r.Last
	})
}

func at(v *yaml.Node, format string, args ...any) error {
	return fmt.Errorf("line %d: %w", v.Line, fmt.Errorf(format, args...))
}

func pairs(v *yaml.Node, each func(key string, v *yaml.Node) error) error {
	if v.Kind != yaml.MappingNode {
		return at(v, "want a mapping")
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(v.Content); i += 2 {
		key := v.Content[i].Value
		if seen[key] {
			return at(v.Content[i], "%q is defined twice", key)
		}
		seen[key] = true
		if err := each(key, v.Content[i+1]); err != nil {
			return err
		}
	}
	return nil
}

func settings(v *yaml.Node, s *link.Settings) error {
	return pairs(v, func(key string, v *yaml.Node) error { return set(v, s, key) })
}

func set(v *yaml.Node, s *link.Settings, key string) error {
	if v.Kind != yaml.ScalarNode {
		return at(v, "%s: want one value", key)
	}
	if err := s.Set(key, v.Value); err != nil {
		return at(v, "%w", err)
	}
	return nil
}

func integer(v *yaml.Node, least, most int) (int, error) {
	n, err := strconv.Atoi(v.Value)
	if err != nil || n < least || n > most {
		return 0, at(v, "%q: want a number from %d to %d", v.Value, least, most)
	}
	return n, nil
}

// Package hostname finds the address on which a process listens, when its operator gives the name of the machine in the
// place of an address. Other processes then connect to the name, so that the address may change between two starts.
package hostname

import (
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
)

// MaxLength limits the bytes of a name: gossip carries three addresses of each process in one packet.
const MaxLength = 100

var (
	// ErrAddress is returned for a text that is neither one usable address nor a name.
	ErrAddress = errors.New("hostname: not an address that other machines can use")
	// ErrName is returned for a name that does not resolve to an address of this machine.
	ErrName = errors.New("hostname: the name does not lead to this machine")
)

var valid = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9_-]*[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9_-]*[A-Za-z0-9])?)*$`)

// digits matches a text that was meant as an IPv4 address.
var digits = regexp.MustCompile(`^[0-9.]+$`)

// Check accepts one IP address, or a name, of this machine.
func Check(host string) error {
	if err := CheckPeer(host); err != nil {
		return err
	}
	if len(host) > MaxLength {
		return fmt.Errorf("%w: the name has %d bytes, want at most %d: give a shorter name of this machine", ErrAddress, len(host), MaxLength)
	}
	return nil
}

// CheckPeer accepts one IP address, or a name in DNS, of another machine. An address of a link has no meaning without
// the number of an interface, which is another one on every machine.
func CheckPeer(host string) error {
	ip, err := netip.ParseAddr(host)
	switch {
	case err == nil && ip.IsUnspecified():
		return fmt.Errorf("%w: %s is every address of this machine: give the one that the others can reach", ErrAddress, host)
	case err == nil && (ip.IsLinkLocalUnicast() || ip.Zone() != ""):
		return fmt.Errorf("%w: %s is a link-local address, which means another machine on every link: give a global or unique local address "+
			"(such as fd00::1), or a name", ErrAddress, host)
	case err == nil:
		return nil
	case len(host) > 254 || !valid.MatchString(strings.TrimSuffix(host, ".")) || digits.MatchString(host):
		return fmt.Errorf("%w: %q is neither an IP address nor a host name", ErrAddress, host)
	}
	return nil
}

// IsName reports whether a host is a name that must be resolved. localhost always is this machine.
func IsName(host string) bool {
	_, err := netip.ParseAddr(host)
	return err != nil && !strings.EqualFold(host, "localhost")
}

// choose picks the address on which a process listens that others reach by a name. All addresses of the name must be
// of this machine, because a peer may connect to any of them. IPv4 comes first, as for a machine without a name.
func choose(name string, resolved, own []netip.Addr) (netip.Addr, error) {
	if len(resolved) == 0 {
		return netip.Addr{}, fmt.Errorf("%w: %s has no address", ErrName, name)
	}
	var foreign []string
	for _, a := range resolved {
		switch {
		case a.IsLoopback():
			return netip.Addr{},
				fmt.Errorf("%w: %s is the loopback address %s here, which no other machine can reach: remove that line from /etc/hosts, or give the "+
					"IP address", ErrName, name, a)
		case a.IsLinkLocalUnicast():
			return netip.Addr{},
				fmt.Errorf("%w: %s is the link-local address %s: give a name with a global or unique local address", ErrName, name, a)
		case !slices.Contains(own, a):
			foreign = append(foreign, a.String())
		}
	}
	if foreign != nil {
		var have []string
		for _, a := range own {
			if a.IsGlobalUnicast() {
				have = append(have, a.String())
			}
		}
		return netip.Addr{},
			fmt.Errorf("%w: %s resolves to %s, which this machine does not have (it has %s): correct the name, or give the IP address", ErrName,
				name, strings.Join(foreign, " and "), strings.Join(have, ", "))
	}
	if i := slices.IndexFunc(resolved, netip.Addr.Is4); i >= 0 {
		return resolved[i], nil
	}
	return resolved[0], nil
}

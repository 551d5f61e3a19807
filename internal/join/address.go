package join

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
)

// HostAddr is an address of this machine.
type HostAddr struct {
	Interface string
	Addr      netip.Addr
	Virtual   bool // of a bridge, a container or a tunnel: no device answers at it
	Default   bool // packets to the rest of the world leave from it
}

// ChooseAddr picks the address that other machines reach this one by: that of the default
// route, else the only one, else the only one of a device.
func ChooseAddr(all []HostAddr) (netip.Addr, error) {
	usable := slices.DeleteFunc(slices.Clone(all), func(a HostAddr) bool {
		return !a.Addr.IsGlobalUnicast() // loopback, link-local, multicast
	})
	pick := func(want func(HostAddr) bool) []HostAddr {
		return slices.DeleteFunc(slices.Clone(usable), func(a HostAddr) bool { return !want(a) })
	}
	for _, fit := range [][]HostAddr{
		pick(func(a HostAddr) bool { return a.Default && a.Addr.Is4() }),
		pick(func(a HostAddr) bool { return a.Default }),
		pick(func(a HostAddr) bool { return !a.Virtual && a.Addr.Is4() }),
		pick(func(a HostAddr) bool { return !a.Virtual }),
		pick(func(a HostAddr) bool { return a.Addr.Is4() }),
		usable,
	} {
		if len(fit) == 1 {
			return fit[0].Addr, nil
		}
		if len(fit) > 1 {
			var names []string
			for _, a := range fit {
				names = append(names, fmt.Sprintf("%s (%s)", a.Addr, a.Interface))
			}
			return netip.Addr{},
				fmt.Errorf("join: this machine has several addresses that others may reach it by: %s; choose one with --bind ADDRESS",
					strings.Join(names, ", "))
		}
	}
	return netip.Addr{},
		errors.New("join: other machines can reach no address of this machine, because all are loopback or link-local: connect it to a " +
			"network, or name an address with --bind ADDRESS")
}

// HostAddrs lists the addresses of this machine's interfaces that are up.
func HostAddrs() ([]HostAddr, error) {
	interfaces, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("join: %w", err)
	}
	leaves := map[netip.Addr]bool{}
	for _, far := range []string{"198.51.100.1:9", "[2001:db8::1]:9"} { // for documentation: no packet is sent
		if c, err := net.Dial("udp", far); err == nil {
			if a, err := netip.ParseAddrPort(c.LocalAddr().String()); err == nil {
				leaves[a.Addr().Unmap()] = true
			}
			c.Close()
		}
	}
	var out []HostAddr
	for _, i := range interfaces {
		if i.Flags&net.FlagUp == 0 {
			continue
		}
		addrs, err := i.Addrs()
		if err != nil {
			return nil, fmt.Errorf("join: %s: %w", i.Name, err)
		}
		_, err = os.Stat("/sys/class/net/" + i.Name + "/device")
		virtual := err != nil && exists("/sys/class/net/"+i.Name)
		for _, a := range addrs {
			if p, err := netip.ParsePrefix(a.String()); err == nil {
				addr := p.Addr().Unmap()
				out = append(out, HostAddr{Interface: i.Name, Addr: addr, Virtual: virtual, Default: leaves[addr]})
			}
		}
	}
	return out, nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

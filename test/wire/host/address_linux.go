package host

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// addAddress gives the device an IPv6 address and the route to its prefix (rtnetlink(7)). Duplicate address
// detection would delay its use by a second, and the device has no other hosts.
func addAddress(address netip.Prefix) error {
	if err := os.WriteFile("/proc/sys/net/ipv6/conf/"+Interface+"/disable_ipv6", []byte("0"), 0o644); err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("%s: this kernel has no IPv6", address)
		}
		return err
	}
	device, err := net.InterfaceByName(Interface)
	if err != nil {
		return err
	}
	s, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer unix.Close(s)
	order := binary.NativeEndian
	body := order.AppendUint32([]byte{unix.AF_INET6, byte(address.Bits()), unix.IFA_F_NODAD, unix.RT_SCOPE_UNIVERSE}, uint32(device.Index))
	body = order.AppendUint16(order.AppendUint16(body, 4+16), unix.IFA_LOCAL)
	body = append(body, address.Addr().AsSlice()...)
	m := order.AppendUint32(nil, uint32(unix.SizeofNlMsghdr+len(body)))
	m = order.AppendUint16(order.AppendUint16(m, unix.RTM_NEWADDR), unix.NLM_F_REQUEST|unix.NLM_F_ACK|unix.NLM_F_CREATE)
	m = append(append(m, make([]byte, 8)...), body...) // sequence and port are 0
	if err := unix.Sendto(s, m, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	reply := make([]byte, 4096)
	n, _, err := unix.Recvfrom(s, reply, 0) // the kernel has answered within Sendto
	if err != nil {
		return err
	}
	if n < unix.SizeofNlMsghdr+4 || order.Uint16(reply[4:]) != unix.NLMSG_ERROR {
		return fmt.Errorf("RTM_NEWADDR of %s: an unexpected answer of %d bytes", address, n)
	}
	if code := int32(order.Uint32(reply[unix.SizeofNlMsghdr:])); code != 0 {
		return fmt.Errorf("RTM_NEWADDR of %s: %w", address, syscall.Errno(-code))
	}
	return nil
}

// Package host creates the machines of a simulated network: network namespaces with one TUN device each.
// It requires root.
package host

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// Interface is the name of the device in every namespace.
const Interface = "wire0"

// ErrPermission means that this process may not create network namespaces.
var ErrPermission = errors.New("network namespaces require root: run as root, or with CAP_NET_ADMIN and CAP_SYS_ADMIN")

// Enter moves the calling thread, which must be locked, to a new network namespace with loopback
// and one TUN device, both up, with at most one address of each version. It returns the descriptor of the device, which carries IP packets
// without a header, and does not block.
func Enter(mtu int, addresses ...netip.Prefix) (int, error) {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		if errors.Is(err, unix.EPERM) {
			return -1, ErrPermission
		}
		return -1, fmt.Errorf("unshare: %w", err)
	}
	fd, err := openTUN()
	if err != nil {
		return -1, err
	}
	if err := configure(mtu, addresses); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

func openTUN() (int, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("/dev/net/tun: %w: load the kernel module tun", err)
	}
	request, err := unix.NewIfreq(Interface)
	if err == nil {
		request.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, request)
	}
	if err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("TUNSETIFF: %w", err)
	}
	return fd, nil
}

func configure(mtu int, addresses []netip.Prefix) error {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(s)
	set := func(device string, what uint, fill func(*unix.Ifreq) error) {
		if err != nil {
			return
		}
		var r *unix.Ifreq
		if r, err = unix.NewIfreq(device); err != nil {
			return
		}
		if err = fill(r); err == nil {
			err = unix.IoctlIfreq(s, what, r)
		}
		if err != nil {
			err = fmt.Errorf("%s of %s: %w", unix.ErrnoName(errnoOf(err)), device, err)
		}
	}
	addr := func(b ...byte) func(*unix.Ifreq) error { return func(r *unix.Ifreq) error { return r.SetInet4Addr(b) } }
	up := func(r *unix.Ifreq) error {
		r.SetUint16(unix.IFF_UP | unix.IFF_RUNNING | unix.IFF_MULTICAST)
		return nil
	}
	set("lo", unix.SIOCSIFFLAGS, up)
	set("lo", unix.SIOCSIFNETMASK, addr(255, 255, 255, 255)) // the rest of 127/8 is outside this interface
	set(Interface, unix.SIOCSIFMTU, func(r *unix.Ifreq) error { r.SetUint32(uint32(mtu)); return nil })
	for _, a := range addresses {
		if a.Addr().Is4() {
			set(Interface, unix.SIOCSIFADDR, addr(a.Addr().AsSlice()...))
			mask := ^uint32(0) << (32 - a.Bits())
			set(Interface, unix.SIOCSIFNETMASK, addr(byte(mask>>24), byte(mask>>16), byte(mask>>8), byte(mask)))
		}
	}
	set(Interface, unix.SIOCSIFFLAGS, up)
	for _, a := range addresses {
		if err == nil && a.Addr().Is6() {
			err = addAddress(a)
		}
	}
	if err != nil {
		return err
	}
	return os.WriteFile("/proc/sys/net/ipv4/conf/"+Interface+"/route_localnet", []byte("1"), 0o644)
}

func errnoOf(err error) syscall.Errno {
	var e syscall.Errno
	errors.As(err, &e)
	return e
}

package httpserver

import (
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// unsent is how many bytes may wait in a connection's queue before a write waits: with
// the system's own megabytes nobody would see that a stream's client does not read.
const unsent = 16 << 10

// shortQueue bounds what was written and not sent; what is on its way is the network's.
func shortQueue(conn net.Conn) {
	c, ok := conn.(syscall.Conn)
	if !ok {
		return
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) { // without it such a client is seen later
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, unsent)
	})
}

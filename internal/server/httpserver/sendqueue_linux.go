package httpserver

import (
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// unsent is the number of bytes in a connection's send queue from which a write blocks. With the
// system's default of megabytes, a client that does not read would go unnoticed.
const unsent = 16 << 10

// shortQueue bounds the bytes that were written and not sent. Bytes in flight do not count.
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

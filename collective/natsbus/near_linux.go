package natsbus

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Abstract sockets: no file is left behind, and only processes of the same network
// namespace reach one, so that who is apart on the network is apart here.

func listenNear() (*net.UnixListener, string, error) {
	var random [16]byte
	rand.Read(random[:])
	name := "@shoal-" + hex.EncodeToString(random[:])
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: name, Net: "unix"})
	return l, name, err
}

func dialNear(ctx context.Context, name string) (*net.UnixConn, error) {
	var d net.Dialer
	nc, err := d.DialContext(ctx, "unix", name)
	if err != nil {
		return nil, err
	}
	return nc.(*net.UnixConn), nil
}

// sameUser asks the kernel who is at the other end.
func sameUser(nc *net.UnixConn) bool {
	raw, err := nc.SyscallConn()
	if err != nil {
		return false
	}
	var peer *unix.Ucred
	var cause error
	err = raw.Control(func(fd uintptr) { peer, cause = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	return err == nil && cause == nil && int(peer.Uid) == os.Geteuid()
}

// ownDescriptor is another descriptor of the same connection, which no poller knows.
func ownDescriptor(nc *net.UnixConn) (int, error) {
	raw, err := nc.SyscallConn()
	if err != nil {
		return 0, err
	}
	own, cause := 0, error(nil)
	err = raw.Control(func(fd uintptr) { own, cause = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0) })
	return own, errors.Join(err, cause)
}

// writeNow writes as much as there is room for.
func writeNow(fd int, parts [][]byte) (int, error) {
	for {
		n, err := unix.Writev(fd, parts)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN):
			return 0, nil
		}
		return max(n, 0), err
	}
}

// awaitRoom returns when there is room to write, or the connection ends, or after limit.
func awaitRoom(fd int, limit time.Duration) {
	_, _ = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}, int(limit.Milliseconds()))
}

// closeNow ends the connection, and with whole gives the descriptor back.
func closeNow(fd int, whole bool) {
	_ = unix.Shutdown(fd, unix.SHUT_RDWR)
	if whole {
		_ = unix.Close(fd)
	}
}

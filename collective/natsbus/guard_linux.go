package natsbus

import (
	"net/netip"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"golang.org/x/sys/unix"

	"github.com/shoal-llm/shoal/internal/sys/openfiles"
)

// watcher closes excess connections of one server. It opens its descriptors at the start, since
// later none may be free.
type watcher struct {
	ns    *server.Server
	files *os.File // /proc/self/fd
	null  int
	spare int // a descriptor reserved for end
	most  int
	since map[netip.AddrPort]time.Time
}

// guard runs until stop is closed. While half of this process's file descriptors are in use, it
// ends excess connections that have not logged in.
func guard(ns *server.Server, stop <-chan struct{}) (wait func(), err error) {
	w, err := newWatcher(ns, openfiles.MaxPendingConns())
	if err != nil {
		return nil, err
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		defer w.close()
		pause := time.NewTimer(guardEvery)
		defer pause.Stop()
		for {
			select {
			case <-pause.C:
			case <-stop:
				return
			}
			openfiles.Refill()
			if !w.short() {
				clear(w.since)
				pause.Reset(guardEvery)
				continue
			}
			began := time.Now()
			w.shed(began)
			// The remote ends may reconnect at once. At most a twentieth of one thread is spent on
			// them.
			pause.Reset(max(guardHurry, 20*time.Since(began)))
		}
	})
	return wg.Wait, nil
}

func newWatcher(ns *server.Server, most int) (w *watcher, err error) {
	w = &watcher{ns: ns, most: most, since: map[netip.AddrPort]time.Time{}, null: -1, spare: -1}
	if w.files, err = os.Open("/proc/self/fd"); err != nil {
		return nil, err
	}
	if w.null, err = unix.Open(os.DevNull, unix.O_RDONLY|unix.O_CLOEXEC, 0); err == nil {
		w.spare, err = unix.FcntlInt(uintptr(w.null), unix.F_DUPFD_CLOEXEC, 0)
	}
	if err != nil {
		w.close()
		return nil, err
	}
	return w, nil
}

func (w *watcher) close() {
	_ = w.files.Close()
	for _, fd := range []int{w.null, w.spare} {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
}

// short reports whether half of the descriptors are in use. The kernel returns the lowest free
// number.
func (w *watcher) short() bool {
	limit := openfiles.Limit()
	fd, err := unix.FcntlInt(uintptr(w.null), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return openfiles.Exhausted(err)
	}
	_ = unix.Close(fd)
	return limit > 0 && fd >= limit/2
}

// shed ends excess connections to the listeners that have not logged in.
func (w *watcher) shed(now time.Time) {
	at, in := ports(w.ns), loggedIn(w.ns)
	here := map[netip.AddrPort]int{}
	for _, fd := range w.list() {
		local, err := unix.Getsockname(fd)
		if err != nil || !at[addrPort(local).Port()] {
			continue
		}
		if remote, err := unix.Getpeername(fd); err == nil { // a listener has no peer
			if a := addrPort(remote); !in[a] {
				here[a] = fd
			}
		}
	}
	for a := range w.since {
		if _, still := here[a]; !still {
			delete(w.since, a)
		}
	}
	for a := range here {
		if _, known := w.since[a]; !known {
			w.since[a] = now
		}
	}
	for _, a := range excess(w.since, w.most) {
		w.end(here[a], a)
	}
}

// list returns the open file descriptors of this process.
func (w *watcher) list() (out []int) {
	if _, err := w.files.Seek(0, 0); err != nil {
		return nil
	}
	names, err := w.files.Readdirnames(-1)
	if err != nil {
		return nil
	}
	for _, name := range names {
		if fd, err := strconv.Atoi(name); err == nil {
			out = append(out, fd)
		}
	}
	return out
}

// end shuts a connection down, and the server then closes it. Until it has, since keeps the first
// time of the connection: as a new one it would displace others. Meanwhile fd may have been reused
// for another file, so end duplicates it first and checks the peer address of the duplicate.
func (w *watcher) end(fd int, remote netip.AddrPort) {
	if unix.Dup3(fd, w.spare, unix.O_CLOEXEC) != nil {
		return
	}
	if a, err := unix.Getpeername(w.spare); err == nil && addrPort(a) == remote {
		_ = unix.Shutdown(w.spare, unix.SHUT_RDWR) // ENOTCONN if the remote end was faster
	}
	_ = unix.Dup3(w.null, w.spare, unix.O_CLOEXEC)
}

func addrPort(a unix.Sockaddr) netip.AddrPort {
	switch a := a.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(a.Addr), uint16(a.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(a.Addr).Unmap(), uint16(a.Port))
	}
	return netip.AddrPort{}
}

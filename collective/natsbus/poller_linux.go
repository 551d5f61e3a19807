package natsbus

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// poller reads the connections of a transport. While a goroutine polls for messages, the poller
// reads on that goroutine; otherwise on its own, which sleeps until data arrives. Waking a sleeping
// goroutine costs Go a thread wake-up, often two: tens of microseconds each on idle CPUs, twice a
// layer. The connections are not registered with Go's netpoller, because it would wake a thread
// even while a goroutine polls.
type poller struct {
	set  int      // epoll of the connections
	wake *os.File // epoll of set, one-shot and disabled while a goroutine polls; registered with Go's netpoller
	raw  syscall.RawConn

	reads  sync.Mutex // held while reading
	conns  []*pollConn
	added  atomic.Int32 // len(conns)
	closed bool         // the poller and its connections are closed

	mu      sync.Mutex
	polling atomic.Bool // written with mu held
}

// pollConn is the connection of a link that a poller reads.
type pollConn struct {
	net.Conn // already closed; used for its addresses
	link     *link
	mu       sync.Mutex
	fd       int  // -1: closed
	adopted  bool // the poller reads it and will close it
	empty    bool // the last read returned less than the buffer holds
}

// errLater is returned when no more data has arrived.
var errLater = errors.New("natsbus: no more data")

func newPoller() (*poller, error) {
	set, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, err
	}
	wake, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err == nil {
		err = errors.Join(unix.SetNonblock(wake, true),
			unix.EpollCtl(wake, unix.EPOLL_CTL_ADD, set, &unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLONESHOT}))
		if err != nil {
			_ = unix.Close(wake)
		}
	}
	if err != nil {
		_ = unix.Close(set)
		return nil, err
	}
	p := &poller{set: set, wake: os.NewFile(uintptr(wake), "epoll")}
	if p.raw, err = p.wake.SyscallConn(); err != nil { // cannot happen with an open file
		return nil, errors.Join(err, p.wake.Close(), unix.Close(set))
	}
	go p.readIdle()
	return p, nil
}

// adopt takes the connection of a new link away from Go's netpoller, if it is plain TCP. The caller
// must then call add.
func (p *poller) adopt(l *link) error {
	tcp, ok := l.nc.(*net.TCPConn)
	if !ok {
		return nil
	}
	fd, err := detach(tcp)
	l.nc = &pollConn{Conn: tcp, link: l, fd: fd}
	return err
}

// add starts reading an adopted link. It returns false if adopt left the link to Go's netpoller.
func (p *poller) add(l *link) bool {
	n, ok := l.nc.(*pollConn)
	if !ok {
		return false
	}
	p.reads.Lock()
	defer p.reads.Unlock()
	if p.closed || !n.adopt() {
		_ = n.Close()
		return true
	}
	p.conns = append(p.conns, n)
	p.added.Add(1)
	err := unix.EpollCtl(p.set, unix.EPOLL_CTL_ADD, n.fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(len(p.conns) - 1)})
	if err == nil {
		err = l.inbox.lines()
	}
	if err != nil {
		l.end(err)
	}
	return true
}

// count returns the number of connections that the poller reads.
func (p *poller) count() int { return int(p.added.Load()) }

// detach takes a connection away from Go's netpoller. The original is closed even after an error.
func detach(c *net.TCPConn) (int, error) {
	defer c.Close()
	raw, err := c.SyscallConn()
	if err != nil {
		return -1, err
	}
	fd := -1
	if e := raw.Control(func(from uintptr) {
		fd, err = unix.FcntlInt(from, unix.F_DUPFD_CLOEXEC, 0)
	}); e != nil {
		return -1, e
	}
	return fd, err
}

// poll reads the bytes that have arrived.
func (p *poller) poll() {
	if !p.polling.Load() {
		p.setPolling(true)
	}
	if p.reads.TryLock() {
		p.readReady()
		p.reads.Unlock()
	}
}

// rest hands the reading over to the poller's goroutine.
func (p *poller) rest() {
	if p.polling.Load() {
		p.setPolling(false)
	}
}

// setPolling records whether a goroutine polls from now on.
func (p *poller) setPolling(polls bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.polling.Store(polls)
	p.rearm()
}

// rearm makes the wake descriptor report the next or pending data once, or nothing while a
// goroutine polls. The lock is held.
func (p *poller) rearm() {
	e := unix.EpollEvent{Events: unix.EPOLLONESHOT}
	if !p.polling.Load() {
		e.Events |= unix.EPOLLIN
	}
	_ = p.raw.Control(func(wake uintptr) { _ = unix.EpollCtl(int(wake), unix.EPOLL_CTL_MOD, p.set, &e) }) // fails once it is closed
}

// readReady reads the bytes that have arrived. The caller holds reads.
func (p *poller) readReady() {
	var ready [16]unix.EpollEvent
	if p.closed {
		return
	}
	n, _ := unix.EpollWait(p.set, ready[:], 0)
	for _, e := range ready[:max(n, 0)] {
		l := p.conns[e.Fd]
		if err := l.link.inbox.from(l.readNow); !errors.Is(err, errLater) {
			_ = unix.EpollCtl(p.set, unix.EPOLL_CTL_DEL, l.fd, nil)
			l.link.end(err)
		}
	}
}

// readIdle reads while no goroutine polls.
func (p *poller) readIdle() {
	readable := func(wake uintptr) bool {
		var e [1]unix.EpollEvent
		n, err := unix.EpollWait(int(wake), e[:], 0)
		return n > 0 || err != nil && err != unix.EINTR
	}
	for p.raw.Read(readable) == nil { // until wake is closed
		p.reads.Lock()
		p.readReady()
		p.reads.Unlock()
		p.mu.Lock()
		p.rearm()
		p.mu.Unlock()
	}
	p.reads.Lock()
	defer p.reads.Unlock()
	p.closed = true
	for _, l := range p.conns {
		l.mu.Lock()
		l.free()
		l.mu.Unlock()
	}
	_ = unix.Close(p.set)
}

// close ends the reading. It does not wait.
func (p *poller) close() { _ = p.wake.Close() }

// readNow reads the bytes that have arrived, without blocking.
func (l *pollConn) readNow(b []byte) (int, error) {
	if l.empty {
		l.empty = false
		return 0, errLater
	}
	for {
		switch n, err := unix.Read(l.fd, b); {
		case err == unix.EINTR:
		case err == unix.EAGAIN:
			return 0, errLater
		case err != nil:
			return 0, err
		case n == 0:
			return 0, io.EOF
		default:
			l.empty = n < len(b)
			return n, nil
		}
	}
}

// Write sends a pong. A full socket buffer would need thousands of unread pongs.
func (l *pollConn) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.fd < 0 {
		return 0, net.ErrClosed
	}
	for {
		if n, err := unix.Write(l.fd, b); err != unix.EINTR {
			return n, err
		}
	}
}

// adopt marks the connection as the poller's to close. It returns false if it is closed already.
func (l *pollConn) adopt() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.adopted = l.fd >= 0
	return l.adopted
}

// Close ends the connection. A poller may be reading it.
func (l *pollConn) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.fd >= 0 && l.adopted {
		return unix.Shutdown(l.fd, unix.SHUT_RDWR)
	}
	l.free()
	return nil
}

// free closes the descriptor. The lock is held.
func (l *pollConn) free() {
	if l.fd >= 0 {
		_ = unix.Close(l.fd)
		l.fd = -1
	}
}

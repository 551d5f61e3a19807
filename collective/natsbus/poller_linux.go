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

// poller reads connections on the goroutine of who waits for what they say, as long as that
// polls, and on one of its own, which sleeps until something comes, while nobody does. For a
// message that arrives for a goroutine that sleeps, Go wakes a thread, and that one often another:
// tens of microseconds each, on processors that sleep, where a layer waits twice. And no thread
// wakes beside the one that polls: of connections that Go's own poller knows it would.
type poller struct {
	set  int      // an epoll of the connections
	bell *os.File // an epoll of set, for one event, unless somebody polls; Go's poller knows it
	raw  syscall.RawConn

	reads sync.Mutex // held by who reads
	lines []*line
	added atomic.Int32 // lines
	over  bool         // all is closed

	mu      sync.Mutex
	polling atomic.Bool // changes with mu held
}

// line is the connection of a link.
type line struct {
	net.Conn // closed; for addresses
	link     *link
	mu       sync.Mutex
	fd       int  // -1: closed
	kept     bool // by a poller, which closes it
	empty    bool // the last read took all that there was
}

// errLater says that nothing more has come.
var errLater = errors.New("natsbus: nothing more has come")

func newPoller() (*poller, error) {
	set, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, err
	}
	bell, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err == nil {
		err = errors.Join(unix.SetNonblock(bell, true), unix.EpollCtl(bell, unix.EPOLL_CTL_ADD, set, &unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLONESHOT}))
		if err != nil {
			_ = unix.Close(bell)
		}
	}
	if err != nil {
		_ = unix.Close(set)
		return nil, err
	}
	p := &poller{set: set, bell: os.NewFile(uintptr(bell), "epoll")}
	if p.raw, err = p.bell.SyscallConn(); err != nil { // never of an open file
		return nil, errors.Join(err, p.bell.Close(), unix.Close(set))
	}
	go p.listen()
	return p, nil
}

// adopt takes the connection of a link that nobody else knows from Go's poller, if it is a plain
// one: add is to follow.
func (p *poller) adopt(l *link) error {
	tcp, ok := l.nc.(*net.TCPConn)
	if !ok {
		return nil
	}
	fd, err := detach(tcp)
	l.nc = &line{Conn: tcp, link: l, fd: fd}
	return err
}

// add takes over the reading of a link that it has adopted; false: it has not.
func (p *poller) add(l *link) bool {
	n, ok := l.nc.(*line)
	if !ok {
		return false
	}
	p.reads.Lock()
	defer p.reads.Unlock()
	if p.over || !n.keep() {
		_ = n.Close()
		return true
	}
	p.lines = append(p.lines, n)
	p.added.Add(1)
	err := unix.EpollCtl(p.set, unix.EPOLL_CTL_ADD, n.fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(len(p.lines) - 1)})
	if err == nil {
		err = l.inbox.lines()
	}
	if err != nil {
		l.end(err)
	}
	return true
}

// count is how many connections it reads.
func (p *poller) count() int { return int(p.added.Load()) }

// detach takes a connection from Go's poller. It is closed there also after an error.
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

// poll takes what has come.
func (p *poller) poll() {
	if !p.polling.Load() {
		p.ring(true)
	}
	if p.reads.TryLock() {
		p.take()
		p.reads.Unlock()
	}
}

// rest leaves the reading to the poller's goroutine.
func (p *poller) rest() {
	if p.polling.Load() {
		p.ring(false)
	}
}

// ring says whether somebody polls from now on.
func (p *poller) ring(polls bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.polling.Store(polls)
	p.arm()
}

// arm has the bell ring once at what comes, and what has come, unless somebody polls; the lock is
// held.
func (p *poller) arm() {
	e := unix.EpollEvent{Events: unix.EPOLLONESHOT}
	if !p.polling.Load() {
		e.Events |= unix.EPOLLIN
	}
	_ = p.raw.Control(func(bell uintptr) { _ = unix.EpollCtl(int(bell), unix.EPOLL_CTL_MOD, p.set, &e) }) // fails once it is closed
}

// take reads what there is; the lock of reads is held.
func (p *poller) take() {
	var ready [16]unix.EpollEvent
	if p.over {
		return
	}
	n, _ := unix.EpollWait(p.set, ready[:], 0)
	for _, e := range ready[:max(n, 0)] {
		l := p.lines[e.Fd]
		if err := l.link.inbox.from(l.now); !errors.Is(err, errLater) {
			_ = unix.EpollCtl(p.set, unix.EPOLL_CTL_DEL, l.fd, nil)
			l.link.end(err)
		}
	}
}

// listen reads while nobody polls.
func (p *poller) listen() {
	rings := func(bell uintptr) bool {
		var e [1]unix.EpollEvent
		n, err := unix.EpollWait(int(bell), e[:], 0)
		return n > 0 || err != nil && err != unix.EINTR
	}
	for p.raw.Read(rings) == nil { // until it is closed
		p.reads.Lock()
		p.take()
		p.reads.Unlock()
		p.mu.Lock()
		p.arm()
		p.mu.Unlock()
	}
	p.reads.Lock()
	defer p.reads.Unlock()
	p.over = true
	for _, l := range p.lines {
		l.mu.Lock()
		l.free()
		l.mu.Unlock()
	}
	_ = unix.Close(p.set)
}

// close ends the reading; it does not wait.
func (p *poller) close() { _ = p.bell.Close() }

// now is Read of what has come.
func (l *line) now(b []byte) (int, error) {
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

// Write sends a pong. A server whose buffers are full has not taken thousands of them.
func (l *line) Write(b []byte) (int, error) {
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

// keep says that a poller will close the connection, unless it is closed.
func (l *line) keep() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.kept = l.fd >= 0
	return l.kept
}

// Close ends the connection, which a poller may be reading.
func (l *line) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.fd >= 0 && l.kept {
		return unix.Shutdown(l.fd, unix.SHUT_RDWR)
	}
	l.free()
	return nil
}

// free closes the connection; the lock is held.
func (l *line) free() {
	if l.fd >= 0 {
		_ = unix.Close(l.fd)
		l.fd = -1
	}
}

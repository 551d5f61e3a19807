package network

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shoal-llm/shoal/test/wire/host"
	"github.com/shoal-llm/shoal/test/wire/topology"
)

// Network is a running simulated network. One thread forwards all packets, so that faults are
// applied in one order. That thread must not be starved: the command stats shows how late packets were.
type Network struct {
	fabric   *fabric
	hosts    []*host.Namespace
	began    time.Time
	wake     int // event descriptor that interrupts the thread's wait
	commands chan func()
	ended    chan struct{}
	late     lateness
	err      error
}

// lateness sums the time that due packets waited for the forwarding thread.
type lateness struct {
	packets, above int64 // all, and those late by more than lateLimit
	sum, most      time.Duration
}

const lateLimit = 100 * time.Microsecond

// Start creates the hosts of a topology and starts to forward their packets, until Close is called.
func Start(top *topology.Topology) (*Network, error) {
	n := &Network{fabric: newFabric(top), began: time.Now(), commands: make(chan func(), 16), ended: make(chan struct{}), wake: -1}
	names := top.HostsFile()
	for _, h := range top.Hosts {
		ns, err := host.Create(h.Name, top.MTU, h.Prefixes()...)
		if err == nil {
			n.hosts = append(n.hosts, ns)
			err = errors.Join(host.Sysctl(h.Name, top.Sysctl), host.SetNames(h.Name, names))
		}
		if err != nil {
			n.remove()
			return nil, err
		}
	}
	var err error
	if n.wake, err = unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC); err != nil {
		n.remove()
		return nil, fmt.Errorf("eventfd: %w", err)
	}
	go n.run()
	return n, nil
}

func (n *Network) remove() {
	for _, h := range n.hosts {
		h.Remove()
	}
	if n.wake >= 0 {
		unix.Close(n.wake)
	}
}

var errClosed = errors.New("the network is closed")

// do runs f on the forwarding thread. f must not block.
func (n *Network) do(ctx context.Context, f func()) error {
	done := make(chan struct{})
	select {
	case n.commands <- func() { defer close(done); f() }:
	case <-n.ended:
		return errClosed
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	one := [8]byte{1}
	_, _ = unix.Write(n.wake, one[:]) // full: a wake-up is pending
	select {
	case <-done:
		return nil
	case <-n.ended:
		return errClosed
	}
}

// Close stops forwarding and removes the hosts.
func (n *Network) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := n.do(ctx, func() { n.err = errClosed }); err != nil && !errors.Is(err, errClosed) {
		return err
	}
	<-n.ended
	n.remove()
	if errors.Is(n.err, errClosed) {
		return nil
	}
	return n.err
}

// burst is the maximum number of packets that are read from one host before the next host.
const burst = 32

func (n *Network) run() {
	host.Punctual()
	defer close(n.ended)
	fds := make([]unix.PollFd, 0, len(n.hosts)+1)
	for _, h := range n.hosts {
		fds = append(fds, unix.PollFd{Fd: int32(h.Device), Events: unix.POLLIN})
	}
	fds = append(fds, unix.PollFd{Fd: int32(n.wake), Events: unix.POLLIN})
	for n.err == nil {
		n.fabric.deliver(time.Since(n.began), n.write)
		var timeout *unix.Timespec
		if due, ok := n.fabric.next(); ok {
			wait := unix.NsecToTimespec(int64(max(0, due-time.Since(n.began))))
			timeout = &wait
		}
		ready, err := unix.Ppoll(fds, timeout, nil)
		if err != nil && !errors.Is(err, unix.EINTR) {
			n.err = fmt.Errorf("poll: %w", err)
			return
		}
		if ready <= 0 {
			continue
		}
		for i, h := range n.hosts {
			if fds[i].Revents != 0 {
				n.read(i, h.Device)
			}
		}
		if fds[len(n.hosts)].Revents != 0 {
			n.command()
		}
	}
}

// read takes packets that a host has sent.
func (n *Network) read(from, device int) {
	for range burst {
		b := n.fabric.buffer()
		k, err := unix.Read(device, b)
		if err != nil || k <= 0 {
			n.fabric.release(b)
			return
		}
		n.fabric.send(time.Since(n.began), from, b[:k])
	}
}

// write hands a packet to its host. A host whose receive queue is full loses it.
func (n *Network) write(p *packet) {
	late := time.Since(n.began) - p.due
	n.late.packets++
	n.late.sum += late
	n.late.most = max(n.late.most, late)
	if late > lateLimit {
		n.late.above++
	}
	_, _ = unix.Write(n.hosts[p.to].Device, p.data)
}

// command runs the functions that do has queued.
func (n *Network) command() {
	var count [8]byte
	_, _ = unix.Read(n.wake, count[:])
	for {
		select {
		case f := <-n.commands:
			f()
		default:
			return
		}
	}
}

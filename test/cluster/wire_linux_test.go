package cluster_test

import (
	"container/heap"
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shoal-llm/shoal/test/wire/host"
	"github.com/shoal-llm/shoal/test/wire/link"
	"github.com/shoal-llm/shoal/test/wire/nat"
	"github.com/shoal-llm/shoal/test/wire/packet"
)

// fakeWire is a simulated network for the processes of one cluster. Each process has a network
// namespace with one interface, a TUN device whose other end the test holds. Every packet
// between two processes passes through forward, which applies the rules of the directed
// pair. The machine's own network is not used. It requires root.
//
// The addresses are in 127/8, so that a cluster needs no key and messages are readable, unless the kind is another.
type fakeWire struct {
	t     testing.TB
	kind  wireKind
	names string // hosts file of all processes; empty: that of the machine

	began time.Time

	mu    sync.Mutex
	ports []*port
	rules map[[2]byte]*rule // by the last byte of source and destination address
	done  int               // flips, resets and cuts since the last heal
	r     *rand.Rand
}

// wireKind determines the addresses of a wire.
type wireKind struct {
	name  string
	keyed bool // 10/8, so that a cluster needs a key
	six   bool // IPv6 only, with a key
	named bool // processes have names, with a key
}

var (
	keyedWire = wireKind{name: "IPv4", keyed: true}
	ipv6Wire  = wireKind{name: "IPv6", keyed: true, six: true}
	namedWire = wireKind{name: "names", keyed: true, named: true}
)

// rule describes the faults of one direction: those of a link, and changes of packets. flip, reset and
// short are probabilities, one in n; 0: never.
type rule struct {
	*link.Link
	flip, reset int                        // flip changes a bit of a TCP payload and corrects the checksum; reset breaks the connection
	short       int                        // ends the connection inside a TCP payload, as if no more had been sent
	most        int                        // maximum number of flips, resets and cuts of all pairs together; 0: unlimited
	only        func(from, to uint16) bool // TCP ports with flips, resets and cuts; nil: all

	flipped int
}

// port is the connection of one process to a wire.
type port struct {
	w    *fakeWire
	at   byte // last byte of its address
	tun  *os.File
	jobs chan func() // run on the thread inside the namespace
	out  chan parcel // to the process
	nat  *nat.Table  // between the process and the wire; nil: none
}

// parcel is a packet that arrives at a time. Packets of one time keep their order.
type parcel struct {
	due      time.Duration // since the wire began
	sequence int
	b        []byte
}

// parcels is a heap, the next arrival first.
type parcels []parcel

func (p parcels) Len() int      { return len(p) }
func (p parcels) Swap(i, j int) { p[i], p[j] = p[j], p[i] }
func (p *parcels) Push(x any)   { *p = append(*p, x.(parcel)) }
func (p parcels) Less(i, j int) bool {
	return p[i].due < p[j].due || p[i].due == p[j].due && p[i].sequence < p[j].sequence
}
func (p *parcels) Pop() any {
	last := len(*p) - 1
	x := (*p)[last]
	*p = (*p)[:last]
	return x
}

const wireMTU = 9000

// newWire creates an empty network, or skips the test if that is not permitted.
func newWire(t testing.TB, keyed bool) *fakeWire { return newWireOf(t, wireKind{keyed: keyed}) }

func newWireOf(t testing.TB, kind wireKind) *fakeWire {
	w := &fakeWire{t: t, kind: kind, began: time.Now(), rules: map[[2]byte]*rule{}, r: rand.New(rand.NewPCG(1, 1))}
	if kind.named {
		w.names = filepath.Join(t.TempDir(), "hosts")
		w.setNames(nil)
	}
	if _, err := w.open(250, netip.Addr{}); err != nil {
		t.Skipf("NOT TESTED: faults of a network: a network namespace with a TUN device cannot be made here (%v); run as root", err)
	}
	w.ports = nil // the first port only checked the permission
	return w
}

func (w *fakeWire) address(at byte) netip.Addr {
	switch {
	case w.kind.six:
		return netip.AddrFrom16([16]byte{0: 0xfd, 1: 0x77, 15: at})
	case w.kind.keyed:
		return netip.AddrFrom4([4]byte{10, 77, 0, at})
	}
	return netip.AddrFrom4([4]byte{127, 77, 0, at})
}

// setNames replaces the names that all processes resolve.
func (w *fakeWire) setNames(names map[string]*port) {
	w.t.Helper()
	text := []byte("127.0.0.1 localhost\n")
	for name, p := range names {
		text = fmt.Appendf(text, "%s %s\n", p.ip(), name)
	}
	if err := os.WriteFile(w.names, text, 0o644); err != nil { // in place, since it is mounted
		w.t.Fatal(err)
	}
}

// plug adds a port. Processes spawned on it have no other network.
func (w *fakeWire) plug() *port { return w.plugBehind(netip.Addr{}) }

// plugBehind is plug for a process with an inner address, behind a router that translates it to that of the
// port. The zero address: without a router.
func (w *fakeWire) plugBehind(inner netip.Addr) *port {
	w.t.Helper()
	w.mu.Lock()
	at := byte(len(w.ports) + 1)
	w.mu.Unlock()
	p, err := w.open(at, inner)
	if err != nil {
		w.t.Fatal(err)
	}
	return p
}

func (w *fakeWire) open(at byte, inner netip.Addr) (*port, error) {
	p := &port{w: w, at: at, jobs: make(chan func()), out: make(chan parcel, 4096)}
	if inner.IsValid() {
		p.nat = &nat.Table{Inner: inner, Outer: w.address(at)}
	}
	made := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		err := p.enter()
		made <- err
		for f := range p.jobs {
			f()
		}
	}()
	if err := <-made; err != nil {
		return nil, err
	}
	w.mu.Lock()
	w.ports = append(w.ports, p)
	w.mu.Unlock()
	stop := make(chan struct{})
	go p.receive()
	go p.deliver(stop)
	w.t.Cleanup(func() {
		close(stop)
		close(p.jobs)
		p.tun.Close()
	})
	return p, nil
}

// in runs f on the thread inside the port's namespace.
func (p *port) in(f func()) {
	done := make(chan struct{})
	p.jobs <- func() { defer close(done); f() }
	<-done
}

// ip returns the address of the process. Others use it unless there is a router.
func (p *port) ip() string {
	if p.nat != nil {
		return p.nat.Inner.String()
	}
	return p.w.address(p.at).String()
}

// addr returns an address of the process, host:port.
func (p *port) addr(number string) string { return net.JoinHostPort(p.ip(), number) }

// dial connects from inside the namespace.
func (p *port) dial(ctx context.Context, network, addr string) (c net.Conn, err error) {
	p.in(func() { c, err = new(net.Dialer).DialContext(ctx, network, addr) })
	return c, err
}

// enter moves the thread into a new namespace and brings its interfaces up.
func (p *port) enter() error {
	bits := 24
	switch {
	case p.nat != nil:
		bits = 8 // the route to all ports of the wire
	case p.w.kind.six:
		bits = 64
	}
	fd, err := host.Enter(wireMTU, netip.PrefixFrom(netip.MustParseAddr(p.ip()), bits))
	if err == nil {
		p.tun = os.NewFile(uintptr(fd), host.Interface)
		if p.w.names != "" {
			err = host.ShowNames(p.w.names)
		}
	}
	return err
}

// receive reads the packets that the process sends.
func (p *port) receive() {
	b := make([]byte, wireMTU+64)
	for {
		n, err := p.tun.Read(b)
		if err != nil {
			return
		}
		p.w.forward(p, b[:n])
	}
}

// deliver writes the packets that others have sent, each when it is due.
func (p *port) deliver(stop chan struct{}) {
	var waiting parcels
	timer := time.NewTimer(time.Hour)
	for sequence := 0; ; {
		for len(waiting) > 0 && waiting[0].due <= time.Since(p.w.began) {
			_, _ = p.tun.Write(heap.Pop(&waiting).(parcel).b) // TCP repeats the packets that a full queue drops
		}
		if len(waiting) > 0 {
			timer.Reset(waiting[0].due - time.Since(p.w.began))
		}
		select {
		case <-stop:
			return
		case x := <-p.out:
			x.sequence = sequence
			sequence++
			heap.Push(&waiting, x)
		case <-timer.C:
		}
	}
}

// forward applies the rules to a packet.
func (w *fakeWire) forward(from *port, b []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if from.nat != nil && !from.nat.Out(b) {
		return
	}
	h, ok := packet.Parse(b)
	if !ok || h.From != w.address(from.at) {
		return // such as router solicitations of IPv6
	}
	now := time.Since(w.began)
	if h.To.IsMulticast() { // no rules apply
		for _, to := range w.ports {
			if to != from {
				to.take(parcel{due: now, b: append([]byte(nil), b...)})
			}
		}
		return
	}
	last := h.To.AsSlice()
	at := int(last[len(last)-1]) - 1
	if at < 0 || at >= len(w.ports) || h.To != w.address(byte(at+1)) {
		return
	}
	to := w.ports[at]
	if to.nat != nil && !to.nat.In(b) {
		return
	}
	x := parcel{b: append([]byte(nil), b...)}
	arrivals, copies := [2]time.Duration{now}, 1
	if r := w.rules[[2]byte{from.at, to.at}]; r != nil {
		arrivals, copies = r.Send(now, len(b))
		chance := func(n int) bool { return n > 0 && w.r.IntN(n) == 0 }
		if data := tcpPayload(x.b); len(data) > 0 && (r.only == nil || r.only(tcpPorts(x.b))) && (r.most == 0 || w.done < r.most) {
			switch {
			case chance(r.reset):
				w.done++
				x.b = x.b[:len(x.b)-len(data)]
				resetTCP(x.b)
				sumTCP(x.b)
			case chance(r.short):
				w.done++
				x.b = x.b[:len(x.b)-(len(data)+1)/2]
				endTCP(x.b)
				sumTCP(x.b)
			case chance(r.flip):
				w.done++
				r.flipped++
				data[w.r.IntN(len(data))] ^= 1 << w.r.IntN(8)
				sumTCP(x.b)
			}
		}
	}
	for _, x.due = range arrivals[:copies] {
		to.take(x)
	}
}

// take queues a packet for the process.
func (p *port) take(x parcel) {
	select {
	case p.out <- x:
	default: // like a switch, drop packets that exceed the queue
	}
}

// between changes the rules for every pair of the two sets, in both directions or in one.
func (w *fakeWire) between(a, b []*port, both bool, change func(*rule)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	set := func(x, y *port) {
		k := [2]byte{x.at, y.at}
		if w.rules[k] == nil {
			w.rules[k] = &rule{Link: link.New(link.Settings{}, 1, uint64(x.at)<<8|uint64(y.at))}
		}
		change(w.rules[k])
	}
	for _, x := range a {
		for _, y := range b {
			if x == y {
				continue
			}
			set(x, y)
			if both {
				set(y, x)
			}
		}
	}
}

// heal ends all faults.
func (w *fakeWire) heal() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.rules, w.done = map[[2]byte]*rule{}, 0
}

// sum adds up the counters of all rules.
func (w *fakeWire) sum() (seen, lost, flipped int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range w.rules {
		dropped := r.Lost + r.Counters.Cut + r.Full
		seen, lost, flipped = seen+int(r.Sent+dropped), lost+int(dropped), flipped+r.flipped
	}
	return seen, lost, flipped
}

// tcpAt returns the offset of the TCP header; 0: another protocol.
func tcpAt(b []byte) int {
	h, ok := packet.Parse(b)
	if !ok || !h.TCP || h.Fragment || len(b) < h.Payload+20 {
		return 0
	}
	return h.Payload
}

// tcpPayload returns the data of a TCP packet.
func tcpPayload(b []byte) []byte {
	at := tcpAt(b)
	if at == 0 {
		return nil
	}
	data := at + int(b[at+12]>>4)*4
	return b[min(data, len(b)):]
}

func tcpPorts(b []byte) (from, to uint16) {
	at := tcpAt(b)
	return binary.BigEndian.Uint16(b[at:]), binary.BigEndian.Uint16(b[at+2:])
}

// resetTCP turns a packet into a reset.
func resetTCP(b []byte) { b[tcpAt(b)+13] = 0x14 } // RST, ACK

// endTCP makes a packet the last one of its direction.
func endTCP(b []byte) { b[tcpAt(b)+13] = 0x19 } // FIN, PSH, ACK

// sumTCP corrects the lengths and checksums of a changed packet.
func sumTCP(b []byte) {
	at := tcpAt(b)
	b[at+16], b[at+17] = 0, 0
	sum := func(parts ...[]byte) uint16 {
		var s uint32
		for _, p := range parts { // all parts except the last have even length
			for i := 0; i+1 < len(p); i += 2 {
				s += uint32(p[i])<<8 | uint32(p[i+1])
			}
			if len(p)%2 == 1 {
				s += uint32(p[len(p)-1]) << 8
			}
		}
		for s>>16 != 0 {
			s = s&0xffff + s>>16
		}
		return ^uint16(s)
	}
	addresses := b[8:40]
	if b[0]>>4 == 4 {
		addresses = b[12:20]
		binary.BigEndian.PutUint16(b[2:], uint16(len(b)))
		b[10], b[11] = 0, 0
		binary.BigEndian.PutUint16(b[10:], sum(b[:at]))
	} else {
		binary.BigEndian.PutUint16(b[4:], uint16(len(b)-40))
	}
	length := binary.BigEndian.AppendUint16([]byte{0, unix.IPPROTO_TCP}, uint16(len(b)-at))
	binary.BigEndian.PutUint16(b[at+16:], sum(addresses, length, b[at:]))
}

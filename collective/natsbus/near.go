package natsbus

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"shoal/collective"
)

// Ranks of one machine. A message to one crosses no server: the speaker writes it to a
// Unix socket that the listener has dialled, and the listener's reader takes it to its
// group. Rank and address are told as for links (call.go), the listener logs in with
// the same ticket, and both ends must be of one user. What is sent on it is a rising
// sequence of frames: four bytes, little-endian, with the length of the message below
// the top bit, which says that it went to this rank alone; then the message. A length
// of zero says that the speaker leaves in peace.

// nearby takes the connections of ranks of other processes of this machine.
type nearby struct {
	users *users
	l     *net.UnixListener
	name  string // empty: there is no listener

	mu       sync.Mutex
	speakers map[identity]*Transport
	conns    map[*net.UnixConn]struct{} // of those who log in
	over     bool
	ended    sync.WaitGroup
}

// identity is who is heard.
type identity struct {
	group string
	epoch uint32
	rank  int
}

const (
	nearDirect = 1 << 31
	nearHead   = 4
	nearTicket = 512 // bytes of a login
)

// acceptPause keeps a listener that cannot accept from asking all the time.
const acceptPause = 10 * time.Millisecond

// welcome is the answer to a login; a refusal has none.
var welcome = []byte{'+'}

// newNearby opens the listener where the system has such sockets.
func newNearby(u *users, log interface{ Debug(string, ...any) }) *nearby {
	n := &nearby{users: u, speakers: map[identity]*Transport{}, conns: map[*net.UnixConn]struct{}{}}
	l, name, err := listenNear()
	if err != nil {
		log.Debug("processes of this machine are heard over TCP", "why", err)
		return n
	}
	n.l, n.name = l, name
	n.ended.Add(1)
	go n.accept()
	return n
}

func (n *nearby) accept() {
	defer n.ended.Done()
	for {
		nc, err := n.l.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // out of descriptors, say: whoever dials goes another way
			time.Sleep(acceptPause)
			continue
		}
		if !n.keep(nc) {
			nc.Close()
			return
		}
		n.ended.Add(1)
		go func() {
			defer n.ended.Done()
			n.serve(nc)
			n.mu.Lock()
			delete(n.conns, nc)
			n.mu.Unlock()
			nc.Close()
		}()
	}
}

func (n *nearby) keep(nc *net.UnixConn) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.over {
		n.conns[nc] = struct{}{}
	}
	return !n.over
}

// serve logs a listener in. The outlet then has the connection.
func (n *nearby) serve(nc *net.UnixConn) {
	if nc.SetDeadline(time.Now().Add(linkTimeout)) != nil || !sameUser(nc) {
		return
	}
	line, err := bufio.NewReaderSize(nc, nearTicket).ReadSlice('\n') // it says no more than that
	if err != nil {
		return
	}
	ticket, of, _ := strings.Cut(strings.TrimSuffix(string(line), "\n"), " ")
	src, err := strconv.Atoi(of)
	if err != nil {
		return
	}
	group, epoch, rank, ok := n.users.read(ticket)
	if !ok {
		return
	}
	n.mu.Lock()
	t := n.speakers[identity{group, epoch, src}]
	n.mu.Unlock()
	if t == nil || rank >= t.cfg.Size {
		return
	}
	o, err := newOutlet(nc, &t.pool)
	if err != nil {
		return
	}
	o.mu.Lock() // nothing is said before the welcome
	defer o.mu.Unlock()
	if !t.attach(rank, o) {
		o.shut()
	} else if n, err := writeNow(o.fd, [][]byte{welcome}); n == 0 || err != nil {
		o.shut()
	}
}

func (n *nearby) add(who identity, t *Transport) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.over {
		n.speakers[who] = t
	}
}

func (n *nearby) drop(who identity, t *Transport) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.speakers[who] == t {
		delete(n.speakers, who)
	}
}

// stop ends the listener and every connection, without a word.
func (n *nearby) stop() {
	n.mu.Lock()
	n.over = true
	for nc := range n.conns {
		nc.Close()
	}
	speakers := n.speakers
	n.speakers = nil
	n.mu.Unlock()
	if n.l != nil {
		n.l.Close()
	}
	n.ended.Wait()
	for _, t := range speakers {
		t.eachNear((*outlet).end)
	}
}

// outlet is the way to one rank of this machine. A rank that reads slowly holds up
// neither the other ranks nor the group: what its connection does not take at once
// waits here, maxPending bytes at most, and then the sender does.
//
// The descriptor is not the runtime's: its poller would ask to be told of room to write
// as well, and a Unix socket tells of that whenever the other side has read something.
// This process would be woken once more for each message that it sent.
type outlet struct {
	fd   int
	pool *buffers
	most int // bytes that may wait

	mu       sync.Mutex
	room     sync.Cond // held has fallen, or drain has ended
	waiting  [][]byte
	held     int
	draining bool
	leaving  time.Time // once all is sent, at this time at the latest; zero: it stays
	closed   bool

	head  [nearHead]byte
	parts [2][]byte
}

// newOutlet takes over what nc is connected to; nc itself is still the caller's.
func newOutlet(nc *net.UnixConn, pool *buffers) (*outlet, error) {
	fd, err := ownDescriptor(nc)
	if err != nil {
		return nil, err
	}
	o := &outlet{fd: fd, pool: pool, most: maxPending}
	o.room.L = &o.mu
	return o, nil
}

// send puts one message on its way. Who cannot be written to is gone: its own
// connection to this rank, on which it is heard, says so.
func (o *outlet) send(msg []byte, direct bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for o.held > o.most && !o.closed {
		o.room.Wait()
	}
	if !o.leaving.IsZero() {
		return
	}
	size := uint32(len(msg))
	if direct {
		size |= nearDirect
	}
	binary.LittleEndian.PutUint32(o.head[:], size)
	o.write(msg)
}

// write sends head and msg, or queues what does not fit; the lock is held.
func (o *outlet) write(msg []byte) {
	if o.closed {
		return
	}
	n := 0
	if len(o.waiting) == 0 {
		o.parts[0], o.parts[1] = o.head[:], msg
		var err error
		if n, err = writeNow(o.fd, o.parts[:]); err != nil {
			o.shut()
			return
		}
		o.parts[1] = nil
	}
	left := nearHead + len(msg) - n
	if left == 0 {
		return
	}
	rest := o.pool.take(left)
	at := 0
	if n < nearHead {
		at = copy(rest, o.head[n:])
		n = nearHead
	}
	copy(rest[at:], msg[n-nearHead:])
	o.waiting = append(o.waiting, rest)
	o.held += left
	if !o.draining {
		o.draining = true
		go o.drain() // owner: the outlet, whose end wakes it
	}
}

// drain sends what waits. It waits for room on a thread of its own, for a moment at a time.
func (o *outlet) drain() {
	o.mu.Lock()
	defer o.mu.Unlock()
	at := 0
	for len(o.waiting) > 0 && !o.closed {
		b := o.waiting[0]
		o.parts[0], o.parts[1] = b[at:], nil
		n, err := writeNow(o.fd, o.parts[:1])
		if err != nil || !o.leaving.IsZero() && time.Now().After(o.leaving) {
			break
		}
		if at += n; at == len(b) {
			at = 0
			o.waiting[0] = nil
			o.waiting = o.waiting[1:]
			o.held -= len(b)
			o.pool.give(b)
			o.room.Broadcast()
		} else if n == 0 {
			o.mu.Unlock()
			awaitRoom(o.fd, drainPause)
			o.mu.Lock()
		}
	}
	o.draining = false
	if len(o.waiting) > 0 || o.closed || !o.leaving.IsZero() {
		o.waiting = nil
		o.closed = false // shut ends it for good, now that nobody waits on the descriptor
		o.shut()
		o.room.Broadcast()
	}
}

// drainPause bounds a wait for room, for which no other process must answer.
const drainPause = time.Second

// leave ends the outlet once all that was sent has been taken, and says that the
// speaker is not dead.
func (o *outlet) leave() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed || !o.leaving.IsZero() {
		return
	}
	o.leaving = time.Now().Add(linkTimeout)
	binary.LittleEndian.PutUint32(o.head[:], 0)
	o.write(nil)
	if len(o.waiting) == 0 {
		o.shut()
	}
}

// end closes the outlet; it may be called twice.
func (o *outlet) end() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.shut()
}

// shut closes the connection, or has drain do that. The lock is held.
func (o *outlet) shut() {
	if o.closed {
		return
	}
	o.closed = true
	closeNow(o.fd, !o.draining)
}

// attach makes o the way to rank, which has none yet.
func (t *Transport) attach(rank int, o *outlet) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return !t.closed && rank != t.cfg.Rank && t.outlets[rank].CompareAndSwap(nil, o)
}

// eachNear calls f for the ways to all ranks of this machine, and counts them.
func (t *Transport) eachNear(f func(*outlet)) (ranks int) {
	for r := range t.outlets {
		if o := t.outlets[r].Load(); o != nil {
			f(o)
			ranks++
		}
	}
	return ranks
}

// approach dials the socket of rank src, named in its call, and logs in.
func (t *Transport) approach(ctx context.Context, src int, name string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, linkTimeout)
	defer cancel()
	nc, err := dialNear(ctx, name)
	if err != nil {
		return nil, err
	}
	answer := make([]byte, len(welcome))
	err = nc.SetDeadline(time.Now().Add(linkTimeout))
	if err == nil && !sameUser(nc) {
		err = errors.New("natsbus: a process of another user listens there")
	}
	if err == nil {
		_, err = fmt.Fprintf(nc, "%s %d\n", t.server.users.ticket(t.cfg.Group, t.cfg.Epoch, t.cfg.Rank), src)
	}
	if err == nil {
		_, err = io.ReadFull(nc, answer)
	}
	if err == nil && !bytes.Equal(answer, welcome) {
		err = fmt.Errorf("natsbus: %q is not the answer to a login", answer)
	}
	if err == nil {
		err = nc.SetDeadline(time.Time{})
	}
	if err != nil {
		nc.Close()
		return nil, err
	}
	return nc, nil
}

// hearNear delivers what rank src says on nc.
func (t *Transport) hearNear(src int, nc net.Conn) {
	err := readNear(nc, &t.pool, func(direct bool, msg []byte) {
		if isHello(msg) {
			t.hello(src, direct, msg)
			return
		}
		t.take(src, msg)
	})
	nc.Close()
	t.mu.Lock()
	t.peers[src].near = nil
	t.mu.Unlock()
	if err != nil {
		t.fail(&collective.OpError{Ranks: []int{src}, Err: collective.ErrPeerGone, Cause: fmt.Errorf("%w: connection to its process: %w", ErrLost, err)})
	}
}

// readNear returns nil when the speaker has left in peace.
func readNear(nc io.Reader, pool *buffers, deliver func(direct bool, msg []byte)) error {
	in := bufio.NewReaderSize(nc, linkBuffer)
	for {
		head, err := in.Peek(nearHead)
		if err != nil {
			return err
		}
		size := binary.LittleEndian.Uint32(head)
		_, _ = in.Discard(nearHead)
		direct, n := size&nearDirect != 0, int(size&^nearDirect)
		switch {
		case size == 0:
			return nil
		case n == 0 || n > maxPayload:
			return fmt.Errorf("natsbus: a message of %d bytes from a rank of this machine", n)
		}
		msg := pool.take(n)
		if _, err := io.ReadFull(in, msg); err != nil {
			return err
		}
		deliver(direct, msg)
	}
}

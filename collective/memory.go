package collective

import (
	"fmt"
	"math/bits"
	"sync"
)

// memoryLimit bounds the bytes queued for one receiver.
const memoryLimit = 1 << 30

// NewMemory connects size ranks inside one process. It copies each message once per receiver into
// reused buffers, so it has the costs of a real transport except the system calls.
func NewMemory(size int) []Transport {
	ends := make([]*memoryEnd, size)
	ts := make([]Transport, size)
	for r := range ends {
		e := &memoryEnd{rank: r, peers: ends}
		e.wake.L = &e.mu
		ends[r], ts[r] = e, e
	}
	return ts
}

// memoryEnd is one rank's end. Its goroutine starts with Receive and stops with
// Close.
type memoryEnd struct {
	rank  int
	peers []*memoryEnd

	mu      sync.Mutex
	wake    sync.Cond
	queue   queue[delivery]
	bytes   int
	receive func(src int, msg []byte)
	closed  bool
	free    [25][][]byte // by log2 of capacity, up to 16 MiB
}

type delivery struct {
	src int
	msg []byte
}

func (e *memoryEnd) Broadcast(msg []byte) error {
	for r := range e.peers {
		if r == e.rank {
			continue
		}
		if err := e.Send(r, msg); err != nil {
			return err
		}
	}
	return nil
}

func (e *memoryEnd) Send(dst int, msg []byte) error {
	if dst < 0 || dst >= len(e.peers) || dst == e.rank {
		return fmt.Errorf("collective: memory transport: rank %d sends to rank %d of %d", e.rank, dst, len(e.peers))
	}
	e.mu.Lock()
	closed := e.closed
	e.mu.Unlock()
	if closed {
		return fmt.Errorf("collective: memory transport: rank %d is closed", e.rank)
	}
	return e.peers[dst].put(e.rank, msg)
}

// put queues a copy. A closed end drops it silently, as any transport may.
func (e *memoryEnd) put(src int, msg []byte) error {
	e.mu.Lock()
	if e.closed {
		e.mu.Unlock()
		return nil
	}
	if e.bytes+len(msg) > memoryLimit {
		e.mu.Unlock()
		return fmt.Errorf("collective: memory transport: rank %d is %d bytes behind", e.rank, memoryLimit)
	}
	e.bytes += len(msg)
	buf := e.buffer(len(msg))
	copy(buf, msg)
	e.queue.push(delivery{src, buf})
	e.mu.Unlock()
	e.wake.Signal()
	return nil
}

func (e *memoryEnd) buffer(n int) []byte {
	c := bits.Len(uint(max(n, 1) - 1))
	if c >= len(e.free) {
		return make([]byte, n)
	}
	if f := e.free[c]; len(f) > 0 {
		b := f[len(f)-1]
		e.free[c] = f[:len(f)-1]
		return b[:n]
	}
	return make([]byte, n, 1<<c)
}

// Recycle takes a delivered buffer back.
func (e *memoryEnd) Recycle(msg []byte) {
	c := bits.Len(uint(max(cap(msg), 1) - 1))
	if c >= len(e.free) || cap(msg) != 1<<c {
		return
	}
	e.mu.Lock()
	if len(e.free[c]) < 64 {
		e.free[c] = append(e.free[c], msg)
	}
	e.mu.Unlock()
}

func (e *memoryEnd) Receive(f func(src int, msg []byte)) {
	e.mu.Lock()
	first := e.receive == nil && !e.closed
	e.receive = f
	e.mu.Unlock()
	if first {
		go e.deliver()
	}
}

func (e *memoryEnd) deliver() {
	for {
		e.mu.Lock()
		for e.queue.empty() && !e.closed {
			e.wake.Wait()
		}
		if e.closed {
			e.mu.Unlock()
			return
		}
		d, _ := e.queue.pop()
		e.bytes -= len(d.msg)
		f := e.receive
		e.mu.Unlock()
		f(d.src, d.msg)
	}
}

func (e *memoryEnd) Close() error {
	e.mu.Lock()
	e.closed = true
	e.queue.clear()
	e.bytes = 0
	e.mu.Unlock()
	e.wake.Signal()
	return nil
}

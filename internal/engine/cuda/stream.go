package cuda

import (
	"errors"
	"math"
	"time"
	"unsafe"
)

// A Stream is a queue of work for the card, done in order. Methods that enqueue return before the
// work is done, and report errors of earlier work as well as their own.
type Stream struct {
	c      *Context
	handle uintptr
}

// Stream makes a stream that does not wait for others.
func (c *Context) Stream() (*Stream, error) {
	const nonBlocking = 1
	s := &Stream{c: c}
	return s, c.driver.call(fnStreamCreate, uintptr(unsafe.Pointer(&s.handle)), nonBlocking)
}

// Close frees the stream after the work in it.
func (s *Stream) Close() error { return s.c.driver.call(fnStreamDestroy, s.handle) }

// Wait returns when all work of the stream is done. Other calls of the driver wait meanwhile: poll
// Done where they must not.
func (s *Stream) Wait() error { return s.c.driver.call(fnStreamSynchronize, s.handle) }

// Done reports whether all work of the stream is done.
func (s *Stream) Done() (bool, error) {
	err := s.c.driver.call(fnStreamQuery, s.handle)
	var e *Error
	if errors.As(err, &e) && e.Code == codeNotReady {
		return false, nil
	}
	return err == nil, err
}

// Upload copies host memory to the card. from must stay valid and unchanged until the stream is
// done, and must lie outside the Go heap: pinned for full speed (55 GB/s on PCIe 5, else 7).
func (s *Stream) Upload(to Pointer, from []byte) error {
	if len(from) == 0 {
		return nil
	}
	return s.c.driver.call(fnMemcpyHtoDAsync, uintptr(to), uintptr(unsafe.Pointer(&from[0])), uintptr(len(from)), s.handle)
}

// Download copies from the card to host memory, under the same rules.
func (s *Stream) Download(to []byte, from Pointer) error {
	if len(to) == 0 {
		return nil
	}
	return s.c.driver.call(fnMemcpyDtoHAsync, uintptr(unsafe.Pointer(&to[0])), uintptr(from), uintptr(len(to)), s.handle)
}

// Copy copies within the card.
func (s *Stream) Copy(to, from Pointer, n int64) error {
	return s.c.driver.call(fnMemcpyDtoDAsync, uintptr(to), uintptr(from), uintptr(n), s.handle)
}

// Fill sets words of 32 bits.
func (s *Stream) Fill(p Pointer, value uint32, words int64) error {
	return s.c.driver.call(fnMemsetD32Async, uintptr(p), uintptr(value), uintptr(words), s.handle)
}

// An Event marks a point in a stream.
type Event struct {
	c      *Context
	handle uintptr
}

// Event makes an event with a time.
func (c *Context) Event() (*Event, error) {
	e := &Event{c: c}
	return e, c.driver.call(fnEventCreate, uintptr(unsafe.Pointer(&e.handle)), 0)
}

// Record adds the event after the work that is in the stream.
func (e *Event) Record(s *Stream) error { return e.c.driver.call(fnEventRecord, e.handle, s.handle) }

// Since waits for both events and returns the card's time between them, to about 0.5 µs.
func (e *Event) Since(start *Event) (time.Duration, error) {
	if err := e.c.driver.call(fnEventSynchronize, e.handle); err != nil {
		return 0, err
	}
	var ms float32
	err := e.c.driver.call(fnEventElapsedTime, uintptr(unsafe.Pointer(&ms)), start.handle, e.handle)
	return time.Duration(math.Round(float64(ms) * float64(time.Millisecond))), err
}

// Close frees the event.
func (e *Event) Close() error { return e.c.driver.call(fnEventDestroy, e.handle) }

// A Graph is recorded work that one call starts: about 0.5 µs a kernel instead of 4.
type Graph struct {
	c    *Context
	exec uintptr
}

// Record makes a graph of what f puts into the stream, without doing it.
func (s *Stream) Record(f func() error) (*Graph, error) {
	const threadLocal = 1
	d := s.c.driver
	if err := d.call(fnStreamBeginCapture, s.handle, threadLocal); err != nil {
		return nil, err
	}
	failed := f()
	var graph uintptr
	err := d.call(fnStreamEndCapture, s.handle, uintptr(unsafe.Pointer(&graph)))
	if err := errors.Join(failed, err); err != nil {
		return nil, err
	}
	g := &Graph{c: s.c}
	err = d.call(fnGraphInstantiate, uintptr(unsafe.Pointer(&g.exec)), graph, 0)
	return g, errors.Join(err, d.call(fnGraphDestroy, graph))
}

// Launch puts the recorded work into a stream.
func (g *Graph) Launch(s *Stream) error { return g.c.driver.call(fnGraphLaunch, g.exec, s.handle) }

// Close frees the graph. It must not be in flight.
func (g *Graph) Close() error { return g.c.driver.call(fnGraphExecDestroy, g.exec) }

package cuda

import (
	"errors"
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

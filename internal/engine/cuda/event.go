package cuda

import (
	"math"
	"time"
	"unsafe"
)

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

package cuda

import (
	"errors"
	"unsafe"
)

// A Graph is recorded work that one call starts: about 0.5 µs a kernel instead of 4.
type Graph struct {
	c    *Context
	exec uintptr
}

// Record makes a graph of the operations that f puts into the stream, without running them. Operations
// of other callers on this stream would become part of the graph. Operations on other streams run.
func (s *Stream) Record(f func() error) (*Graph, error) {
	const relaxed = 2 // all goroutines call the driver from one thread
	d := s.c.driver
	if err := d.call(fnStreamBeginCapture, s.handle, relaxed); err != nil {
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

package card

import (
	"cmp"
	"fmt"
	"time"
)

// Looks of a watch at the same call of the driver before it is reported, and before the card counts as failed.
// Calls take up to some seconds: the first load of the kernels, and a wait for a long step.
const (
	slowLooks = 10
	hungLooks = 120
)

// watch reports calls of the driver that do not return. It counts its looks and not the time, so that a process
// that was stopped for a while does not count as hung.
type watch struct {
	call  uint32
	looks int // at this call
}

// observe takes the number of the call in progress, and returns how often it was seen before.
func (w *watch) observe(call uint32, pending bool) int {
	if !pending || call != w.call {
		w.call, w.looks = call, 0
		return 0
	}
	w.looks++
	return w.looks
}

// startWatch looks at the driver's calls until Close.
func (c *Card) startWatch(o Options) {
	every, done := cmp.Or(o.Watch, time.Second), make(chan struct{})
	stop := make(chan struct{})
	c.stopWatch = func() { close(stop); <-done }
	go func() {
		defer close(done)
		ticker := time.NewTicker(every)
		defer ticker.Stop()
		var w watch
		for {
			select {
			case <-stop:
				return
			case <-ticker.C:
			}
			function, call, pending := c.PendingCall()
			switch n := w.observe(call, pending); {
			case n == slowLooks && o.Slow != nil:
				o.Slow(function, time.Duration(n)*every)
			case n == hungLooks:
				c.fail(fmt.Errorf("%s (%s): the driver has not returned from %s for %v; see the kernel's log (dmesg) and nvidia-smi",
					c.ID(), c.Name, function, time.Duration(n)*every))
			}
		}
	}()
}

// Close stops the watch and frees everything on the card.
func (c *Card) Close() error {
	if c.stopWatch != nil {
		c.stopWatch()
		c.stopWatch = nil
	}
	return c.Context.Close()
}

package httpserver

import (
	"sync"
	"time"
)

// SlowReader watches how long the writes of a stream wait for its client. It calls notify when
// one has waited for after, and when that write has ended.
type SlowReader struct {
	After  time.Duration
	Notify func(unread bool)

	mu       sync.Mutex
	timer    *time.Timer
	writing  bool
	notified bool
}

// begin and end enclose a write; a nil SlowReader does nothing.
func (r *SlowReader) begin() {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.writing = true
	if r.timer == nil {
		r.timer = time.AfterFunc(r.After, r.late)
		return
	}
	r.timer.Reset(r.After)
}

func (r *SlowReader) end() {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.writing = false
	r.timer.Stop()
	if r.notified {
		r.notified = false
		r.Notify(false)
	}
}

func (r *SlowReader) late() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.writing && !r.notified {
		r.notified = true
		r.Notify(true)
	}
}

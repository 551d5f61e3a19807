package api

import (
	"sync"
	"time"
)

// reader watches how long the writes of a stream wait for its client. tell hears when
// one has waited for after, and when it has ended.
type reader struct {
	after time.Duration
	tell  func(unread bool)

	mu      sync.Mutex
	timer   *time.Timer
	writing bool
	told    bool
}

// begin and end stand around a write; a nil reader does nothing.
func (r *reader) begin() {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.writing = true
	if r.timer == nil {
		r.timer = time.AfterFunc(r.after, r.late)
		return
	}
	r.timer.Reset(r.after)
}

func (r *reader) end() {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.writing = false
	r.timer.Stop()
	if r.told {
		r.told = false
		r.tell(false)
	}
}

func (r *reader) late() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.writing && !r.told {
		r.told = true
		r.tell(true)
	}
}

// unread tells the engine of every sequence of the run that is not at its end.
func (r *run) unread(yes bool) {
	for i, c := range r.choices {
		if c.finish == "" || !yes {
			r.server.engine.Unread(r.sequenceID(i), yes)
		}
	}
}

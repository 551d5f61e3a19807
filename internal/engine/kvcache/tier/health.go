package tier

import (
	"fmt"
	"sync/atomic"
	"time"
)

// health decides whether a disk is used. It is not used for a time after a failure, and while a request hangs: its
// deadline has passed, and it has not ended. A disk that hangs delays its callers once, and keeps the memory of few
// requests. Methods may be called concurrently.
type health struct {
	pausedUntil atomic.Pointer[time.Time] // until when the disk is not used; nil: it is
	late        atomic.Int64              // requests that hang
}

// ok reports whether the disk is used.
func (h *health) ok(now time.Time) bool {
	until := h.pausedUntil.Load()
	return h.late.Load() == 0 && (until == nil || !now.Before(*until))
}

// pause records a failure: the disk is not used until then.
func (h *health) pause(until time.Time) { h.pausedUntil.Store(&until) }

// hangs records requests that have passed their deadline. ended receives a value when one of them ends.
func hangs[T any](h *health, requests int, ended <-chan T, late func(T)) {
	h.late.Add(int64(requests))
	go func() {
		for range requests {
			late(<-ended)
			h.late.Add(-1)
		}
	}()
}

// hangGrace is the time that a request has after its deadline.
const hangGrace = 50 * time.Millisecond

// run runs a request and waits for it, for at most limit and hangGrace. If it takes longer, run returns true and an
// error, and calls late with the result when the request has ended.
func (h *health) run(limit time.Duration, request func() error, late func(error)) (hung bool, err error) {
	ended := make(chan error, 1)
	go func() { ended <- request() }()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	for again := true; ; again = false {
		select {
		case err := <-ended:
			return false, err
		case <-timer.C:
			if again { // if the process was stopped, the request may have ended too
				timer.Reset(hangGrace)
				continue
			}
			hangs(h, 1, ended, late)
			return true, fmt.Errorf("the disk did not answer within %v", limit)
		}
	}
}

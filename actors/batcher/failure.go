package batcher

import (
	"fmt"

	"github.com/shoal-llm/shoal/actors/batcher/outbox"
)

// breakEpoch ends the epoch after a step that failed or hung.
func (s *State) breakEpoch(reason string) {
	f := s.flight
	s.out.Broken = &Broken{Epoch: f.plan.Epoch, Step: f.plan.Step, Reason: reason}
	s.suspend(reason)
	s.residency.backoff.Failed(f.plan, s.now)
	// A request that breaks every step must not run forever.
	for _, d := range f.plan.Decode {
		s.failed(f.rows[d.Seq], reason)
	}
	for _, c := range f.plan.Chunks {
		s.failed(f.rows[c.Seq], reason)
	}
	for _, w := range f.plan.Sweeps {
		s.failed(f.rows[w.Seq], reason)
	}
}

func (s *State) failed(r *request, reason string) {
	r.failures++
	if !r.ended && r.failures >= s.cfg.MaxFailures {
		s.finish(r, ReasonError, CodeFailed, fmt.Sprintf("%d steps failed without a new token, the last one: %s", r.failures, reason))
	}
}

// suspend returns all running requests to the queue, with their tokens. Nothing is released: the next
// Placed lists the caches that the sockets still have.
func (s *State) suspend(reason string) {
	if s.placed {
		s.interrupt()
	}
	s.remote.interrupted(reason)
	s.saves.interrupted()
	s.placed, s.unplaced, s.flight = false, reason, nil
	for _, r := range s.running {
		if !r.ended {
			k := r.keep()
			r.restart()
			r.kept = k
			s.waiting.insert(r)
		}
	}
	s.running = nil
	s.release, s.residency.dropped, s.resumed = outbox.Outbox[uint64]{}, nil, nil
	s.ledger.sockets = nil
	s.prefix.clear()
}

// tick sets the time, and ends steps and requests that are past their deadlines.
func (s *State) tick(now int64) {
	s.now = max(s.now, now)
	s.rate.Tick(s.now, s.flight != nil)
	if f := s.flight; f != nil && s.now-f.started >= s.cfg.StepMillis {
		s.breakEpoch(fmt.Sprintf("no result after %d ms", s.now-f.started))
	}
	for _, list := range []queue{s.waiting, s.running} {
		for _, r := range append(queue(nil), list...) {
			if !r.ended && r.Deadline > 0 && s.now >= r.Deadline {
				s.finish(r, ReasonError, CodeDeadline, fmt.Sprintf("not finished %d ms after its arrival", s.now-r.Arrival))
			}
		}
	}
	for _, r := range append(queue(nil), s.waiting...) {
		s.failUnserved(r)
	}
}

// failUnserved ends a request that no placement could take for Config.UnservedMillis.
func (s *State) failUnserved(r *request) {
	switch {
	case r.idle:
	case s.placed && r.unfit == "":
		r.unserved = -1
	case r.unserved < 0:
		r.unserved = s.now
	case s.now-r.unserved < s.cfg.UnservedMillis:
	case !s.placed:
		s.finish(r, ReasonError, CodeUnserved, fmt.Sprintf("no working cluster for %d ms: %s", s.now-r.unserved, s.unplaced))
	case r.hasAll():
		s.leases.end(r)
	case r.unfit == s.adapted.refuse(r):
		s.finish(r, ReasonError, CodeBudget, s.adapted.tooLarge(r))
	case !r.Accepted && s.ledger.outgrown(r): // a job ends after some attempts: the node may never return
		s.finish(r, ReasonError, CodeUnserved, fmt.Sprintf("nodes that it needs are missing for %d ms: %s", s.now-r.unserved, s.tooLarge(r)))
	default:
		s.finish(r, ReasonError, CodeBudget, s.tooLarge(r))
	}
}

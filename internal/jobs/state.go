package jobs

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/shoal-llm/shoal/internal/jobs/journal"
)

// Phase of a job:
//
//	            ┌────────── Retry ──────────┐
//	            v                           │
//	Accept -> Queued ------- Start ----> Running -- Done --> Completed
//	            │                         │ │ ^
//	            │                         │ └─┘ Start (taken over), Tokens
//	            ├------- Dead ------------┴----------------> Dead
//	            └------- Cancel --------------------------> Cancelled
type Phase string

// Phases, with the names of the API.
const (
	Queued    Phase = "queued"
	Running   Phase = "running"
	Completed Phase = "completed"
	Dead      Phase = "dead" // failed permanently; the dead-letter list
	Cancelled Phase = "cancelled"
)

// Phases lists all phases in the order of a job's life.
var Phases = []Phase{Queued, Running, Completed, Dead, Cancelled}

// Final reports whether the job has ended.
func (p Phase) Final() bool { return p == Completed || p == Dead || p == Cancelled }

// Kinds of the records of a job.
const (
	KindAccept journal.Kind = 1 // the request; the job exists
	KindStart  journal.Kind = 2 // an attempt begins
	KindTokens journal.Kind = 3 // events of the engine, in order
	KindRetry  journal.Kind = 4 // the attempt failed; another one may follow
	KindDone   journal.Kind = 5 // the result is committed
	KindDead   journal.Kind = 6
	KindCancel journal.Kind = 7
	KindPart   journal.Kind = 8 // part of the result, before Done
)

// Update is the part of a record that State depends on.
type Update struct {
	Kind    journal.Kind
	Attempt uint32
	At      int64 // Unix milliseconds

	First, Count int    // Tokens: index of the first event, number of events
	NotBefore    int64  // Retry: Unix milliseconds
	Forgiven     bool   // Retry: not the job's fault; does not count
	Code         string // Retry, Dead
	Message      string
}

// Errors of Apply. A record that causes one is never written.
var (
	// ErrFinal: the job has ended; the attempt must stop.
	ErrFinal = errors.New("jobs: the job has ended")
	// ErrFenced: another attempt has started; this one must stop.
	ErrFenced = errors.New("jobs: another attempt has begun")
	// ErrOrder: the record cannot follow the existing ones.
	ErrOrder = errors.New("jobs: record out of order")
)

// State is the fold of a job's records. It is pure: every process that reads the same records
// computes the same state.
type State struct {
	Phase     Phase
	Attempt   uint32 // number of the newest attempt; 0: none
	Events    int    // number of logged events
	Failures  int    // failed attempts since the last new token
	Takeovers int    // attempts whose process died, since the last new token
	NotBefore int64  // Queued: Unix milliseconds

	Accepted, Started, Ended int64 // Unix milliseconds; 0: not yet
	Code, Message            string
}

// Apply folds one record into the state. An error leaves the state unchanged.
func (s *State) Apply(n Update) error {
	if n.Kind == KindAccept {
		if s.Phase != "" {
			return fmt.Errorf("%w: accepted twice", ErrOrder)
		}
		*s = State{Phase: Queued, Accepted: n.At}
		return nil
	}
	switch {
	case s.Phase == "":
		return fmt.Errorf("%w: kind %d before the job was accepted", ErrOrder, n.Kind)
	case s.Phase.Final():
		return fmt.Errorf("%w: it is %s", ErrFinal, s.Phase)
	case n.Kind == KindStart:
		return s.start(n)
	case n.Kind == KindCancel:
		s.end(Cancelled, n)
		return nil
	case n.Attempt != s.Attempt:
		return fmt.Errorf("%w: attempt %d is superseded by %d", ErrFenced, n.Attempt, s.Attempt)
	case n.Kind == KindDead:
		s.end(Dead, n)
		return nil
	case s.Phase != Running:
		return fmt.Errorf("%w: kind %d while %s", ErrOrder, n.Kind, s.Phase)
	}
	switch n.Kind {
	case KindTokens:
		if n.First != s.Events || n.Count < 1 {
			return fmt.Errorf("%w: %d events from index %d, the next index is %d", ErrOrder, n.Count, n.First, s.Events)
		}
		s.Events += n.Count
		s.Failures, s.Takeovers = 0, 0
	case KindPart:
	case KindRetry:
		s.Phase, s.NotBefore, s.Code, s.Message = Queued, n.NotBefore, n.Code, n.Message
		if !n.Forgiven {
			s.Failures++
		}
	case KindDone:
		s.end(Completed, n)
		s.Code, s.Message = "", ""
	default:
		return fmt.Errorf("%w: unknown kind %d", ErrOrder, n.Kind)
	}
	return nil
}

func (s *State) start(n Update) error {
	if n.Attempt != s.Attempt+1 {
		return fmt.Errorf("%w: attempt %d begins after %d", ErrFenced, n.Attempt, s.Attempt)
	}
	if s.Phase == Running { // its process died
		s.Takeovers++
	}
	s.Phase, s.Attempt, s.NotBefore = Running, n.Attempt, 0
	if s.Started == 0 {
		s.Started = n.At
	}
	return nil
}

func (s *State) end(p Phase, n Update) {
	s.Phase, s.Ended, s.NotBefore, s.Code, s.Message = p, n.At, 0, n.Code, n.Message
}

type Rules struct {
	// MaxFailures is the number of consecutive failed attempts without a new token after which the
	// job is dead. Default 5.
	MaxFailures int
	// MaxTakeovers is the same limit for attempts whose process died: a job that crashes its
	// process must not do so forever. Default 20.
	MaxTakeovers int
	// Backoff is the pause after the first failure. It doubles up to MaxBackoff. Defaults 500 ms
	// and 30 s.
	Backoff, MaxBackoff time.Duration
}

// Defaults sets zero fields to their defaults.
func (r *Rules) Defaults() {
	r.MaxFailures = cmp.Or(r.MaxFailures, 5)
	r.MaxTakeovers = cmp.Or(r.MaxTakeovers, 20)
	r.Backoff = cmp.Or(r.Backoff, 500*time.Millisecond)
	r.MaxBackoff = cmp.Or(r.MaxBackoff, 30*time.Second)
}

// Begin returns the record with which a process takes up a job that it is not running: Start or
// Dead. ok is false if the job must not start, or not yet.
func (s *State) Begin(now int64, r Rules) (n Update, ok bool) {
	switch {
	case s.Phase != Queued && s.Phase != Running, now < s.NotBefore && s.NotBefore-now <= r.MaxBackoff.Milliseconds():
		// A longer pause means that the clock was set back after it was written.
		return Update{}, false
	case s.Phase == Running && s.Takeovers >= r.MaxTakeovers:
		return Update{Kind: KindDead, Attempt: s.Attempt, At: now, Code: "crash_loop",
			Message: fmt.Sprintf("The coordinator died %d times in a row while it ran this job.", s.Takeovers+1)}, true
	}
	return Update{Kind: KindStart, Attempt: s.Attempt + 1, At: now}, true
}

// Failure describes a failed attempt.
type Failure struct {
	Code, Message string
	Permanent     bool // retrying cannot help
	Forgiven      bool // does not count: there was no cluster, or the server stops
}

// Fail returns the record of a failed attempt: Retry or Dead. ok is false if this attempt is not
// the running one; it must then write nothing.
func (s *State) Fail(attempt uint32, now int64, f Failure, r Rules) (n Update, ok bool) {
	if s.Phase != Running || s.Attempt != attempt {
		return Update{}, false
	}
	n = Update{Kind: KindRetry, Attempt: attempt, At: now, Code: f.Code, Message: f.Message, Forgiven: f.Forgiven}
	if f.Permanent || !f.Forgiven && s.Failures+1 >= r.MaxFailures {
		n.Kind = KindDead
		return n, true
	}
	pause := r.Backoff << min(s.Failures, 16)
	n.NotBefore = now + min(pause, r.MaxBackoff).Milliseconds()
	return n, true
}

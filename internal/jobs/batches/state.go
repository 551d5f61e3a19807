package batches

import (
	"fmt"

	"github.com/shoal-llm/shoal/internal/jobs"
	"github.com/shoal-llm/shoal/internal/jobs/journal"
)

// Phase of a batch, with OpenAI's names:
//
//	validating -> in_progress -> finalizing -> completed
//	   │              ├-> cancelling ------> cancelled
//	   └-> failed     └-> (past its window) -> expired
//
// "finalizing" has no record: it is in_progress with every line settled.
type Phase string

const (
	Validating Phase = "validating"
	Failed     Phase = "failed"
	InProgress Phase = "in_progress"
	Finalizing Phase = "finalizing"
	Completed  Phase = "completed"
	Expired    Phase = "expired"
	Cancelling Phase = "cancelling"
	Cancelled  Phase = "cancelled"
)

// Final reports whether the batch has ended.
func (p Phase) Final() bool {
	return p == Failed || p == Completed || p == Expired || p == Cancelled
}

// Kinds of the records of a batch.
const (
	KindCreated   journal.Kind = 16
	KindValidated journal.Kind = 17
	KindStopping  journal.Kind = 18 // a client cancelled the batch
	KindDone      journal.Kind = 19 // final: completed, failed, expired, cancelled
)

// Update is the part of a record that State depends on.
type Update struct {
	Kind    journal.Kind
	At      int64 // Unix milliseconds
	Total   int   // Validated: number of lines
	Expired bool  // Stopping: the completion window ended; no client cancelled
	Phase   Phase // Done
}

// State is the fold of a batch's records. It is pure.
type State struct {
	Phase   Phase
	Total   int
	Stopped bool // no further line becomes a job
	Expired bool

	Created, Begun, Stopping, Ended int64 // Unix milliseconds; 0: not yet
}

// Apply folds one record into the state. An error leaves the state unchanged.
func (s *State) Apply(n Update) error {
	switch {
	case n.Kind == KindCreated && s.Phase == "":
		*s = State{Phase: Validating, Created: n.At}
	case s.Phase == "" || n.Kind == KindCreated:
		return fmt.Errorf("%w: kind %d in batch state %q", jobs.ErrOrder, n.Kind, s.Phase)
	case s.Phase.Final():
		return fmt.Errorf("%w: the batch is %s", jobs.ErrFinal, s.Phase)
	case n.Kind == KindValidated && s.Phase == Validating:
		s.Phase, s.Total, s.Begun = InProgress, n.Total, n.At
	case n.Kind == KindStopping && !s.Stopped:
		s.Stopped, s.Expired, s.Stopping = true, n.Expired, n.At
		if !n.Expired {
			s.Phase = Cancelling
		}
	case n.Kind == KindDone && n.Phase.Final():
		s.Phase, s.Ended = n.Phase, n.At
	default:
		return fmt.Errorf("%w: kind %d in batch state %s", jobs.ErrOrder, n.Kind, s.Phase)
	}
	return nil
}

// Outcome returns the final phase of a batch whose lines are all settled.
func (s *State) Outcome() Phase {
	switch {
	case s.Expired:
		return Expired
	case s.Stopped:
		return Cancelled
	}
	return Completed
}

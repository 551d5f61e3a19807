package batches

import (
	"fmt"

	"github.com/shoal-llm/shoal/internal/jobs"
	"github.com/shoal-llm/shoal/internal/jobs/journal"
)

// Phase of a batch, as OpenAI spells them:
//
//	validating -> in_progress -> finalizing -> completed
//	   │              ├-> cancelling ------> cancelled
//	   └-> failed     └-> (past its window) -> expired
//
// "finalizing" is not written: it is in_progress with every line settled.
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

// Final tells whether nothing can happen to a batch any more.
func (p Phase) Final() bool {
	return p == Failed || p == Completed || p == Expired || p == Cancelled
}

// Kinds of a batch's records.
const (
	KindCreated   journal.Kind = 16
	KindValidated journal.Kind = 17
	KindStopping  journal.Kind = 18 // cancel was asked for
	KindDone      journal.Kind = 19 // final: completed, failed, expired, cancelled
)

// Note is what the life of a batch depends on in one record.
type Note struct {
	Kind    journal.Kind
	At      int64 // Unix milliseconds
	Total   int   // Validated: lines
	Expired bool  // Stopping: the window is over, nobody asked
	Phase   Phase // BatchDone
}

// State is the fold of a batch's records. It is pure.
type State struct {
	Phase   Phase
	Total   int
	Stopped bool // no more lines begin
	Expired bool

	Created, Begun, Stopping, Ended int64 // Unix milliseconds; 0: not yet
}

// Apply takes one record. After an error the state is as before.
func (s *State) Apply(n Note) error {
	switch {
	case n.Kind == KindCreated && s.Phase == "":
		*s = State{Phase: Validating, Created: n.At}
	case s.Phase == "" || n.Kind == KindCreated:
		return fmt.Errorf("%w: kind %d in a batch that is %q", jobs.ErrOrder, n.Kind, s.Phase)
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
		return fmt.Errorf("%w: kind %d in a batch that is %s", jobs.ErrOrder, n.Kind, s.Phase)
	}
	return nil
}

// Outcome is the phase that a batch ends in once its lines are settled.
func (s *State) Outcome() Phase {
	switch {
	case s.Expired:
		return Expired
	case s.Stopped:
		return Cancelled
	}
	return Completed
}

package jobs

import "fmt"

// BatchPhase of a batch, as OpenAI spells them:
//
//	validating -> in_progress -> finalizing -> completed
//	   │              ├-> cancelling ------> cancelled
//	   └-> failed     └-> (past its window) -> expired
//
// "finalizing" is not written: it is in_progress with every line settled.
type BatchPhase string

// Phases.
const (
	BatchValidating BatchPhase = "validating"
	BatchFailed     BatchPhase = "failed"
	BatchInProgress BatchPhase = "in_progress"
	BatchFinalizing BatchPhase = "finalizing"
	BatchCompleted  BatchPhase = "completed"
	BatchExpired    BatchPhase = "expired"
	BatchCancelling BatchPhase = "cancelling"
	BatchCancelled  BatchPhase = "cancelled"
)

// Final tells whether nothing can happen to a batch any more.
func (p BatchPhase) Final() bool {
	return p == BatchFailed || p == BatchCompleted || p == BatchExpired || p == BatchCancelled
}

// BatchNote is what the life of a batch depends on in one record.
type BatchNote struct {
	Kind    Kind
	At      int64      // Unix milliseconds
	Total   int        // Validated: lines
	Expired bool       // Stopping: the window is over, nobody asked
	Phase   BatchPhase // BatchDone
}

// BatchState is the fold of a batch's records. It is pure.
type BatchState struct {
	Phase   BatchPhase
	Total   int
	Stopped bool // no more lines begin
	Expired bool

	Created, Begun, Stopping, Ended int64 // Unix milliseconds; 0: not yet
}

// Apply takes one record. After an error the state is as before.
func (s *BatchState) Apply(n BatchNote) error {
	switch {
	case n.Kind == KindBatch && s.Phase == "":
		*s = BatchState{Phase: BatchValidating, Created: n.At}
	case s.Phase == "" || n.Kind == KindBatch:
		return fmt.Errorf("%w: kind %d in a batch that is %q", ErrOrder, n.Kind, s.Phase)
	case s.Phase.Final():
		return fmt.Errorf("%w: the batch is %s", ErrFinal, s.Phase)
	case n.Kind == KindValidated && s.Phase == BatchValidating:
		s.Phase, s.Total, s.Begun = BatchInProgress, n.Total, n.At
	case n.Kind == KindStopping && !s.Stopped:
		s.Stopped, s.Expired, s.Stopping = true, n.Expired, n.At
		if !n.Expired {
			s.Phase = BatchCancelling
		}
	case n.Kind == KindBatchDone && n.Phase.Final():
		s.Phase, s.Ended = n.Phase, n.At
	default:
		return fmt.Errorf("%w: kind %d in a batch that is %s", ErrOrder, n.Kind, s.Phase)
	}
	return nil
}

// Outcome is the phase that a batch ends in once its lines are settled.
func (s *BatchState) Outcome() BatchPhase {
	switch {
	case s.Expired:
		return BatchExpired
	case s.Stopped:
		return BatchCancelled
	}
	return BatchCompleted
}

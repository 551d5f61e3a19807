package step

import (
	"fmt"
	"time"

	"github.com/shoal-llm/shoal/actors/socket/caches"
	"github.com/shoal-llm/shoal/collective"
	"github.com/shoal-llm/shoal/internal/engine/plan"
)

// Passes of a step after its first (docs/decisions/passes.md).

// nextPass returns the stages of the next pass: the owners send the sampled tokens to all ranks,
// and the model reads them.
func (e *Epoch) nextPass(s *Step) []stage {
	n := len(e.Place.Slices)
	return []stage{{job: func(done func(error)) {
		began := time.Now()
		s.passed(s.buf.batch)
		if n == 1 {
			done(nil)
			return
		}
		e.sendSampled(s, func(err error) {
			s.spent.Wait += time.Since(began)
			done(err)
		})
	}}, {job: func(done func(error)) {
		began := time.Now()
		err := e.fillNextPass(s)
		s.spent.Begin += time.Since(began)
		if err == nil {
			s.stages = append(s.stages, e.plan(s)...)
		}
		done(err)
	}}}
}

// sendSampled sends the tokens that this rank's rows have sampled to all ranks, in the order of the
// rows. A float32 represents every token number exactly.
func (e *Epoch) sendSampled(s *Step, done func(error)) {
	if s.sampledBy == nil {
		s.sampledBy = make([][]float32, len(e.Place.Slices))
	}
	for r := range s.sampledBy {
		s.sampledBy[r] = s.sampledBy[r][:0]
	}
	for _, c := range s.Work.Runs {
		t := float32(0)
		if c.Owner == e.Rank {
			t = float32(drawn(e.Seqs[c.Seq]))
		}
		s.sampledBy[c.Owner] = append(s.sampledBy[c.Owner], t)
	}
	e.Group.AllGather(collective.OpID(s.buf.batch.NextOp()), s.sampledBy[e.Rank], s.sampledBy, done)
}

// drawn returns the token that a sequence continues with. A sequence without a sampled token ends with
// the step; until then any valid token will do.
func drawn(q *caches.Sequence) int32 { return max(0, q.Next) }

// fillNextPass fills the batch with the runs of the next pass.
func (e *Epoch) fillNextPass(s *Step) error {
	at := make([]int, len(s.sampledBy))
	var bad error
	s.Work.NextPass(func(c *plan.Run) int32 {
		if c.Owner == e.Rank {
			return drawn(e.Seqs[c.Seq])
		}
		t := s.sampledBy[c.Owner][at[c.Owner]]
		if at[c.Owner]++; !(t >= 0 && t < float32(e.config.Vocab)) {
			bad = fmt.Errorf("socket: rank %d sampled token %v for sequence %d, vocabulary is %d", c.Owner, t, c.Seq, e.config.Vocab)
			return 0
		}
		return int32(t)
	})
	if bad != nil {
		return bad
	}
	return e.fill(s)
}

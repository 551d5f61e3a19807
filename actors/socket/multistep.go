package socket

import (
	"fmt"
	"time"

	"github.com/shoal-llm/shoal/collective"
)

// Passes of a step after its first (docs/decisions/multi-step.md).

// again are the stages of the next pass: what the rows have drawn goes from their owners to all, and
// is what the model reads.
func (e *epoch) again(s *step) []stage {
	n := len(e.place.Slices)
	return []stage{{job: func(done func(error)) {
		began := time.Now()
		s.passed(s.micro.batch)
		if n == 1 {
			done(nil)
			return
		}
		e.tell(s, func(err error) {
			s.spent.Wait += time.Since(began)
			done(err)
		})
	}}, {job: func(done func(error)) {
		began := time.Now()
		err := e.next(s)
		s.spent.Begin += time.Since(began)
		if err == nil {
			s.stages = append(s.stages, e.plan(s)...)
		}
		done(err)
	}}}
}

// tell gives what this rank's rows have drawn to all, in the order of the rows. A token is a small
// number, which a float32 has exactly.
func (e *epoch) tell(s *step, done func(error)) {
	if s.told == nil {
		s.told = make([][]float32, len(e.place.Slices))
	}
	for r := range s.told {
		s.told[r] = s.told[r][:0]
	}
	for _, c := range s.work.Runs {
		t := float32(0)
		if c.Owner == e.rank {
			t = float32(drawn(e.seqs[c.Seq]))
		}
		s.told[c.Owner] = append(s.told[c.Owner], t)
	}
	e.group.AllGather(collective.OpID(s.micro.batch.NextOp()), s.told[e.rank], s.told, done)
}

// drawn is what a sequence goes on with. Who had nothing to draw from ends with the step, and has any
// token until then.
func drawn(q *sequence) int32 { return max(0, q.next) }

// next fills the batch with the runs of the next pass.
func (e *epoch) next(s *step) error {
	at := make([]int, len(s.told))
	var bad error
	s.work.Again(func(c *Run) int32 {
		if c.Owner == e.rank {
			return drawn(e.seqs[c.Seq])
		}
		t := s.told[c.Owner][at[c.Owner]]
		if at[c.Owner]++; !(t >= 0 && t < float32(e.config.Vocab)) {
			bad = fmt.Errorf("socket: rank %d has drawn token %v for sequence %d, vocabulary is %d", c.Owner, t, c.Seq, e.config.Vocab)
			return 0
		}
		return int32(t)
	})
	if bad != nil {
		return bad
	}
	return e.fill(s)
}

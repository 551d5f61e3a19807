package step

import (
	"slices"
	"time"

	"github.com/shoal-llm/shoal/actors/socket/caches"
	"github.com/shoal-llm/shoal/internal/engine/plan"
)

// pooledRun is a run of a text that ends with a vector instead of tokens.
type pooledRun struct {
	run   *plan.Run
	seq   *caches.Sequence
	first int // row of the run's first token, counted as if no rows had been dropped
}

// addPooled adds the final-normed states of this step's rows to the vectors of their texts. After the
// layers, every rank has the whole residual stream, so only the owner adds the states. A text whose
// last token the step has read reports its vector.
func (e *Epoch) addPooled(s *Step) {
	began := time.Now()
	for _, p := range s.pooled {
		if p.seq.Owner != e.Rank {
			continue
		}
		end := p.run.Start + len(p.run.Tokens)
		lo, hi := p.seq.Pool.Rows(p.run.Start, end)
		for at := lo; at < hi; at++ {
			p.seq.Pool.Add(s.buf.batch.Backend.Hidden(e.Weights.Ends, p.first+at-p.run.Start))
		}
		if end == p.seq.Prompt {
			s.results.of(p.seq).Pooled = slices.Clone(p.seq.Pool.Vector())
		}
	}
	s.spent.Head += time.Since(began)
}

package socket

import (
	"github.com/shoal-llm/shoal/actors/socket/draft"
)

// draftTokens feeds the sampled tokens of a step to the drafter, for the sequences that this rank
// owns. It drafts the next tokens where the plan requests drafts.
func (e *epoch) draftTokens(s *step) {
	b := s.micro.batch
	first := map[uint64]int{}
	for _, seg := range b.Segments {
		first[seg.Seq] = seg.First
	}
	var requests []draft.Request
	for i := range s.work.Runs {
		c := &s.work.Runs[i]
		q, drawn := e.seqs[c.Seq], s.results.bySeq[c.Seq]
		if q.draft == nil || c.Prefill && !c.Last {
			continue
		}
		if drawn == nil || len(drawn.Drawn) == 0 {
			q.draft.Skip()
			continue
		}
		last := drawn.Drawn[len(drawn.Drawn)-1]
		known := c.Tokens // tokens whose next token is known
		if !c.Prefill {
			known = known[:len(drawn.Drawn)]
		}
		q.draft.Queue(b.Backend, e.weights.Ends, known, first[c.Seq], int32(last.Token))
		if c.Draft > 0 && last.HasToken {
			requests = append(requests, q.draft.Request(c.Draft, int32(last.Token), drawn))
		}
	}
	e.drafter.Draft(requests)
}

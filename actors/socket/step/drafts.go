package step

import (
	"github.com/shoal-llm/shoal/actors/socket/draft"
)

// draftTokens feeds the sampled tokens of a step to the drafter, for the sequences that this rank
// owns. It drafts the next tokens where the plan requests drafts.
func (e *Epoch) draftTokens(s *Step) {
	b := s.buf.batch
	first := map[uint64]int{}
	for _, seg := range b.Segments {
		first[seg.Seq] = seg.First
	}
	var requests []draft.Request
	for i := range s.Work.Runs {
		c := &s.Work.Runs[i]
		q, drawn := e.Seqs[c.Seq], s.results.bySeq[c.Seq]
		if q.Draft == nil || c.Prefill && !c.Last {
			continue
		}
		if drawn == nil || len(drawn.Drawn) == 0 {
			q.Draft.Skip()
			continue
		}
		last := drawn.Drawn[len(drawn.Drawn)-1]
		known := c.Tokens // tokens whose next token is known
		if !c.Prefill {
			known = known[:c.Known+len(drawn.Drawn)]
		}
		q.Draft.Queue(b.Backend, e.Weights.Ends, known, first[c.Seq], int32(last.Token))
		if c.Draft > 0 && last.HasToken {
			requests = append(requests, q.Draft.Request(c.Draft, int32(last.Token), drawn))
		}
	}
	e.Drafter.Draft(requests)
}

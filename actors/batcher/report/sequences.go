package report

import (
	"fmt"

	"github.com/shoal-llm/shoal/internal/engine/plan"
)

// Sequences are the results of a step by sequence.
type Sequences map[uint64]*Result

// BySequence orders results.
func BySequence(results []Result) Sequences {
	of := make(Sequences, len(results))
	for i := range results {
		of[results[i].Seq] = &results[i]
	}
	return of
}

// Missing describes a row of a plan that lacks a result, or "" if there is none. pools reports whether a chunk
// ends with the vector of its prompt.
func (s Sequences) Missing(p *plan.Plan, pools func(c *plan.Run) bool) string {
	sampled := func(seq uint64) bool { return s[seq] != nil && len(s[seq].Samples) > 0 }
	for _, d := range p.Decode {
		if d.Sample && !sampled(d.Seq) {
			return fmt.Sprintf("step %d gave no result for the decode row of sequence %d", p.Step, d.Seq)
		}
	}
	for i := range p.Chunks {
		c, r := &p.Chunks[i], s[p.Chunks[i].Seq]
		noVector := pools(c) && (r == nil || len(r.Pooled) == 0)
		noScores := c.PromptLogprobs >= 0 && r == nil
		if noVector || noScores || c.Sample && !sampled(c.Seq) {
			return fmt.Sprintf("step %d gave no result for the chunk of sequence %d", p.Step, c.Seq)
		}
	}
	for _, w := range p.Sweeps {
		if w.Sample && !sampled(w.Seq) {
			return fmt.Sprintf("step %d gave no result for the prompt of sequence %d", p.Step, w.Seq)
		}
	}
	return ""
}

package generate

import (
	"github.com/shoal-llm/shoal/internal/engine/speculate"
	"github.com/shoal-llm/shoal/internal/server/engine"
)

// Figures are vLLM's figures of one request.
type Figures struct {
	Drafts *draftMetrics `json:"speculative_decoding"`
}

// draftMetrics are the results of speculation for an answer with one choice.
type draftMetrics struct {
	Length    float64  `json:"mean_acceptance_length"` // tokens of a step with drafts
	Rate      float64  `json:"draft_acceptance_rate"`  // of drafted tokens
	Histogram []uint64 `json:"acceptance_histogram"`   // steps in which exactly 0, 1, 2, ... drafts were right
	Steps     uint64   `json:"num_spec_steps"`
	Accepted  uint64   `json:"num_accepted_draft_tokens"`
	Drafted   uint64   `json:"num_draft_tokens"`
	Most      int      `json:"num_spec_tokens"` // drafts of a step, at most

	ByLength map[int][]uint64 `json:"acceptance_histogram_by_draft_length"` // the same histogram per number of drafts
	Right    []int            `json:"per_step_accepted"`                    // of each step
	Tried    []int            `json:"per_step_drafted"`
}

// draftMetrics is nil unless the request itself sets 'speculate': the figures depend on the
// machine's speed, and other answers must not.
func (g *Request) draftMetrics(d *engine.Drafts) *Figures {
	if g.speculate == "" || g.speculate == string(speculate.Off) {
		return nil
	}
	m := &draftMetrics{Length: 1, Steps: d.Rows, Accepted: d.Accepted, Drafted: d.Drafted, Most: speculate.MaxDraft,
		Histogram: make([]uint64, speculate.MaxDraft+1),
		ByLength:  map[int][]uint64{}, Right: []int{}, Tried: []int{}}
	if d.Rows > 0 {
		m.Length += float64(d.Accepted) / float64(d.Rows)
		m.Rate = float64(d.Accepted) / float64(d.Drafted)
	}
	left := d.Rows
	for i, n := range d.At {
		m.Histogram[i] = left - n
		left = n
	}
	m.Histogram[len(d.At)] = left
	for _, s := range d.PerStep {
		if m.ByLength[s.Drafted] == nil {
			m.ByLength[s.Drafted] = make([]uint64, s.Drafted+1)
		}
		m.ByLength[s.Drafted][s.Accepted]++
		m.Right, m.Tried = append(m.Right, s.Accepted), append(m.Tried, s.Drafted)
	}
	return &Figures{m}
}

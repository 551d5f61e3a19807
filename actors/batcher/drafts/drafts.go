// Package drafts is speculative decoding in the scheduler. A decode row may have drafts of the tokens after
// its own. The owner samples the token after each, and the tokens that match are emitted in one step. The
// next plan rolls the others back. Package speculate drafts from text. With a draft model on the nodes,
// the owner of a row makes the drafts (model.go).
//
// The package decides how many tokens of which draft a row has: as many as are worth their time, within
// the rows, the memory and the log-probabilities that a step has room for. It is pure: it takes values
// and writes into the rows of a plan.
package drafts

import (
	"github.com/shoal-llm/shoal/actors/batcher/report"
	"github.com/shoal-llm/shoal/internal/engine/plan"
	"github.com/shoal-llm/shoal/internal/engine/speculate"
)

// MaxScores limits the log-probabilities that drafts add to the reply of a step. The reply has room for
// twice that number (socket.maxScores).
const MaxScores = 1 << 15

const (
	catchUp      = 4096     // maximum tokens of one sequence that a step adds to the index
	ownWeight    = 1.0 / 8  // weight of an outcome for its sequence
	sharedWeight = 1.0 / 64 // weight of an outcome for later sequences
	ratesDecay   = 1.0 / 256
	mostSkipped  = 31 // maximum steps without a lookup of short matches
)

// Config is part of the configuration of the batcher (settings.Config).
type Config struct {
	Mode   speculate.Mode // of sequences that name none
	Bytes  int64          // of the indexes of all sequences, and again of recent outputs, at most
	Recent string         // the outputs that sequences draft from: "key", "shared" or "off"
	Rows   int            // a step with more sequences has no drafts
	// Guess is for tests. It returns the tokens after a position, which are always tried as drafts.
	Guess func(id string, position int) []int32
}

// Drafter has the state that all sequences share.
type Drafter struct {
	cfg    Config
	recent *speculate.Recent
	bytes  int64                     // of the indexes of all sequences
	rates  speculate.AcceptanceRates // initial value for new sequences
	cost   speculate.Cost
	totals report.Speculated
}

// Sequence holds the values of one request that determine its drafts.
type Sequence struct {
	ID     string
	Tenant string
	Mode   speculate.Mode // "": Config.Mode
	Limit  int            // output tokens
	Token  func(pos int) int32

	Counted  report.Speculated
	Verified []report.Verified // its rows with drafts, in order

	text    *speculate.Text
	bytes   int64 // size of its index
	rates   speculate.AcceptanceRates
	draft   speculate.Draft // of the step in flight; Tokens are those in its row
	backoff backoff         // for drafts from text
	model   modelDraft
}

// backoff skips steps after useless drafts, twice as many each time.
type backoff struct {
	misses int // consecutive misses, as 2^n - 1
	wait   int // steps to skip
}

// New makes a drafter.
func New(cfg Config) Drafter {
	return Drafter{cfg: cfg, recent: speculate.NewRecent(cfg.Bytes), rates: speculate.NewAcceptanceRates()}
}

// Totals returns the counts of all sequences since the start.
func (d *Drafter) Totals() report.Speculated {
	totals := d.totals
	totals.Texts, totals.Recent = d.bytes, d.recent.Bytes()
	return totals
}

// StepMicros returns the expected microseconds of a pass with this number of decode rows; 0: unknown.
func (d *Drafter) StepMicros(rows int) float64 { return d.cost.Step(rows) }

// mode returns the method of drafting for a sequence, and the tokens of each draft; 0: the number with
// the highest expected gain.
func (d *Drafter) mode(q *Sequence) (speculate.Mode, int) {
	if q.Mode != "" {
		return q.Mode.Split()
	}
	return d.cfg.Mode.Split()
}

// Index adds the newest of n tokens of a sequence to its index, if there is memory. It returns false if
// some are still missing.
func (d *Drafter) Index(q *Sequence, n int) bool {
	if mode, _ := d.mode(q); mode == speculate.Off || q.Limit < 2 {
		return false
	}
	if q.text == nil {
		q.text, q.rates = speculate.NewText(), d.rates
	}
	if more := q.text.BytesAt(n) - q.bytes; more > 0 {
		if d.bytes+more > d.cfg.Bytes {
			return false
		}
		q.bytes += more
		d.bytes += more
	}
	return q.text.CatchUp(n, catchUp, q.Token)
}

// sharing names the group of sequences whose recent outputs a sequence uses.
func (d *Drafter) sharing(q *Sequence) string {
	if d.cfg.Recent == "shared" {
		return ""
	}
	return q.Tenant
}

// Finish frees the index of a sequence that has ended, and keeps its output for later ones.
func (d *Drafter) Finish(q *Sequence, output []int32) {
	if mode, _ := d.mode(q); (mode == speculate.Suffix || mode == speculate.Model) && d.cfg.Recent != "off" {
		d.recent.Add(d.sharing(q), len(output), func(i int) int32 { return output[i] })
	}
	d.bytes -= q.bytes
	q.text, q.bytes = nil, 0
}

// fromText returns a draft of at most `most` tokens for a sequence of n tokens. It searches only if a draft
// could pay off in a step with this number of sequences. After short matches that were useless it
// waits longer each time, so text without repetition costs almost nothing.
func (d *Drafter) fromText(q *Sequence, n, most, sequences int) (draft speculate.Draft) {
	if !d.Index(q, n) {
		return draft
	}
	least := speculate.Long
	mode, width := d.mode(q)
	if q.backoff.wait--; q.backoff.wait < 0 || width > 0 {
		least = 0
	}
	if width == 0 && !d.cost.Worth(sequences, q.rates.Best(least)) {
		q.rates.Drift(&d.rates, ratesDecay)
		return draft
	}
	if least == 0 {
		d.totals.Lookups++
		q.Counted.Lookups++
	}
	if mode == speculate.Lookup {
		return q.text.Lookup(least, most)
	}
	draft = q.text.Suffix(d.recent, d.sharing(q), least, most)
	if c := q.text.Copied(most); q.rates.Gain(&c) >= q.rates.Gain(&draft) && len(c.Tokens) > 0 {
		return c
	}
	return draft
}

// searched updates the backoff of drafts from text.
func (q *Sequence) searched(gained bool) {
	switch b := &q.backoff; {
	case gained:
		*b = backoff{}
	case b.wait < 0:
		b.misses = min(2*b.misses+1, mostSkipped)
		b.wait = b.misses
	}
}

// recordGain records whether the draft of a step was worth its rows.
func (q *Sequence) recordGain(yes bool) {
	if q.draft.Source == speculate.SmallModel {
		q.model.recordGain(yes)
		return
	}
	q.searched(yes)
}

// Clear drops the draft of the last step.
func (q *Sequence) Clear() { q.draft = speculate.Draft{} }

// Done records the outcome of a row: how many tokens of its draft matched the sampled ones.
func (d *Drafter) Done(q *Sequence, accepted int) {
	if n := len(q.draft.Tokens); n > 0 {
		q.rates.Observe(&q.draft, n, accepted, ownWeight)
		d.rates.Observe(&q.draft, n, accepted, sharedWeight)
		q.Counted.Count(n, accepted)
		q.Verified = append(q.Verified, report.Verified{Drafted: uint8(n), Accepted: uint8(accepted)})
		q.recordGain(accepted > 0)
		if q.draft.Source == speculate.SmallModel {
			q.model.width = min(accepted+1, mostModelDraft)
		}
		d.totals.Count(n, accepted)
	}
	q.Clear()
}

// Timed records the microseconds of a pass. usual means that the pass had the usual number of threads.
func (d *Drafter) Timed(p *plan.Plan, micros float64, usual bool) {
	if usual {
		d.cost.Add(len(p.Decode), p.Tokens()-len(p.Decode), micros)
	}
	start := speculate.NewAcceptanceRates()
	d.rates.Drift(&start, ratesDecay/16)
}

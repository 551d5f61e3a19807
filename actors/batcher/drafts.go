package batcher

import (
	"github.com/shoal-llm/shoal/internal/engine/plan"
	"github.com/shoal-llm/shoal/internal/engine/speculate"
)

// drafts is the module for speculative decoding. A decode row may have drafts of the tokens after its
// own. The owner samples the token after each, and the tokens that match are emitted in one step. The
// next plan rolls the others back. Package speculate drafts from text. With a draft model on the
// nodes, the owner of a row makes the drafts (drafts_model.go).
type drafts struct {
	s      *State
	recent *speculate.Recent
	bytes  int64           // of the indexes of all requests
	trust  speculate.Trust // initial value for new requests
	cost   speculate.Cost
	totals Speculated
}

// drafted is the module's state of one request.
type drafted struct {
	text    *speculate.Text
	bytes   int64 // size of its index
	trust   speculate.Trust
	draft   speculate.Draft // of the step in flight; Tokens are those in its row
	counted Speculated
	rows    []Verified // of its rows with drafts, in order
	backoff backoff    // for drafts from text
	model   modelDraft
}

// backoff skips steps after useless drafts, twice as many each time.
type backoff struct {
	misses int // consecutive misses, as 2^n - 1
	wait   int // steps to skip
}

const (
	catchUp     = 4096     // maximum tokens of one request that a step adds to the index
	learnOwn    = 1.0 / 8  // weight of an outcome for its request
	learnAll    = 1.0 / 64 // weight of an outcome for later requests
	forgetTrust = 1.0 / 256
	mostSkipped = 31 // maximum steps without a lookup of short matches

	// tailRows is the maximum number of a prompt's last tokens per sequence and step.
	tailRows = 64
	// draftScores limits the log-probabilities that drafts add to the reply of a step. The reply
	// has room for twice that number (socket.maxScores).
	draftScores = 1 << 15
)

// mode returns how drafts for a request are made, and the tokens of each draft; 0: as many as pay off.
func (d *drafts) mode(r *request) (speculate.Mode, int) {
	if r.Speculate != "" {
		return r.Speculate.Split()
	}
	return d.s.cfg.Speculate.Split()
}

// index adds the newest tokens of a request to its index, if there is memory. It returns false if some
// are still missing.
func (d *drafts) index(r *request) bool {
	if mode, _ := d.mode(r); mode == speculate.Off || r.limit < 2 {
		return false
	}
	g := &r.drafted
	if g.text == nil {
		g.text, g.trust = speculate.NewText(), d.trust
	}
	n := len(r.Prompt) + len(r.out)
	if more := g.text.Grown(n) - g.bytes; more > 0 {
		if d.bytes+more > d.s.cfg.SpeculateBytes {
			return false
		}
		g.bytes += more
		d.bytes += more
	}
	return g.text.Catch(n, catchUp, r.token)
}

// sharing names the group of requests whose recent outputs a request uses.
func (d *drafts) sharing(r *request) string {
	if d.s.cfg.SpeculateRecent == "shared" {
		return ""
	}
	return r.Tenant
}

// finish frees the index of a request that has ended, and keeps its output for later requests.
func (d *drafts) finish(r *request) {
	if mode, _ := d.mode(r); (mode == speculate.Suffix || mode == speculate.Model) && d.s.cfg.SpeculateRecent != "off" {
		d.recent.Add(d.sharing(r), len(r.out), func(i int) int32 { return r.out[i] })
	}
	d.bytes -= r.drafted.bytes
	r.drafted.text, r.drafted.bytes = nil, 0
}

// fromText returns a draft of at most `most` tokens for a request. It searches only if a draft
// could pay off in a step with this number of sequences. After short matches that were useless it
// waits longer each time, so text without repetition costs almost nothing.
func (d *drafts) fromText(r *request, most, sequences int) (draft speculate.Draft) {
	if !d.index(r) {
		return draft
	}
	g, least := &r.drafted, speculate.Long
	mode, width := d.mode(r)
	if g.backoff.wait--; g.backoff.wait < 0 || width > 0 {
		least = 0
	}
	if width == 0 && !d.cost.Worth(sequences, g.trust.Best(least)) {
		g.trust.Drift(&d.trust, forgetTrust)
		return draft
	}
	if least == 0 {
		d.totals.Lookups++
		g.counted.Lookups++
	}
	if mode == speculate.Lookup {
		return g.text.Lookup(least, most)
	}
	draft = g.text.Suffix(d.recent, d.sharing(r), least, most)
	if c := g.text.Copied(most); g.trust.Gain(&c) >= g.trust.Gain(&draft) && len(c.Tokens) > 0 {
		return c
	}
	return draft
}

// searched updates the backoff of drafts from text.
func (g *drafted) searched(gained bool) {
	switch b := &g.backoff; {
	case gained:
		*b = backoff{}
	case b.wait < 0:
		b.misses = min(2*b.misses+1, mostSkipped)
		b.wait = b.misses
	}
}

// recordGain records whether the draft of a step was worth its rows.
func (g *drafted) recordGain(yes bool) {
	if g.draft.Source == speculate.SmallModel {
		g.model.recordGain(yes)
		return
	}
	g.searched(yes)
}

// room is the remaining capacity of a step for more tokens of its decode rows.
type room struct {
	s      *State
	tokens int // rows
	scores int // log-probabilities in the reply
}

// scoresOf returns how many log-probabilities the reply has for each sampled token.
func scoresOf(r *request) int { return 1 + max(0, r.Sampling.Logprobs) }

// take appends the first of tokens to a row, as many as capacity and memory allow, and returns their
// number.
func (m *room) take(r *request, row *plan.Run, tokens []int32) int {
	n := m.s.reserve(r, min(len(tokens), m.tokens))
	row.Tokens = append(row.Tokens, tokens[:n]...)
	m.tokens -= n
	if row.Sample {
		m.scores -= n * scoresOf(r)
	}
	return n
}

// plan adds tokens to decode rows, at most left in all, in memory that is otherwise unused. Tokens that
// are known come first, then drafts, as many as are worth their time.
func (d *drafts) plan(p *plan.Plan, rows map[uint64]*request, left int) {
	m := room{s: d.s, tokens: left, scores: draftScores}
	draft := len(p.Chunks)+len(p.Sweeps) == 0 && (d.s.cfg.Guess != nil || len(p.Decode) <= d.s.cfg.SpeculateRows)
	var open []*plan.Run // with drafts that compete for the rows of the step
	for i := range p.Decode {
		row := &p.Decode[i]
		r := rows[row.Seq]
		r.drafted.draft = speculate.Draft{}
		next := r.cached + 1
		if !row.Sample {
			m.take(r, row, r.tokens(next, min(len(r.Prompt)-1, r.cached+tailRows)))
			continue
		}
		if d.s.cfg.Geometry.Single(r.Policy) {
			continue
		}
		most := min(speculate.MaxDraft, r.final()-next, m.scores/scoresOf(r))
		if known := len(r.Prompt) + len(r.out) - next; known > 0 { // an earlier admission emitted them
			m.take(r, row, r.tokens(next, next+max(0, min(most, known))))
			continue
		}
		if draft && most > 0 && m.tokens > 0 && d.offer(&m, r, row, most, len(p.Decode)) {
			open = append(open, row)
		}
	}
	if len(open) > 0 {
		d.choose(&m, rows, open, len(p.Decode))
	}
}

// offer finds a draft for a row. It returns true if choose must still decide the draft's length.
func (d *drafts) offer(m *room, r *request, row *plan.Run, most, sequences int) bool {
	g := &r.drafted
	if d.s.cfg.Guess != nil {
		g.draft.Tokens = d.s.cfg.Guess(r.ID, r.cached+1)
		n := m.take(r, row, g.draft.Tokens[:min(most, len(g.draft.Tokens))])
		g.draft.Tokens, g.draft.Share = g.draft.Tokens[:n], make([]float32, n)
		if n > 0 {
			return false
		}
	}
	mode, width := d.mode(r)
	var text speculate.Draft
	if mode != speculate.Model || width == 0 {
		text = d.fromText(r, most, sequences)
	}
	if mode == speculate.Model {
		row.Draft = d.request(r, width, sequences)
	}
	g.draft = g.model.better(&g.trust, text, r.cached, most)
	switch {
	case len(g.draft.Tokens) == 0:
		g.searched(false)
		return false
	case width > 0:
		n := m.take(r, row, g.draft.Tokens[:min(width, len(g.draft.Tokens))])
		g.draft.Tokens = g.draft.Tokens[:n]
		return false
	}
	return true
}

// choose divides the remaining rows among drafts by their expected gain.
func (d *drafts) choose(m *room, rows map[uint64]*request, open []*plan.Run, sequences int) {
	probabilities := make([][]float32, len(open))
	for k, row := range open {
		g := &rows[row.Seq].drafted
		probabilities[k] = g.trust.Probabilities(nil, &g.draft)
	}
	for k, n := range d.cost.Choose(probabilities, sequences, m.tokens) {
		r := rows[open[k].Seq]
		g := &r.drafted
		if n == 0 {
			g.trust.Drift(&d.trust, forgetTrust)
			g.recordGain(false)
		}
		n = m.take(r, open[k], g.draft.Tokens[:max(0, min(n, m.scores/scoresOf(r)))])
		g.draft.Tokens = g.draft.Tokens[:n]
	}
}

// done records the outcome of a row: how many tokens of its draft matched the sampled ones.
func (d *drafts) done(r *request, accepted int) {
	g := &r.drafted
	if n := len(g.draft.Tokens); n > 0 {
		g.trust.Learn(&g.draft, n, accepted, learnOwn)
		d.trust.Learn(&g.draft, n, accepted, learnAll)
		g.counted.Count(n, accepted)
		g.rows = append(g.rows, Verified{Drafted: uint8(n), Accepted: uint8(accepted)})
		g.recordGain(accepted > 0)
		if g.draft.Source == speculate.SmallModel {
			g.model.width = min(accepted+1, mostModelDraft)
		}
		d.totals.Count(n, accepted)
	}
	g.draft = speculate.Draft{}
}

// timed records the microseconds of a pass. usual means that the pass had the usual number of threads.
func (d *drafts) timed(p *plan.Plan, micros float64, usual bool) {
	if usual {
		d.cost.Add(len(p.Decode), p.Tokens()-len(p.Decode), micros)
	}
	start := speculate.NewTrust()
	d.trust.Drift(&start, forgetTrust/16)
}

package batcher

import (
	"github.com/shoal-llm/shoal/internal/engine/plan"
	"github.com/shoal-llm/shoal/internal/engine/speculate"
)

// Speculation: a decode row takes drafts of the tokens that follow its own, the owner draws
// the token after each, and what agrees is emitted in one step. What does not is rolled back
// by the next plan. See package speculate for where drafts come from.

// speculation is what the state knows for all requests.
type speculation struct {
	recent *speculate.Recent
	bytes  int64 // of the indexes of all requests
	trust  speculate.Trust
	cost   speculate.Cost
	totals Speculated
}

// Speculated counts drafts.
type Speculated struct {
	Looks    uint64                 // for drafts, also after short matches
	Rows     uint64                 // decode rows with drafts
	Drafted  uint64                 // tokens
	Accepted uint64                 // of these
	At       [speculate.Most]uint64 // accepted as the first, second, ... of a row
	Texts    int64                  // bytes of indexes now
	Recent   int64                  // and of recent outputs
}

func (c *Speculated) count(drafted, accepted int) {
	c.Rows++
	c.Drafted += uint64(drafted)
	c.Accepted += uint64(accepted)
	for i := range accepted {
		c.At[i]++
	}
}

// Verified is what became of the drafts of one row.
type Verified struct{ Drafted, Accepted uint8 }

// guesses is what speculation knows of one request.
type guesses struct {
	text    *speculate.Text
	bytes   int64 // of it
	trust   speculate.Trust
	draft   speculate.Draft // of the step in flight; Tokens are those that were tried
	counted Speculated
	steps   []Verified      // of the rows with drafts, in their order: two bytes for one token or more
	model   speculate.Draft // what the last row's owner guesses
	at      int             // the position that it goes with
	small   wishes
	idle    int // looks in a row that gave nothing worth its row
	rest    int // steps until the next; after long matches there is a look in each
}

// wishes is how much a small model is asked to guess for a request.
type wishes struct {
	tokens     int
	idle, rest int // as of looks
}

const (
	firstWish   = 3
	mostWish    = 8
	catchUp     = 4096     // tokens that a step indexes of one request at most
	learnOwn    = 1.0 / 8  // what an outcome counts for its request
	learnAll    = 1.0 / 64 // and for those to come
	forgetTrust = 1.0 / 256
	mostIdle    = 31 // steps without a look at short matches, at most
	// A small model takes time of all nodes, which wait for it.
	mostIdleModel = 255
)

// mode of a request, and how many drafts it always has; 0: as many as gain.
func (s *State) mode(r *request) (speculate.Mode, int) {
	if r.Speculate != "" {
		return r.Speculate.Split()
	}
	return s.cfg.Speculate.Split()
}

// index adds what is new of a request to its index, if there is memory for that; false: not
// all is there.
func (s *State) index(r *request) bool {
	if mode, _ := s.mode(r); mode == speculate.Off || r.limit < 2 {
		return false
	}
	g := &r.guesses
	if g.text == nil {
		g.text, g.trust = speculate.NewText(), s.speculation.trust
	}
	n := len(r.Prompt) + len(r.out)
	if more := g.text.Grown(n) - g.bytes; more > 0 {
		if s.speculation.bytes+more > s.cfg.SpeculateBytes {
			return false
		}
		g.bytes += more
		s.speculation.bytes += more
	}
	return g.text.Catch(n, catchUp, r.token)
}

// sharing names the recent outputs that a request shares.
func (s *State) sharing(r *request) string {
	if s.cfg.SpeculateRecent == "shared" {
		return ""
	}
	return r.Tenant
}

// forget gives back what a request that ends takes, and keeps its output for others.
func (s *State) forget(r *request) {
	if mode, _ := s.mode(r); (mode == speculate.Suffix || mode == speculate.Model) && s.cfg.SpeculateRecent != "off" {
		s.speculation.recent.Add(s.sharing(r), len(r.out), func(i int) int32 { return r.out[i] })
	}
	s.speculation.bytes -= r.guesses.bytes
	r.guesses.text, r.guesses.bytes = nil, 0
}

// guess is a draft for a request, at most so many tokens. It looks only where that could gain
// in a step of so many sequences, and after short matches the less often the less it finds:
// text that does not repeat itself costs next to nothing.
func (s *State) guess(r *request, most, sequences int) (d speculate.Draft) {
	if !s.index(r) {
		return d
	}
	g, least := &r.guesses, speculate.Long
	mode, width := s.mode(r)
	if g.rest--; g.rest < 0 || width > 0 {
		least = 0
	}
	if width == 0 && !s.speculation.cost.Worth(sequences, g.trust.Best(least)) {
		g.trust.Drift(&s.speculation.trust, forgetTrust)
		return d
	}
	if least == 0 {
		s.speculation.totals.Looks++
		g.counted.Looks++
	}
	if mode == speculate.Lookup {
		return g.text.Lookup(least, most)
	}
	d = g.text.Suffix(s.speculation.recent, s.sharing(r), least, most)
	if c := g.text.Copied(most); g.trust.Gain(&c) >= g.trust.Gain(&d) && len(c.Tokens) > 0 {
		return c
	}
	return d
}

// wish asks the owner of a row to guess what follows it.
func (s *State) wish(r *request, d *plan.Run, sequences int) {
	mode, width := s.mode(r)
	g := &r.guesses
	if mode != speculate.Model {
		return
	}
	left := r.final() - r.cached - 2 // behind the token that is drawn next
	switch {
	case width > 0:
		d.Draft = max(0, min(width, left))
	case g.small.rest > 0:
		g.small.rest--
	case !s.speculation.cost.Worth(sequences, g.trust.Model()):
		g.trust.Drift(&s.speculation.trust, forgetTrust)
	default:
		if g.small.tokens == 0 {
			g.small.tokens = firstWish
		}
		d.Draft = max(0, min(g.small.tokens, left))
	}
}

// modelled is the draft of the small model, where that is there and likelier to gain than one
// from text.
func (s *State) modelled(r *request, text speculate.Draft, most int) speculate.Draft {
	g := &r.guesses
	m := g.model
	g.model = speculate.Draft{}
	if g.at != r.cached || len(m.Tokens) == 0 {
		return text
	}
	n := min(most, len(m.Tokens))
	m.Tokens, m.Share = m.Tokens[:n], m.Share[:n]
	if g.trust.Gain(&text) > g.trust.Gain(&m) {
		return text
	}
	return m
}

// gained notes whether the draft of a step was worth its rows.
func (g *guesses) gained(yes bool) {
	if g.draft.Source != speculate.SmallModel {
		g.looked(yes)
		return
	}
	if w := &g.small; yes {
		w.idle = 0
	} else {
		w.idle, w.tokens = min(2*w.idle+1, mostIdleModel), 1
		w.rest = w.idle
	}
}

// looked notes whether what was found gained anything.
func (g *guesses) looked(gained bool) {
	switch {
	case gained:
		g.idle, g.rest = 0, 0
	case g.rest < 0:
		g.idle = min(2*g.idle+1, mostIdle)
		g.rest = g.idle
	}
}

// draft gives decode rows drafts, at most left in all, in memory that nobody else needs:
// first tokens that are known because an earlier admission emitted them, then guesses, as
// many as are worth their time.
func (s *State) draft(p *plan.Plan, rows map[uint64]*request, left int) {
	var probabilities [][]float32
	var at []int // of p.Decode
	scores := draftScores
	guesses := len(p.Chunks) == 0 && (s.cfg.Guess != nil || len(p.Decode) <= s.cfg.SpeculateRows)
	for i := range p.Decode {
		d := &p.Decode[i]
		r := rows[d.Seq]
		r.guesses.draft = speculate.Draft{}
		if !d.Sample {
			n := s.extend(r, min(tailRows-1, len(r.Prompt)-1-r.cached-1, left))
			d.Tokens = append(d.Tokens, r.tokens(r.cached+1, r.cached+1+n)...)
			left -= n
			continue
		}
		if s.cfg.Geometry.Single(r.Policy) {
			continue
		}
		each := 1 + max(0, r.Sampling.Logprobs)
		most := min(speculate.Most, r.final()-r.cached-1, scores/each)
		if known := len(r.Prompt) + len(r.out) - r.cached - 1; known > 0 {
			n := s.extend(r, min(most, known, left))
			d.Tokens = append(d.Tokens, r.tokens(r.cached+1, r.cached+1+n)...)
			left, scores = left-n, scores-n*each
			continue
		}
		if most < 1 || left < 1 || !guesses {
			continue
		}
		g := &r.guesses
		if s.cfg.Guess != nil {
			g.draft.Tokens = s.cfg.Guess(r.ID, r.cached+1)
			n := s.extend(r, min(most, left, len(g.draft.Tokens)))
			g.draft.Tokens = g.draft.Tokens[:n]
			g.draft.Share = make([]float32, n)
			d.Tokens = append(d.Tokens, g.draft.Tokens...)
			if left, scores = left-n, scores-n*each; n > 0 {
				continue
			}
		}
		mode, width := s.mode(r)
		var text speculate.Draft
		if mode != speculate.Model || width == 0 {
			text = s.guess(r, most, len(p.Decode))
		}
		s.wish(r, d, len(p.Decode))
		if g.draft = s.modelled(r, text, most); len(g.draft.Tokens) == 0 {
			g.looked(false)
			continue
		}
		if width > 0 {
			n := s.extend(r, min(width, left, len(g.draft.Tokens)))
			g.draft.Tokens = g.draft.Tokens[:n]
			d.Tokens = append(d.Tokens, g.draft.Tokens...)
			left, scores = left-n, scores-n*each
			continue
		}
		probabilities, at = append(probabilities, g.trust.Probabilities(nil, &g.draft)), append(at, i)
	}
	if len(at) == 0 {
		return
	}
	counts := s.speculation.cost.Choose(probabilities, len(p.Decode), left)
	for k, i := range at {
		d := &p.Decode[i]
		r := rows[d.Seq]
		g := &r.guesses
		if counts[k] == 0 {
			g.trust.Drift(&s.speculation.trust, forgetTrust)
			g.gained(false)
		}
		each := 1 + max(0, r.Sampling.Logprobs)
		n := s.extend(r, min(counts[k], scores/each))
		scores -= n * each
		g.draft.Tokens = g.draft.Tokens[:n]
		d.Tokens = append(d.Tokens, g.draft.Tokens...)
	}
}

// tailRows is how many tokens of a prompt's tail a step takes of one sequence at most.
const tailRows = 64

// draftScores bounds the log-probabilities that drafts add to the answer of a step, which has
// room for twice as many (socket.maxScores).
const draftScores = 1 << 15

// extend books the memory of so many drafts, or of fewer if that is not free.
func (s *State) extend(r *request, n int) int {
	for ; n > 0; n /= 2 {
		bytes := s.ledger.growth(r, 1+n)
		if bytes <= s.ledger.sockets[r.owner].room() && s.makeFree(r.owner, bytes) &&
			(r.resides.replica == none || bytes <= s.ledger.sockets[r.resides.replica].room() && s.makeFree(r.resides.replica, bytes)) {
			s.ledger.grow(r, bytes)
			return n
		}
	}
	return 0
}

// decoded takes what a decode row has given in so many passes: the token after each of its own, up to the
// first that is not what the row has next.
func (s *State) decoded(r *request, d *plan.Run, passes int, result *Result) {
	g, right, samples := &r.guesses, min(passes, len(result.Samples))-1, result.Samples
	for right < min(len(d.Tokens), len(samples))-1 && samples[right].Err == nil && d.Tokens[right+1] == samples[right].Token {
		right++
	}
	if n := len(g.draft.Tokens); n > 0 {
		g.trust.Learn(&g.draft, n, right, learnOwn)
		s.speculation.trust.Learn(&g.draft, n, right, learnAll)
		g.counted.count(n, right)
		g.steps = append(g.steps, Verified{uint8(n), uint8(right)})
		g.gained(right > 0)
		if g.draft.Source == speculate.SmallModel {
			g.small.tokens = min(right+1, mostWish)
		}
		s.speculation.totals.count(n, right)
	}
	g.draft = speculate.Draft{}
	r.staged = 0
	first := len(s.out.Emits)
	for i := 0; i <= right && !r.ended; i++ {
		if r.cached < r.reached {
			s.totals.Replayed++
			if r.outage != nil {
				r.outage.Replayed++
			}
		}
		r.cached, r.staged = r.cached+1, r.staged+1
		r.reached = max(r.reached, r.cached)
		s.sampled(r, samples[i])
	}
	for i := range s.out.Emits[first:] {
		s.out.Emits[first+i].More = len(s.out.Emits) - first - 1 - i
	}
	g.model, g.at = speculate.Guessed(result.Drafts[:min(len(result.Drafts), speculate.Most)], result.Odds), r.cached
}

package speculate

// Draft is a guess at the next tokens.
type Draft struct {
	Tokens  []int32
	Share   []float32 // fraction of the places still in agreement that continue with the token
	Matched int       // length of the match before the draft, in tokens
	Source  Source
	from    uint64 // the newest of the places
}

type Source uint8

const (
	Own        Source = iota // the sequence itself
	Others                   // outputs of other sequences
	Copy                     // the sequence itself, which repeats a part with changes
	SmallModel               // a small model
	sources
)

// Guessed returns the draft of a small model. odds are the probabilities of each token given those
// before it.
func Guessed(tokens []int32, odds []float32) Draft {
	d := Draft{Tokens: tokens, Share: make([]float32, len(tokens)), Matched: 1, Source: SmallModel}
	for i := range tokens {
		p := float32(0)
		if i < len(odds) && odds[i] > 0 && odds[i] <= 1 {
			p = odds[i]
		}
		if i > 0 {
			p *= d.Share[i-1]
		}
		d.Share[i] = p
	}
	return d
}

// visits bounds the visited places of a chain, so a draft takes microseconds.
const visits = 32

// place is the end of a match in a ring.
type place struct {
	pos     uint64
	matched int
}

// drafter is memory that drafts reuse.
type drafter struct{ places []place }

// Long is the least length of a match that is looked for in the first chain only.
const Long = 7

// chainsFor returns the chains that may find matches of at least the given number of tokens.
func (r *ring) chainsFor(least int) []chain {
	if least >= Long {
		return r.chains[:1]
	}
	return r.chains[:]
}

// lookup is prompt lookup: it drafts the tokens after the newest place with the same last n-gram.
func (d *drafter) lookup(r *ring, least, most int) (out Draft) {
	for i := range r.chainsFor(least) {
		r.places(i, r, 1+visits, func(pos uint64, matched int) bool {
			out.Matched = matched
			for p := pos; p < r.n && len(out.Tokens) < most; p++ {
				out.Tokens, out.Share = append(out.Tokens, r.at(p)), append(out.Share, 1)
			}
			return false
		})
		if len(out.Tokens) > 0 {
			break
		}
	}
	return out
}

// leastShare ends a draft: a token with a smaller share of the places is not drafted.
const leastShare = 0.1

// suffix is suffix decoding. Among the places where the longest suffix of text occurs, it takes the
// token that most of them continue with, then among these the next. It continues while enough
// places agree, and no further than the match is long.
func (d *drafter) suffix(r, text *ring, least, most int) (out Draft) {
	d.places = d.places[:0]
	for i := range r.chainsFor(least) {
		r.places(i, text, visits, func(pos uint64, matched int) bool {
			if matched > out.Matched {
				d.places, out.Matched, out.from = d.places[:0], matched, pos
			}
			if matched == out.Matched {
				d.places = append(d.places, place{pos, matched})
			}
			return true
		})
		if len(d.places) > 0 {
			break
		}
	}
	live, share := d.places, float32(1)
	for len(out.Tokens) < min(most, max(out.Matched, 1)) && len(live) > 0 {
		token, votes, voters := r.favourite(live)
		if token < 0 {
			break
		}
		share *= float32(votes) / float32(voters)
		if share < leastShare {
			break
		}
		out.Tokens, out.Share = append(out.Tokens, token), append(out.Share, share)
		next := live[:0]
		for _, p := range live {
			if p.pos < r.n && r.at(p.pos) == token {
				p.pos++
				next = append(next, p)
			}
		}
		live = next
	}
	return out
}

// favourite returns the token that most places continue with; on a tie, that of the newest one. voters
// counts the places that continue. A negative token ends each text in a ring.
func (r *ring) favourite(places []place) (token int32, votes, voters int) {
	token = -1
	for i, p := range places {
		if p.pos >= r.n {
			continue
		}
		voters++
		t, n := r.at(p.pos), 0
		for _, q := range places[i:] {
			if q.pos < r.n && r.at(q.pos) == t {
				n++
			}
		}
		if n > votes {
			token, votes = t, n
		}
	}
	return token, votes, voters
}

// score returns the expected number of right tokens, by the shares.
func (d *Draft) score() (sum float32) {
	for _, s := range d.Share {
		sum += s
	}
	return sum
}

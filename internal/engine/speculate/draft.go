package speculate

// Draft is a guess at what comes next.
type Draft struct {
	Tokens  []int32
	Share   []float32 // of the places that agreed so far, how many go on with the token
	Matched int       // tokens before, that were the same at the places it is taken from
	Source  Source
	from    uint64 // the newest of the places
}

type Source uint8

const (
	Own        Source = iota // the sequence itself
	Others                   // outputs of others
	Copy                     // the sequence itself, of which it is a changed copy
	SmallModel               // a model guesses
	sources
)

// Guessed is the draft of a small model, which says how likely each token is after those
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

// visits bounds how many places of a chain are looked at, so a guess takes microseconds.
const visits = 32

// place is where a match ends in a ring.
type place struct {
	pos     uint64
	matched int
}

// drafter is memory that guesses reuse.
type drafter struct{ places []place }

// Long is how many tokens a match has at least where only the first of the chains is looked at.
const Long = 7

// looked are the chains that may find matches of at least so many tokens.
func (r *ring) looked(least int) []chain {
	if least >= Long {
		return r.chains[:1]
	}
	return r.chains[:]
}

// lookup is prompt lookup: what followed the newest place with the same last n-gram.
func (d *drafter) lookup(r *ring, least, most int) (out Draft) {
	for i := range r.looked(least) {
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

// leastShare ends a draft: a token that fewer of the places go on with is not guessed.
const leastShare = 0.1

// suffix is suffix decoding: of the places where the longest suffix of text was met, the
// token that most go on with, then of these the next, as long as enough agree and no further
// than the match is long.
func (d *drafter) suffix(r, text *ring, least, most int) (out Draft) {
	d.places = d.places[:0]
	for i := range r.looked(least) {
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

// favourite is the token that most places go on with, the newest one's on a tie; voters go
// on at all. A run of a text ends with a negative token.
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

// score is how many tokens of a draft its shares expect to be right.
func (d *Draft) score() (sum float32) {
	for _, s := range d.Share {
		sum += s
	}
	return sum
}

package speculate

import "slices"

// copying follows a text that repeats an earlier part of itself with changes, such as an edited
// file. After a change, n-grams match only when a few tokens are the same again. But the place in
// the source is known, up to the tokens that the change removed or added. A replacement that was
// seen once, such as a renamed identifier, is drafted again.
type copying struct {
	cursor
	run   int    // tokens since the newest change that agree with the source
	left  uint64 // source position where the newest change starts
	since uint64 // position in the copy where it starts
	swaps []swap // newest first
}

// cursor is a position in the source, or inside a replacement of the tokens before it.
type cursor struct{ at, by, end uint64 }

// swap replaces the source's tokens [from, to) by the text's [by, end).
type swap struct{ from, to, by, end uint64 }

const (
	minCopy      = 4  // equal tokens before a text counts as a copy
	switchMargin = 3  // how many more must match elsewhere to switch to another source
	resync       = 2  // equal tokens after which a change counts as over
	maxChange    = 64 // maximum tokens of a change
	maxSwaps     = 8  // replacements remembered
)

// swapped returns the index of a swap that matches the source at a position, or -1.
func (c *copying) swapped(r *ring, at uint64) int {
	return slices.IndexFunc(c.swaps, func(s swap) bool {
		if s.from < r.oldest() || at+s.to-s.from > r.n {
			return false
		}
		for i := range s.to - s.from {
			if r.at(at+i) != r.at(s.from+i) {
				return false
			}
		}
		return true
	})
}

// next returns the next token of the copy, or -1. It advances x.
func (c *copying) next(r *ring, x *cursor) int32 {
	if x.by == x.end {
		if i := c.swapped(r, x.at); i >= 0 {
			s := &c.swaps[i]
			x.at, x.by, x.end = x.at+s.to-s.from, s.by, s.end
		}
	}
	from := &x.at
	if x.by < x.end {
		from = &x.by
	}
	if *from >= r.n || *from < r.oldest() {
		return -1
	}
	*from++
	return r.at(*from - 1)
}

// begin starts following the text after a match.
func (c *copying) begin(at uint64, matched int) {
	if matched >= minCopy && (c.at == 0 || matched > c.run+switchMargin) && at != c.at {
		c.cursor, c.run = cursor{at: at}, matched
	}
}

// follow processes the newest token of the text.
func (c *copying) follow(r *ring) {
	if c.at == 0 {
		return
	}
	was, token := c.cursor, r.at(r.n-1)
	if c.next(r, &c.cursor) == token {
		if c.run++; c.run == resync {
			c.swap(r)
		}
		return
	}
	if i := c.swapped(r, was.at); c.run >= resync && was.by == was.end && i >= 0 { // the replacement does not apply here
		c.swaps = slices.Delete(c.swaps, i, i+1)
		if r.at(was.at) == token {
			c.cursor = cursor{at: was.at + 1}
			c.run++
			return
		}
	}
	if c.run >= resync {
		c.left, c.since = was.at, r.n-1
	}
	if r.n-c.since > maxChange || c.left < r.oldest() {
		c.cursor = cursor{}
		return
	}
	// Continue at the nearest place where most of the last tokens match. Otherwise assume that
	// equally many tokens were replaced.
	most := 0
	c.cursor = cursor{at: c.left + r.n - c.since}
	for at := c.left + 1; at < min(c.left+maxChange, c.since); at++ {
		if m := r.matched(at, r); m > most {
			most, c.cursor = m, cursor{at: at}
		}
	}
	if c.run = min(most, int(r.n-c.since)); c.run >= resync {
		c.swap(r)
	}
}

// swap records the replacement of the change that has ended.
func (c *copying) swap(r *ring) {
	s := swap{c.left, c.at - uint64(c.run), c.since, r.n - uint64(c.run)}
	if s.from >= s.to { // tokens were only added: replace the token before which they stand
		s.to, s.end = s.from+1, s.end+1
	}
	if s.to-s.from > 16 || s.end <= s.by || s.end-s.by > 32 {
		return
	}
	c.swaps = slices.Insert(c.swaps[:min(len(c.swaps), maxSwaps-1)], 0, s)
}

// draft returns the continuation of the copy, if the newest token agrees with the source.
func (c *copying) draft(r *ring, most int) (out Draft) {
	if c.at == 0 || c.run == 0 {
		return out
	}
	out.Source, out.Matched = Copy, c.run
	for x := c.cursor; len(out.Tokens) < most; {
		token := c.next(r, &x)
		if token < 0 {
			break
		}
		out.Tokens, out.Share = append(out.Tokens, token), append(out.Share, 1)
	}
	return out
}

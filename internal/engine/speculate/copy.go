package speculate

import "slices"

// copying follows a text that says an earlier part of itself again, but for some changes: a
// file that is edited. Behind a change nothing matches until a few tokens are the same again;
// but the place in the source is known, up to what the change took away or added. What took
// the place of what is known as well, and drafted again: a name that was replaced.
type copying struct {
	cursor
	run   int    // tokens since the newest change that are the source's
	left  uint64 // where in the source the newest change begins
	since uint64 // and where in the copy
	swaps []swap // the newest first
}

// cursor is a place in the source, or in what takes the place of the tokens before it.
type cursor struct{ at, by, end uint64 }

// swap is a part of a source, [from, to), and what was said in its place, [by, end).
type swap struct{ from, to, by, end uint64 }

const (
	begins  = 4  // tokens that are the same before a copy is one
	clearly = 3  // how many more must be, elsewhere, for it to be one of that
	sure    = 2  // tokens behind a change that are the source's, before it counts as over
	changed = 64 // tokens of a change at most
	swaps   = 8  // that are known
)

// swapped is a swap of what the source says at a position, or -1.
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

// next is the token that the copy goes on with, or -1.
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

// begin takes up a copy of what lies behind a match.
func (c *copying) begin(at uint64, matched int) {
	if matched >= begins && (c.at == 0 || matched > c.run+clearly) && at != c.at {
		c.cursor, c.run = cursor{at: at}, matched
	}
}

// follow takes the newest token of the text.
func (c *copying) follow(r *ring) {
	if c.at == 0 {
		return
	}
	was, token := c.cursor, r.at(r.n-1)
	if c.next(r, &c.cursor) == token {
		if c.run++; c.run == sure {
			c.swap(r)
		}
		return
	}
	if i := c.swapped(r, was.at); c.run >= sure && was.by == was.end && i >= 0 { // not here
		c.swaps = slices.Delete(c.swaps, i, i+1)
		if r.at(was.at) == token {
			c.cursor = cursor{at: was.at + 1}
			c.run++
			return
		}
	}
	if c.run >= sure {
		c.left, c.since = was.at, r.n-1
	}
	if r.n-c.since > changed || c.left < r.oldest() {
		c.cursor = cursor{}
		return
	}
	// The nearest place where most of the last tokens are the same; else as many were replaced.
	most := 0
	c.cursor = cursor{at: c.left + r.n - c.since}
	for at := c.left + 1; at < min(c.left+changed, c.since); at++ {
		if m := r.matched(at, r); m > most {
			most, c.cursor = m, cursor{at: at}
		}
	}
	if c.run = min(most, int(r.n-c.since)); c.run >= sure {
		c.swap(r)
	}
}

// swap notes what the change that is over has replaced.
func (c *copying) swap(r *ring) {
	s := swap{c.left, c.at - uint64(c.run), c.since, r.n - uint64(c.run)}
	if s.from >= s.to { // only added: before the token that was there
		s.to, s.end = s.from+1, s.end+1
	}
	if s.to-s.from > 16 || s.end <= s.by || s.end-s.by > 32 {
		return
	}
	c.swaps = slices.Insert(c.swaps[:min(len(c.swaps), swaps-1)], 0, s)
}

// draft is what the copy goes on with, if the newest token is of the source.
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

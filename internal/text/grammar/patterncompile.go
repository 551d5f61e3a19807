package grammar

import "github.com/shoal-llm/shoal/internal/attempt"

// pattern is what a pattern matches from end to end (whole), or all texts in which it is
// found.
func (x *regexes) pattern(text, flags string, e encoder, whole bool) (rid, error) {
	return attempt.At(func() rid {
		n := parsePattern(text, flags)
		c := &patternCompiler{x: x, e: e, any: x.star(e.class(anyRune))}
		return c.ways(n, whole, whole)
	})
}

type patternCompiler struct {
	x   *regexes
	e   encoder
	any rid
}

// ways compiles a pattern that begins here (start) or anywhere later, and ends with the
// text (end) or anywhere before.
func (c *patternCompiler) ways(n *pnode, start, end bool) rid {
	seqs := distribute(n)
	list := make([]rid, len(seqs))
	for i, s := range seqs {
		list[i] = c.way(s, start, end)
	}
	return c.x.or(list...)
}

// distribute writes alternatives around anchors and look-aheads as alternatives of the
// whole, so that these stand in the outermost sequence.
func distribute(n *pnode) [][]*pnode {
	if !n.marks {
		return [][]*pnode{{n}}
	}
	switch n.kind {
	case pAlt:
		var out [][]*pnode
		for _, a := range n.list {
			more := distribute(a)
			if out = append(out, more...); len(out) > maxPatternWays {
				panic(refused("regular expression: more than %d alternatives around anchors", maxPatternWays))
			}
		}
		return out
	case pSeq:
		out := [][]*pnode{nil}
		for _, item := range n.list {
			more := distribute(item)
			if len(out)*len(more) > maxPatternWays {
				panic(refused("regular expression: more than %d alternatives around anchors", maxPatternWays))
			}
			var next [][]*pnode
			for _, o := range out {
				for _, m := range more {
					next = append(next, append(o[:len(o):len(o)], m...))
				}
			}
			out = next
		}
		return out
	}
	return [][]*pnode{{n}}
}

func (c *patternCompiler) way(seq []*pnode, start, end bool) rid {
	x := c.x
	r := c.any
	if end {
		r = rEps
	}
	taken := false // something behind takes characters
	for i := len(seq) - 1; i >= 0; i-- {
		switch n := seq[i]; n.kind {
		case pEnd:
			if taken {
				r = x.and(r, rEps) // only what takes nothing can follow
			} else {
				r = rEps
			}
		case pStart:
			if i == 0 || allMarks(seq[:i]) {
				start = true
				continue
			}
			before := c.plain(&pnode{kind: pSeq, list: unmarked(seq[:i])})
			if !x.nodes[before].nullable {
				return rEmpty // nothing can stand before the start
			}
			panic(refused("regular expression: '^' behind something optional is not supported"))
		case pLook:
			look := c.ways(n.list[0], true, false)
			if n.not {
				look = x.not(look)
			}
			r = x.and(r, look)
		default:
			m := c.plain(n)
			r = x.concat2(m, r)
			taken = true
		}
	}
	if !start {
		r = x.concat2(c.any, r)
	}
	return r
}

func allMarks(seq []*pnode) bool {
	for _, n := range seq {
		if n.kind != pStart && n.kind != pLook {
			return false
		}
	}
	return true
}

func unmarked(seq []*pnode) (out []*pnode) {
	for _, n := range seq {
		if !n.marks {
			out = append(out, n)
		}
	}
	return out
}

// plain compiles what has no anchor inside.
func (c *patternCompiler) plain(n *pnode) rid {
	x := c.x
	switch n.kind {
	case pClass:
		return c.e.class(n.set)
	case pRepeat:
		return x.repeat(c.plain(n.list[0]), n.lo, n.hi)
	case pSeq, pAlt:
		list := make([]rid, len(n.list))
		for i, m := range n.list {
			list[i] = c.plain(m)
		}
		if n.kind == pSeq {
			return x.concat(list...)
		}
		return x.or(list...)
	}
	panic(refused("regular expression: an anchor or look-ahead at this place is not supported"))
}

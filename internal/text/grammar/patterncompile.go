package grammar

import "github.com/shoal-llm/shoal/internal/attempt"

// pattern compiles a pattern that matches the whole text (whole), or that occurs anywhere in it.
func (x *regexes) pattern(text, flags string, e encoder, whole bool) (regexID, error) {
	return attempt.At(func() regexID {
		n := parsePattern(text, flags)
		c := &patternCompiler{x: x, e: e, any: x.star(e.class(anyRune))}
		return c.ways(n, whole, whole)
	})
}

type patternCompiler struct {
	x   *regexes
	e   encoder
	any regexID
}

// ways compiles a pattern that starts here (start) or anywhere later, and ends with the text (end)
// or anywhere before.
func (c *patternCompiler) ways(n *patternNode, start, end bool) regexID {
	seqs := distribute(n)
	list := make([]regexID, len(seqs))
	for i, s := range seqs {
		list[i] = c.way(s, start, end)
	}
	return c.x.or(list...)
}

// distribute rewrites alternatives around anchors and look-aheads as alternatives of the whole
// pattern, so that these are in the outermost sequence.
func distribute(n *patternNode) [][]*patternNode {
	if !n.marks {
		return [][]*patternNode{{n}}
	}
	switch n.kind {
	case pAlt:
		var out [][]*patternNode
		for _, a := range n.list {
			more := distribute(a)
			if out = append(out, more...); len(out) > maxPatternWays {
				panic(refused("regular expression: more than %d alternatives around anchors", maxPatternWays))
			}
		}
		return out
	case pSeq:
		out := [][]*patternNode{nil}
		for _, item := range n.list {
			more := distribute(item)
			if len(out)*len(more) > maxPatternWays {
				panic(refused("regular expression: more than %d alternatives around anchors", maxPatternWays))
			}
			var next [][]*patternNode
			for _, o := range out {
				for _, m := range more {
					next = append(next, append(o[:len(o):len(o)], m...))
				}
			}
			out = next
		}
		return out
	}
	return [][]*patternNode{{n}}
}

func (c *patternCompiler) way(seq []*patternNode, start, end bool) regexID {
	x := c.x
	r := c.any
	if end {
		r = rEps
	}
	taken := false // a later part consumes characters
	for i := len(seq) - 1; i >= 0; i-- {
		switch n := seq[i]; n.kind {
		case pEnd:
			if taken {
				r = x.and(r, rEps) // only parts that consume nothing can follow
			} else {
				r = rEps
			}
		case pStart:
			if i == 0 || allMarks(seq[:i]) {
				start = true
				continue
			}
			before := c.plain(&patternNode{kind: pSeq, list: unmarked(seq[:i])})
			if !x.nodes[before].nullable {
				return rEmpty // nothing can precede the start
			}
			panic(refused("regular expression: '^' after something optional is not supported"))
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

func allMarks(seq []*patternNode) bool {
	for _, n := range seq {
		if n.kind != pStart && n.kind != pLook {
			return false
		}
	}
	return true
}

func unmarked(seq []*patternNode) (out []*patternNode) {
	for _, n := range seq {
		if !n.marks {
			out = append(out, n)
		}
	}
	return out
}

// plain compiles a part without anchors.
func (c *patternCompiler) plain(n *patternNode) regexID {
	x := c.x
	switch n.kind {
	case pClass:
		return c.e.class(n.set)
	case pRepeat:
		return x.repeat(c.plain(n.list[0]), n.lo, n.hi)
	case pSeq, pAlt:
		list := make([]regexID, len(n.list))
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

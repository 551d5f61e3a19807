package regex

import "github.com/shoal-llm/shoal/internal/attempt"

// Pattern compiles a pattern that matches the whole text (whole), or that occurs anywhere in it.
func (x *Store) Pattern(text, flags string, e Encoder, whole bool) (ID, error) {
	return attempt.At(func() ID {
		n := parsePattern(text, flags)
		c := &patternCompiler{x: x, e: e, any: x.Star(e.Class(AnyRune))}
		return c.ways(n, whole, whole)
	})
}

type patternCompiler struct {
	x   *Store
	e   Encoder
	any ID
}

// ways compiles a pattern that starts here (start) or anywhere later, and ends with the text (end)
// Or anywhere before.
func (c *patternCompiler) ways(n *patternNode, start, end bool) ID {
	seqs := distribute(n)
	list := make([]ID, len(seqs))
	for i, s := range seqs {
		list[i] = c.way(s, start, end)
	}
	return c.x.Or(list...)
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
				panic(wrong("regular expression: more than %d alternatives around anchors", maxPatternWays))
			}
		}
		return out
	case pSeq:
		out := [][]*patternNode{nil}
		for _, item := range n.list {
			more := distribute(item)
			if len(out)*len(more) > maxPatternWays {
				panic(wrong("regular expression: more than %d alternatives around anchors", maxPatternWays))
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

func (c *patternCompiler) way(seq []*patternNode, start, end bool) ID {
	x := c.x
	r := c.any
	if end {
		r = Epsilon
	}
	taken := false // a later part consumes characters
	for i := len(seq) - 1; i >= 0; i-- {
		switch n := seq[i]; n.kind {
		case pEnd:
			if taken {
				r = x.And(r, Epsilon) // only parts that consume nothing can follow
			} else {
				r = Epsilon
			}
		case pStart:
			if i == 0 || allMarks(seq[:i]) {
				start = true
				continue
			}
			before := c.plain(&patternNode{kind: pSeq, list: unmarked(seq[:i])})
			if !x.nodes[before].nullable {
				return Empty // nothing can precede the start
			}
			panic(wrong("regular expression: '^' after something optional is not supported"))
		case pLook:
			look := c.ways(n.list[0], true, false)
			if n.not {
				look = x.Not(look)
			}
			r = x.And(r, look)
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
func (c *patternCompiler) plain(n *patternNode) ID {
	x := c.x
	switch n.kind {
	case pClass:
		return c.e.Class(n.set)
	case pRepeat:
		return x.Repeat(c.plain(n.list[0]), n.lo, n.hi)
	case pSeq, pAlt:
		list := make([]ID, len(n.list))
		for i, m := range n.list {
			list[i] = c.plain(m)
		}
		if n.kind == pSeq {
			return x.Concat(list...)
		}
		return x.Or(list...)
	}
	panic(wrong("regular expression: an anchor or look-ahead at this place is not supported"))
}

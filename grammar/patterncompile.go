package grammar

import "fmt"

// search is what a pattern finds somewhere in a text: all texts that hold it.
func (x *regexes) search262(n *pnode, e encoder) (rid, error) { return x.pattern(n, e, false) }

// full is what a pattern matches from end to end.
func (x *regexes) full(n *pnode, e encoder) (rid, error) { return x.pattern(n, e, true) }

func (x *regexes) pattern(n *pnode, e encoder, whole bool) (rid, error) {
	c := &patternCompiler{x: x, e: e, any: x.star(e.class(anyRune))}
	return c.ways(n, whole, whole)
}

type patternCompiler struct {
	x   *regexes
	e   encoder
	any rid
}

// ways compiles a pattern that begins here (start) or anywhere later, and ends with the
// text (end) or anywhere before.
func (c *patternCompiler) ways(n *pnode, start, end bool) (rid, error) {
	seqs, err := distribute(n)
	if err != nil {
		return rEmpty, err
	}
	list := make([]rid, len(seqs))
	for i, s := range seqs {
		if list[i], err = c.way(s, start, end); err != nil {
			return rEmpty, err
		}
	}
	return c.x.or(list...), nil
}

// distribute writes alternatives around anchors and look-aheads as alternatives of the
// whole, so that these stand in the outermost sequence.
func distribute(n *pnode) ([][]*pnode, error) {
	if !n.marks {
		return [][]*pnode{{n}}, nil
	}
	switch n.kind {
	case pAlt:
		var out [][]*pnode
		for _, a := range n.list {
			more, err := distribute(a)
			if err != nil {
				return nil, err
			}
			if out = append(out, more...); len(out) > maxPatternWays {
				return nil, fmt.Errorf("regular expression: more than %d alternatives around anchors", maxPatternWays)
			}
		}
		return out, nil
	case pSeq:
		out := [][]*pnode{nil}
		for _, item := range n.list {
			more, err := distribute(item)
			if err != nil {
				return nil, err
			}
			if len(out)*len(more) > maxPatternWays {
				return nil, fmt.Errorf("regular expression: more than %d alternatives around anchors", maxPatternWays)
			}
			var next [][]*pnode
			for _, o := range out {
				for _, m := range more {
					next = append(next, append(o[:len(o):len(o)], m...))
				}
			}
			out = next
		}
		return out, nil
	}
	return [][]*pnode{{n}}, nil
}

func (c *patternCompiler) way(seq []*pnode, start, end bool) (rid, error) {
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
			before, err := c.plain(&pnode{kind: pSeq, list: unmarked(seq[:i])})
			if err != nil {
				return rEmpty, err
			}
			if !x.nodes[before].nullable {
				return rEmpty, nil // nothing can stand before the start
			}
			return rEmpty, fmt.Errorf("regular expression: '^' behind something optional is not supported")
		case pLook:
			look, err := c.ways(n.list[0], true, false)
			if err != nil {
				return rEmpty, err
			}
			if n.not {
				look = x.not(look)
			}
			r = x.and(r, look)
		default:
			m, err := c.plain(n)
			if err != nil {
				return rEmpty, err
			}
			r = x.concat2(m, r)
			taken = true
		}
	}
	if !start {
		r = x.concat2(c.any, r)
	}
	return r, nil
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
func (c *patternCompiler) plain(n *pnode) (rid, error) {
	x := c.x
	switch n.kind {
	case pClass:
		return c.e.class(n.set), nil
	case pRepeat:
		r, err := c.plain(n.list[0])
		return x.repeat(r, n.lo, n.hi), err
	case pSeq, pAlt:
		list := make([]rid, len(n.list))
		for i, m := range n.list {
			var err error
			if list[i], err = c.plain(m); err != nil {
				return rEmpty, err
			}
		}
		if n.kind == pSeq {
			return x.concat(list...), nil
		}
		return x.or(list...), nil
	}
	return rEmpty, fmt.Errorf("regular expression: an anchor or look-ahead at this place is not supported")
}

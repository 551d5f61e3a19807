package jinja

// forLoop runs one for statement; depth counts recursive calls of it.
func (in *interp) forLoop(s *forStmt, over Value, sc *scope, out *builder, depth int) signal {
	in.enter()
	defer in.leave()
	in.line = s.at()
	items := in.iterate(over)
	if s.filter != nil {
		items = in.selectItems(s, items, sc)
	}
	lp := &loopObject{items: items, depth: depth}
	if s.recursive {
		lp.recurse = func(in *interp, v Value) Value {
			var b builder
			in.forLoop(s, v, sc, &b, depth+1)
			return b.str()
		}
	}
	for i, v := range items {
		in.step(1)
		lp.i = i
		inner := sc.inner()
		inner.set("loop", lp)
		in.line = s.at()
		in.assign(s.target, v, inner)
		if in.exec(s.body, inner, out) == doBreak {
			break
		}
	}
	if len(items) == 0 {
		return in.exec(s.other, sc.inner(), out)
	}
	return goOn
}

func (in *interp) selectItems(s *forStmt, items []Value, sc *scope) []Value {
	var kept []Value
	for _, v := range items {
		inner := sc.inner()
		in.assign(s.target, v, inner)
		if truth(in.eval(s.filter, inner)) {
			in.charge(16)
			kept = append(kept, v)
		}
	}
	return kept
}

// loopObject is the variable loop.
type loopObject struct {
	items   []Value
	i       int
	depth   int
	changed []Value
	seen    bool // changed was called
	recurse func(in *interp, v Value) Value
}

func (l *loopObject) typeName() string { return "LoopContext" }

func (l *loopObject) attr(in *interp, name string) (Value, bool) {
	n := len(l.items)
	switch name {
	case "index":
		return int64(l.i + 1), true
	case "index0":
		return int64(l.i), true
	case "revindex":
		return int64(n - l.i), true
	case "revindex0":
		return int64(n - l.i - 1), true
	case "first":
		return l.i == 0, true
	case "last":
		return l.i == n-1, true
	case "length":
		return int64(n), true
	case "depth":
		return int64(l.depth + 1), true
	case "depth0":
		return int64(l.depth), true
	case "previtem":
		if l.i == 0 {
			return &Undefined{"there is no previous item"}, true
		}
		return l.items[l.i-1], true
	case "nextitem":
		if l.i == n-1 {
			return &Undefined{"there is no next item"}, true
		}
		return l.items[l.i+1], true
	case "cycle":
		return &callable{"cycle", func(in *interp, a *args) Value {
			if len(a.pos) == 0 {
				in.fail("no items for cycling given")
			}
			return a.pos[l.i%len(a.pos)]
		}}, true
	case "changed":
		return &callable{"changed", func(in *interp, a *args) Value {
			if l.seen && in.equal(tuple(l.changed...), tuple(a.pos...)) {
				return false
			}
			l.seen, l.changed = true, a.pos
			return true
		}}, true
	}
	return nil, false
}

package jinja

type forLoop struct {
	line        int
	target      target
	filter      expr // nil: all
	recursive   bool
	body, other []stmt
}

// run iterates over over; depth counts recursive calls.
func (l *forLoop) run(in *interp, over Value, sc *scope, out *builder, depth int) signal {
	in.enter()
	defer in.leave()
	in.line = l.line
	items := in.iterate(over)
	if l.filter != nil {
		items = l.filtered(in, items, sc)
	}
	lp := &loopObject{items: items, depth: depth}
	if l.recursive {
		lp.recurse = func(in *interp, v Value) Value {
			var b builder
			l.run(in, v, sc, &b, depth+1)
			return b.str()
		}
	}
	for i, v := range items {
		in.step(1)
		lp.i = i
		inner := sc.inner()
		inner.set("loop", lp)
		in.line = l.line
		l.target(in, v, inner)
		if in.exec(l.body, inner, out) == doBreak {
			break
		}
	}
	if len(items) == 0 {
		return in.exec(l.other, sc.inner(), out)
	}
	return goOn
}

func (l *forLoop) filtered(in *interp, items []Value, sc *scope) []Value {
	var kept []Value
	for _, v := range items {
		inner := sc.inner()
		l.target(in, v, inner)
		if truth(l.filter(in, inner)) {
			in.charge(16)
			kept = append(kept, v)
		}
	}
	return kept
}

// loopObject is the variable "loop".
type loopObject struct {
	items   []Value
	i       int
	depth   int
	changed []Value
	seen    bool // changed() was called
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
		return &callable{name: "cycle", call: func(in *interp, a *args) Value {
			if len(a.pos) == 0 {
				in.fail("no items for cycling given")
			}
			return a.pos[l.i%len(a.pos)]
		}}, true
	case "changed":
		return &callable{name: "changed", call: func(in *interp, a *args) Value {
			if l.seen && in.equal(tuple(l.changed...), tuple(a.pos...)) {
				return false
			}
			l.seen, l.changed = true, a.pos
			return true
		}}, true
	}
	return nil, false
}

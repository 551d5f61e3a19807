package jinja

import (
	"fmt"

	"github.com/shoal-llm/shoal/internal/text/jinja/python"
)

type forLoop struct {
	line        int
	target      target
	filter      expr // nil: all
	recursive   bool
	body, other []stmt
}

// run iterates over over; depth counts recursive calls.
func (l *forLoop) run(in *interp, over python.Value, sc *scope, out *python.Builder, depth int) signal {
	in.Enter()
	defer in.Leave()
	in.Line = l.line
	items := in.iterate(over)
	if l.filter != nil {
		items = l.filtered(in, items, sc)
	}
	lp := &loopObject{items: items, depth: depth}
	if l.recursive {
		lp.recurse = func(in *interp, v python.Value) python.Value {
			var b python.Builder
			l.run(in, v, sc, &b, depth+1)
			return b.Str()
		}
	}
	finished := false // the body ran to its end at least once
	for i, v := range items {
		in.Step(1)
		lp.i = i
		inner := sc.inner()
		inner.set("loop", lp)
		in.Line = l.line
		l.target(in, v, inner)
		sig := in.exec(l.body, inner, out)
		if sig == doBreak {
			break
		}
		finished = finished || sig == goOn
	}
	if !finished { // as jinja2 has it: also if "break" or "continue" ended each run of the body
		return in.exec(l.other, sc.inner(), out)
	}
	return goOn
}

func (l *forLoop) filtered(in *interp, items []python.Value, sc *scope) []python.Value {
	var kept []python.Value
	for _, v := range items {
		inner := sc.inner()
		l.target(in, v, inner)
		if python.Truth(l.filter(in, inner)) {
			in.Charge(16)
			kept = append(kept, v)
		}
	}
	return kept
}

// loopObject is the variable "loop".
type loopObject struct {
	items   []python.Value
	i       int
	depth   int
	changed []python.Value
	seen    bool // changed() was called
	recurse func(in *interp, v python.Value) python.Value
}

func (l *loopObject) TypeName() string { return "LoopContext" }

func (l *loopObject) Repr() string {
	return fmt.Sprintf("<LoopContext %d/%d>", l.i+1, len(l.items))
}

func (l *loopObject) attr(name string) (python.Value, bool) {
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
			return &python.Undefined{Message: "there is no previous item"}, true
		}
		return l.items[l.i-1], true
	case "nextitem":
		if l.i == n-1 {
			return &python.Undefined{Message: "there is no next item"}, true
		}
		return l.items[l.i+1], true
	case "cycle":
		return &callable{name: "cycle", call: func(in *interp, a *args) python.Value {
			if len(a.pos) == 0 {
				in.Fail("no items for cycling given")
			}
			return a.pos[l.i%len(a.pos)]
		}}, true
	case "changed":
		return &callable{name: "changed", call: func(in *interp, a *args) python.Value {
			if l.seen && in.Equal(python.Tuple(l.changed...), python.Tuple(a.pos...)) {
				return false
			}
			l.seen, l.changed = true, a.pos
			return true
		}}, true
	}
	return nil, false
}

package grammar

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/shoal-llm/shoal/internal/attempt"
	"github.com/shoal-llm/shoal/internal/text/grammar/regex"
)

// rulebook has named rules before they are compiled. The machine reads from left to right, so a
// rule that starts with itself is rewritten as a repetition. Left recursion through other rules is
// refused.
type rulebook struct {
	m        *machine
	language string // for errors
	names    []string
	body     map[string]*part
	count    int
	null     map[string]bool
}

type part struct {
	kind   exprKind // xLex, xSeq, xAlt, xRepeat, xRule; xDone: e
	r      regex.ID
	e      exprID // for xDone: a finished expression
	name   string
	list   []*part
	lo, hi int
}

const maxParts = 1 << 17

func newRulebook(m *machine, language string) *rulebook {
	return &rulebook{m: m, language: language, body: map[string]*part{}}
}

func (b *rulebook) refused(format string, args ...any) attempt.Failure {
	return attempt.Failure{Err: &Error{Message: b.language + fmt.Sprintf(format, args...)}}
}

func (b *rulebook) part(p part) *part {
	if b.count++; b.count > maxParts {
		panic(regex.Large("it has too many parts"))
	}
	return &p
}

func (b *rulebook) add(name string, p *part) {
	if b.body[name] != nil {
		panic(b.refused("the rule %q is defined twice", name))
	}
	b.names = append(b.names, name)
	b.body[name] = p
}

// compile compiles all rules and returns the expression of one.
func (b *rulebook) compile(start string) exprID {
	for _, n := range b.names {
		b.known(n, b.body[n])
	}
	if b.body[start] == nil {
		panic(b.refused("there is no rule %q to begin with", start))
	}
	b.null = map[string]bool{}
	for more := true; more; {
		more = false
		for _, n := range b.names {
			if !b.null[n] && b.nullable(b.body[n]) {
				b.null[n], more = true, true
			}
		}
	}
	for _, n := range b.names {
		b.unroll(n)
	}
	b.leftRecursion()
	exprs := map[string]exprID{}
	at := map[string]int{}
	for _, n := range b.names {
		at[n], exprs[n] = b.m.rule()
	}
	for _, n := range b.names {
		b.m.rules[at[n]] = b.expr(b.body[n], exprs)
	}
	return exprs[start]
}

func (b *rulebook) known(rule string, p *part) {
	if p.kind == xRule && b.body[p.name] == nil {
		panic(b.refused("the rule %q uses %q, which is not defined", rule, p.name))
	}
	for _, l := range p.list {
		b.known(rule, l)
	}
}

func (b *rulebook) nullable(p *part) bool {
	switch p.kind {
	case xLex:
		return b.m.Nullable(p.r)
	case xSeq:
		for _, l := range p.list {
			if !b.nullable(l) {
				return false
			}
		}
		return true
	case xAlt:
		return slices.ContainsFunc(p.list, b.nullable)
	case xRepeat:
		return p.lo == 0 || b.nullable(p.list[0])
	case xRule:
		return b.null[p.name]
	}
	return p.e == eDone
}

// unroll rewrites a: a x | y as a: y x*.
func (b *rulebook) unroll(name string) {
	p := b.body[name]
	if p.kind != xAlt {
		p = b.part(part{kind: xAlt, list: []*part{p}})
	}
	var heads, tails []*part
	for _, a := range flatAlts(p) {
		if a.kind == xRule && a.name == name {
			continue // a rule "a: a" adds nothing
		}
		if a.kind == xSeq && len(a.list) > 0 && a.list[0].kind == xRule && a.list[0].name == name {
			tails = append(tails, b.part(part{kind: xSeq, list: a.list[1:]}))
		} else {
			heads = append(heads, a)
		}
	}
	if len(tails) == 0 {
		return
	}
	if len(heads) == 0 {
		panic(b.refused("every alternative of the rule %q begins with itself", name))
	}
	rest := b.part(part{kind: xRepeat, hi: -1, list: []*part{b.part(part{kind: xAlt, list: tails})}})
	b.body[name] = b.part(part{kind: xSeq, list: []*part{b.part(part{kind: xAlt, list: heads}), rest}})
}

func flatAlts(p *part) (out []*part) {
	for _, a := range p.list {
		if a.kind == xAlt {
			out = append(out, flatAlts(a)...)
		} else {
			out = append(out, a)
		}
	}
	return out
}

func (b *rulebook) leftRecursion() {
	const busy, done = 1, 2
	state := map[string]int{}
	var path []string
	var visit func(name string)
	var first func(p *part)
	first = func(p *part) {
		switch p.kind {
		case xRule:
			visit(p.name)
		case xSeq:
			for _, l := range p.list {
				if first(l); !b.nullable(l) {
					return
				}
			}
		case xAlt, xRepeat:
			for _, l := range p.list {
				first(l)
			}
		}
	}
	visit = func(name string) {
		switch state[name] {
		case done:
			return
		case busy:
			i := slices.Index(path, name)
			panic(b.refused("left recursion through %s: rewrite the rules so that none starts with itself", strings.Join(append(path[i:], name), ", ")))
		}
		state[name] = busy
		path = append(path, name)
		first(b.body[name])
		path = path[:len(path)-1]
		state[name] = done
	}
	for _, n := range b.names {
		visit(n)
	}
}

func (b *rulebook) expr(p *part, exprs map[string]exprID) exprID {
	m := b.m
	list := make([]exprID, len(p.list))
	for i, l := range p.list {
		list[i] = b.expr(l, exprs)
	}
	switch p.kind {
	case xLex:
		return m.lex(p.r)
	case xSeq:
		return m.seq(list...)
	case xAlt:
		return m.alt(list...)
	case xRepeat:
		return m.times(list[0], p.lo, p.hi)
	case xRule:
		return exprs[p.name]
	}
	return p.e
}

// compileChoice matches one of several texts.
func (m *machine) compileChoice(text string) exprID {
	v, err := parseJSON(text)
	if err != nil || v.kind != jArray || len(v.list) == 0 {
		panic(attempt.Failure{Err: &Error{Message: "a choice is a list of strings, with one at least"}})
	}
	list := make([]regex.ID, len(v.list))
	for i, s := range v.list {
		if s.kind != jString || s.s == "" {
			panic(attempt.Failure{Err: &Error{Message: fmt.Sprintf("choice %d is not a string, or empty", i)}})
		}
		if !utf8.ValidString(s.s) {
			panic(attempt.Failure{Err: &Error{Message: fmt.Sprintf("choice %d contains an unpaired surrogate", i)}})
		}
		list[i] = m.Literal(s.s)
	}
	return m.lex(m.Or(list...))
}

// compileTags matches free text with tags. A tag that has started must follow its schema to its end
// (XGrammar's structural tags).
func (m *machine) compileTags(s Spec) exprID {
	v, err := parseJSON(s.Text)
	if err != nil {
		panic(attempt.Failure{Err: &Error{Message: "a structural tag is a JSON object: " + err.Error()}})
	}
	structures, triggers := v.get("structures"), v.get("triggers")
	if structures == nil || structures.kind != jArray || len(structures.list) == 0 {
		panic(attempt.Failure{Err: &Error{Message: "a structural tag needs 'structures', a list of {begin, schema, end}"}})
	}
	if triggers == nil || triggers.kind != jArray || len(triggers.list) == 0 {
		panic(attempt.Failure{Err: &Error{Message: "a structural tag needs 'triggers', a list of strings"}})
	}
	var marks []regex.ID
	for _, t := range triggers.list {
		if t.kind != jString || t.s == "" {
			panic(attempt.Failure{Err: &Error{Message: "a trigger is a string that is not empty"}})
		}
		marks = append(marks, m.Literal(t.s))
	}
	mark := m.Or(marks...)
	name, loop := m.rule()
	ways := []exprID{m.lex(m.Not(m.Concat(regex.All, mark, regex.All)))}
	byTrigger := make([][]exprID, len(marks))
	for i, t := range structures.list {
		begin, end, schema := t.get("begin"), t.get("end"), t.get("schema")
		if begin == nil || end == nil || schema == nil || begin.kind != jString || end.kind != jString {
			panic(attempt.Failure{Err: &Error{Message: fmt.Sprintf("structure %d needs 'begin', 'schema' and 'end'", i)}})
		}
		at := -1
		for j, t := range triggers.list {
			if strings.HasPrefix(begin.s, t.s) && (at < 0 || len(t.s) > len(triggers.list[at].s)) {
				at = j
			}
		}
		if at < 0 {
			panic(attempt.Failure{Err: &Error{Message: fmt.Sprintf("the 'begin' of structure %d starts with no trigger", i)}})
		}
		e := m.schema(schema, Spec{Whitespace: s.Whitespace, Compact: s.Compact, AnyOrder: s.AnyOrder, Open: s.Open})
		byTrigger[at] = append(byTrigger[at], m.seq(m.text(begin.s[len(triggers.list[at].s):]), e, m.text(end.s)))
	}
	for i, list := range byTrigger {
		if len(list) > 0 {
			ways = append(ways, m.seq(m.lex(m.until(marks[i], mark)), m.alt(list...), loop))
		}
	}
	m.rules[name] = m.alt(ways...)
	return loop
}

// until matches any text that ends with mark and has no earlier mark.
func (m *machine) until(mark, marks regex.ID) regex.ID {
	return m.And(m.Concat(regex.All, mark), m.Not(m.Concat(regex.All, marks, m.Bytes(0, 255), regex.All)))
}

package grammar

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/shoal-llm/shoal/internal/attempt"
	"github.com/shoal-llm/shoal/internal/text/grammar/notation"
	"github.com/shoal-llm/shoal/internal/text/grammar/regex"
)

// compileRules compiles the rules of a notation. s has the settings of the schemas within them.
func (m *machine) compileRules(s Spec, language string, r *notation.Rules, err error) exprID {
	if err != nil {
		panic(attempt.Failure{Err: &Error{Message: err.Error()}})
	}
	c := &ruleCompiler{m: m, spec: s, language: language, exprs: map[string]exprID{}}
	at := map[string]int{}
	for _, n := range r.Names {
		at[n], c.exprs[n] = m.rule()
	}
	for _, n := range r.Names {
		m.rules[at[n]] = c.expr(r.Body[n])
	}
	return m.seq(m.lex(r.Before), c.exprs[r.Start])
}

type ruleCompiler struct {
	m        *machine
	spec     Spec
	language string            // for errors
	exprs    map[string]exprID // of the rules
}

func (c *ruleCompiler) expr(p *notation.Part) exprID {
	m := c.m
	list := make([]exprID, len(p.List))
	for i, l := range p.List {
		list[i] = c.expr(l)
	}
	switch p.Kind {
	case notation.Lex:
		return m.lex(p.Lex)
	case notation.Seq:
		return m.seq(list...)
	case notation.Alt:
		return m.alt(list...)
	case notation.Repeat:
		return m.times(list[0], p.Lo, p.Hi)
	case notation.Rule:
		return c.exprs[p.Name]
	}
	v, err := parseJSON(p.Schema)
	if err != nil {
		panic(attempt.Failure{Err: &Error{Message: fmt.Sprintf("%s: line %d: %v", c.language, p.Line, err)}})
	}
	return m.schema(v, c.spec)
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
			ways = append(ways, m.seq(m.lex(m.Until(marks[i], mark)), m.alt(list...), loop))
		}
	}
	m.rules[name] = m.alt(ways...)
	return loop
}

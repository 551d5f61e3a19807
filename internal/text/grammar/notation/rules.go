package notation

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/shoal-llm/shoal/internal/attempt"
	"github.com/shoal-llm/shoal/internal/text/grammar/regex"
)

// Rules are the named rules of a grammar. None starts with itself, directly or through others.
type Rules struct {
	Names  []string // in the order of the text
	Body   map[string]*Part
	Start  string
	Before regex.ID // text that may come before the start rule
}

// Kind is the kind of a Part.
type Kind uint8

const (
	Lex    Kind = iota // a regular expression
	Seq                // all of List, one after another
	Alt                // one of List
	Repeat             // List[0], Lo to Hi times; Hi -1: unbounded
	Rule               // the rule Name
	Schema             // JSON text that matches Schema
)

// Part is a part of a rule.
type Part struct {
	Kind   Kind
	Lex    regex.ID
	List   []*Part
	Lo, Hi int
	Name   string
	Schema string // a JSON Schema, which is valid JSON
	Line   int    // of Schema in the text, for errors
}

// rulebook has the rules while they are read. Matching goes from left to right, so a rule that
// starts with itself is rewritten as a repetition. Left recursion through other rules is refused.
type rulebook struct {
	store    *regex.Store
	language string // for errors
	names    []string
	body     map[string]*Part
	count    int
	null     map[string]bool
}

const maxParts = 1 << 17

func newRulebook(store *regex.Store, language string) *rulebook {
	return &rulebook{store: store, language: language, body: map[string]*Part{}}
}

func (b *rulebook) refused(format string, args ...any) attempt.Failure {
	return attempt.Failure{Err: errors.New(b.language + fmt.Sprintf(format, args...))}
}

func (b *rulebook) part(p Part) *Part {
	if b.count++; b.count > maxParts {
		panic(regex.Large("it has too many parts"))
	}
	return &p
}

func (b *rulebook) add(name string, p *Part) {
	if b.body[name] != nil {
		panic(b.refused("the rule %q is defined twice", name))
	}
	b.names = append(b.names, name)
	b.body[name] = p
}

// finish checks all rules and removes left recursion.
func (b *rulebook) finish(start string) *Rules {
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
	return &Rules{Names: b.names, Body: b.body, Start: start, Before: regex.Epsilon}
}

func (b *rulebook) known(rule string, p *Part) {
	if p.Kind == Rule && b.body[p.Name] == nil {
		panic(b.refused("the rule %q uses %q, which is not defined", rule, p.Name))
	}
	for _, l := range p.List {
		b.known(rule, l)
	}
}

func (b *rulebook) nullable(p *Part) bool {
	switch p.Kind {
	case Lex:
		return b.store.Nullable(p.Lex)
	case Seq:
		for _, l := range p.List {
			if !b.nullable(l) {
				return false
			}
		}
		return true
	case Alt:
		return slices.ContainsFunc(p.List, b.nullable)
	case Repeat:
		return p.Lo == 0 || b.nullable(p.List[0])
	case Rule:
		return b.null[p.Name]
	}
	return false // a JSON text is never empty
}

// unroll rewrites a: a x | y as a: y x*.
func (b *rulebook) unroll(name string) {
	p := b.body[name]
	if p.Kind != Alt {
		p = b.part(Part{Kind: Alt, List: []*Part{p}})
	}
	var heads, tails []*Part
	for _, a := range flatAlts(p) {
		if a.Kind == Rule && a.Name == name {
			continue // a rule "a: a" adds nothing
		}
		if a.Kind == Seq && len(a.List) > 0 && a.List[0].Kind == Rule && a.List[0].Name == name {
			tails = append(tails, b.part(Part{Kind: Seq, List: a.List[1:]}))
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
	rest := b.part(Part{Kind: Repeat, Hi: -1, List: []*Part{b.part(Part{Kind: Alt, List: tails})}})
	b.body[name] = b.part(Part{Kind: Seq, List: []*Part{b.part(Part{Kind: Alt, List: heads}), rest}})
}

func flatAlts(p *Part) (out []*Part) {
	for _, a := range p.List {
		if a.Kind == Alt {
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
	var first func(p *Part)
	first = func(p *Part) {
		switch p.Kind {
		case Rule:
			visit(p.Name)
		case Seq:
			for _, l := range p.List {
				if first(l); !b.nullable(l) {
					return
				}
			}
		case Alt, Repeat:
			for _, l := range p.List {
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
			through := strings.Join(append(path[i:], name), ", ")
			panic(b.refused("left recursion through %s: rewrite the rules so that none starts with itself", through))
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

package grammar

import (
	"slices"

	"github.com/shoal-llm/shoal/internal/text/grammar/regex"
)

// keyed returns the schemas that apply to one name, or to all names in a class of patterns.
func (b *builder) keyed(f *conjunction, name string, known bool, matched map[*jsonValue]bool) (list []*schemaNode) {
	for _, n := range f.nodes {
		hit := false
		if p := n.v.get("properties"); p != nil && known {
			if x := p.get(name); x != nil {
				hit = true
				list = append(list, b.child(n, x, "properties", name))
			}
		}
		if p := n.v.get("patternProperties"); p != nil {
			for _, k := range p.keys {
				x := p.at[k]
				ok := matched[x]
				if known {
					r := b.pattern(n, "patternProperties", k)
					ok = b.m.Matches(r, regex.JSONSpelling(name))
				}
				if ok {
					hit = true
					list = append(list, b.child(n, x, "patternProperties", k))
				}
			}
		}
		if x := n.v.get("additionalProperties"); x != nil && !hit {
			list = append(list, b.child(n, x, "additionalProperties"))
		}
	}
	return list
}

func isFalse(list []*schemaNode) bool {
	return slices.ContainsFunc(list, func(n *schemaNode) bool { return n.v.kind == jBool && !n.v.b })
}

// closed reports whether the schemas of f name all members of an object: one has 'properties' and
// none has 'additionalProperties'. xgrammar, llama.cpp and vLLM's disable_additional_properties
// interpret schemas this way. Schemas that the builder creates, such as negations, name nothing.
func (b *builder) closed(f *conjunction) bool {
	names := false
	for _, n := range f.nodes {
		if n.v.get("additionalProperties") != nil {
			return false
		}
		names = names || !n.v.own && (n.v.get("properties") != nil || n.v.get("patternProperties") != nil)
	}
	return names && !b.open
}

// class is a set of keys that match the same patterns.
type class struct {
	key     regex.ID
	matched map[*jsonValue]bool
}

func (b *builder) object(f *conjunction) exprID {
	m := b.m
	lo, hi := b.sizes(f, "minProperties", "maxProperties")
	var names []string
	seen, required := map[string]bool{}, map[string]bool{}
	for _, n := range f.nodes {
		for _, k := range [...]string{"properties", "patternProperties"} {
			if x := n.v.get(k); x != nil && x.kind != jObject {
				panic(b.fail(n, k, "'%s' must be an object", k))
			}
		}
		if p := n.v.get("properties"); p != nil {
			for _, k := range p.keys {
				if !seen[k] {
					seen[k] = true
					names = append(names, k)
				}
			}
		}
	}
	for _, n := range f.nodes {
		x := n.v.get("required")
		if x == nil {
			continue
		}
		for _, k := range x.list {
			required[k.s] = true
			if !seen[k.s] {
				seen[k.s] = true
				names = append(names, k.s)
			}
		}
	}
	if hi >= 0 && (lo > hi || len(required) > hi) {
		return eFail
	}
	v := &validator{b: b}
	nameSchemas := b.collect(f, "propertyNames")
	type property struct {
		key   string
		value exprID
	}
	var props []property
	for _, name := range names {
		list := b.keyed(f, name, true, nil)
		ok := !isFalse(list)
		for _, s := range nameSchemas {
			fits := v.valid(s, jStr(name), 0)
			ok = ok && fits
		}
		if !ok {
			if required[name] {
				return eFail
			}
			continue
		}
		e := b.compile(list)
		if e == eFail {
			if required[name] {
				return eFail
			}
			continue
		}
		props = append(props, property{name, e})
	}
	o := &members{lo: lo, hi: hi, ordered: !b.any}
	o.colon = m.lex(m.Concat(b.ws, m.Literal(":"), b.ws))
	comma := m.Concat(b.ws, m.Literal(","), b.ws)
	o.opening = [2]exprID{m.text(`"`), m.lex(m.Concat(comma, m.Literal(`"`)))}
	for _, p := range props {
		key := m.Concat(m.Literal(`"`+regex.JSONSpelling(p.key)+`"`), b.ws, m.Literal(":"), b.ws)
		o.named = append(o.named, member{[2]exprID{m.seq(m.lex(key), p.value), m.seq(m.lex(m.Concat(comma, key)), p.value)}, required[p.key]})
	}
	for _, c := range b.otherKeys(f, names, nameSchemas) {
		list := b.keyed(f, "", false, c.matched)
		if isFalse(list) {
			continue
		}
		if lo > len(props)+maxOthers {
			panic(b.fail(f.nodes[0], "minProperties", "the number of properties is too large to be counted"))
		}
		o.others = append(o.others, others{c.key, b.compile(list), m.Strings(c.key, lo)})
	}
	blank := m.lex(b.ws)
	if len(o.named) == 0 && len(o.others) == 0 && lo == 0 {
		return m.seq(m.text("{"), blank, m.text("}"))
	}
	return m.seq(m.text("{"), blank, m.members(o), blank, m.text("}"))
}

func (b *builder) collect(f *conjunction, k string) (out []*schemaNode) {
	for _, n := range f.nodes {
		if x := n.v.get(k); x != nil {
			out = append(out, b.child(n, x, k))
		}
	}
	return out
}

// otherKeys returns the undeclared keys, with closing quotes, grouped by the patterns that match
// them.
func (b *builder) otherKeys(f *conjunction, names []string, nameSchemas []*schemaNode) []class {
	m := b.m
	quote := m.Literal(`"`)
	closed, patterns := b.closed(f), 0
	none := closed
	for _, n := range f.nodes {
		x := n.v.get("additionalProperties")
		none = none || x != nil && x.kind == jBool && !x.b
		if p := n.v.get("patternProperties"); p != nil {
			patterns += len(p.keys)
		}
	}
	if none && patterns == 0 {
		return nil
	}
	if len(names) == 0 && patterns == 0 && len(nameSchemas) == 0 {
		return []class{{key: m.Concat(m.Star(m.shortChar), quote)}}
	}
	parts := []regex.ID{m.Concat(m.Star(m.shortChar), quote)}
	var named []regex.ID
	for _, k := range names {
		named = append(named, m.Literal(regex.JSONSpelling(k)+`"`))
	}
	if len(named) > 0 {
		parts = append(parts, m.Not(m.Or(named...)))
	}
	for _, s := range nameSchemas {
		flats := b.apply([]*conjunction{{types: tString}}, s)
		var ways []regex.ID
		for _, g := range flats {
			r := b.nameBody(g)
			ways = append(ways, r)
		}
		parts = append(parts, m.Or(ways...))
	}
	classes := []class{{key: m.And(parts...), matched: map[*jsonValue]bool{}}}
	for _, n := range f.nodes {
		p := n.v.get("patternProperties")
		if p == nil {
			continue
		}
		for _, k := range p.keys {
			r := b.pattern(n, "patternProperties", k)
			r = m.Concat(r, quote)
			var split []class
			for _, c := range classes {
				if in := m.And(c.key, r); m.Alive(in) {
					matched := map[*jsonValue]bool{p.at[k]: true}
					for x := range c.matched {
						matched[x] = true
					}
					split = append(split, class{in, matched})
				}
				if out := m.And(c.key, m.Not(r)); m.Alive(out) {
					split = append(split, class{out, c.matched})
				}
			}
			if classes = split; len(classes) > 64 {
				panic(b.fail(n, "patternProperties", "the patterns overlap in more than 64 ways"))
			}
		}
	}
	return slices.DeleteFunc(classes, func(c class) bool { return !m.Alive(c.key) || closed && len(c.matched) == 0 })
}

// nameBody is stringBody for names. The values of an enumeration must be strings.
func (b *builder) nameBody(f *conjunction) regex.ID {
	for _, n := range f.nodes {
		for _, k := range [...]string{"enum", "const"} {
			x := n.v.get(k)
			if x == nil {
				continue
			}
			list := []*jsonValue{x}
			if k == "enum" {
				list = x.list
			}
			var out []regex.ID
			v := &validator{b: b}
			for _, s := range list {
				ok := s.kind == jString
				for _, o := range f.nodes {
					if !ok {
						break
					}
					ok = v.valid(o, s, 0)
				}
				if ok {
					out = append(out, b.m.Literal(regex.JSONSpelling(s.s)+`"`))
				}
			}
			return b.m.Or(out...)
		}
	}
	return b.stringBody(f)
}

package grammar

import "slices"

// keyed is what the schemas say of one name, or of all names that a set of patterns
// tells apart.
func (b *builder) keyed(f *flat, name string, known bool, matched map[*jval]bool) (list []*snode) {
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
					ok = b.m.matches(r, jsonSpelling(name))
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

func isFalse(list []*snode) bool {
	return slices.ContainsFunc(list, func(n *snode) bool { return n.v.kind == jBool && !n.v.b })
}

// class is a set of keys that the same patterns match.
type class struct {
	key     rid
	matched map[*jval]bool
}

func (b *builder) object(f *flat) eid {
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
		if x == nil || x.kind == jBool { // draft 3 has a boolean inside of properties
			continue
		}
		if x.kind != jArray {
			panic(b.fail(n, "required", "'required' must be a list of names"))
		}
		for _, k := range x.list {
			if k.kind != jString {
				panic(b.fail(n, "required", "'required' must be a list of names"))
			}
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
		value eid
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
	others := b.otherKeys(f, names, nameSchemas)
	colon := m.concat(b.ws, m.literal(":"), b.ws)
	comma := m.concat(b.ws, m.literal(","), b.ws)
	blank := m.lex(b.ws)
	var first, next []eid // another member
	for _, c := range others {
		list := b.keyed(f, "", false, c.matched)
		if isFalse(list) {
			continue
		}
		e := b.compile(list)
		key := m.concat(m.literal(`"`), c.key, colon)
		first = append(first, m.seq(m.lex(key), e))
		next = append(next, m.seq(m.lex(m.concat(comma, key)), e))
	}
	another, more := m.alt(first...), m.alt(next...)
	if b.any {
		o := &members{lo: lo, hi: hi, other: [2]eid{another, more}}
		for _, p := range props {
			key := m.concat(m.literal(`"`+jsonSpelling(p.key)+`"`), colon)
			o.named = append(o.named, member{[2]eid{m.seq(m.lex(key), p.value), m.seq(m.lex(m.concat(comma, key)), p.value)}, required[p.key]})
		}
		return m.seq(m.text("{"), blank, m.members(o), blank, m.text("}"))
	}

	// rest[c] are the members from the i-th property on, behind c others.
	top := max(lo, 1)
	if hi >= 0 {
		top = max(hi, 1)
	}
	if (top+1)*(len(props)+1) > maxCounts {
		top = -1
	}
	if top < 0 {
		panic(b.fail(f.nodes[0], "minProperties", "the number of properties is too large to be counted"))
	}
	left := func(c int) (int, int) {
		if hi < 0 {
			return max(0, lo-c), -1
		}
		return max(0, lo-c), max(0, hi-c)
	}
	rest := make([]eid, top+1)
	for c := range rest {
		a, z := left(c)
		if c > 0 {
			rest[c] = m.times(more, a, z)
			if hi >= 0 && c > hi || hi >= 0 && a > z {
				rest[c] = eFail
			}
			continue
		}
		rest[0] = eFail
		if z != 0 {
			y := z
			if z > 0 {
				y = z - 1
			}
			rest[0] = m.seq(another, m.times(more, max(0, a-1), y))
		}
		if lo == 0 {
			rest[0] = m.maybe(rest[0])
		}
	}
	for i := len(props) - 1; i >= 0; i-- {
		p := props[i]
		key := m.concat(m.literal(`"`+jsonSpelling(p.key)+`"`), colon)
		with := [2]eid{m.seq(m.lex(key), p.value), m.seq(m.lex(m.concat(comma, key)), p.value)}
		now := make([]eid, top+1)
		for c := range now {
			now[c] = eFail
			if hi < 0 || c < hi {
				now[c] = m.seq(with[min(c, 1)], rest[min(c+1, top)])
			}
			if !required[p.key] {
				now[c] = m.alt(now[c], rest[c])
			}
		}
		rest = now
	}
	body := rest[0]
	if body == eDone {
		return m.seq(m.text("{"), blank, m.text("}"))
	}
	return m.seq(m.text("{"), blank, body, blank, m.text("}"))
}

func (b *builder) collect(f *flat, k string) (out []*snode) {
	for _, n := range f.nodes {
		if x := n.v.get(k); x != nil {
			out = append(out, b.child(n, x, k))
		}
	}
	return out
}

// otherKeys are the keys that are not named, closing quotes included, by the patterns
// that match them.
func (b *builder) otherKeys(f *flat, names []string, nameSchemas []*snode) []class {
	m := b.m
	quote := m.literal(`"`)
	open, patterns := false, 0
	for _, n := range f.nodes {
		x := n.v.get("additionalProperties")
		if x != nil && x.kind == jBool && !x.b {
			open = true
		}
		if p := n.v.get("patternProperties"); p != nil {
			patterns += len(p.keys)
		}
	}
	closed := open
	if closed && patterns == 0 {
		return nil
	}
	if len(names) == 0 && patterns == 0 && len(nameSchemas) == 0 {
		return []class{{key: m.concat(m.star(m.char), quote)}}
	}
	parts := []rid{m.concat(m.star(m.shortChar), quote)}
	var named []rid
	for _, k := range names {
		named = append(named, m.literal(jsonSpelling(k)+`"`))
	}
	if len(named) > 0 {
		parts = append(parts, m.not(m.or(named...)))
	}
	for _, s := range nameSchemas {
		flats := b.apply([]*flat{{types: tString}}, s)
		var ways []rid
		for _, g := range flats {
			r := b.nameBody(g)
			ways = append(ways, r)
		}
		parts = append(parts, m.or(ways...))
	}
	classes := []class{{key: m.and(parts...), matched: map[*jval]bool{}}}
	for _, n := range f.nodes {
		p := n.v.get("patternProperties")
		if p == nil {
			continue
		}
		for _, k := range p.keys {
			r := b.pattern(n, "patternProperties", k)
			r = m.concat(r, quote)
			var split []class
			for _, c := range classes {
				if in := m.and(c.key, r); m.alive(in) {
					matched := map[*jval]bool{p.at[k]: true}
					for x := range c.matched {
						matched[x] = true
					}
					split = append(split, class{in, matched})
				}
				if out := m.and(c.key, m.not(r)); m.alive(out) {
					split = append(split, class{out, c.matched})
				}
			}
			if classes = split; len(classes) > 64 {
				panic(b.fail(n, "patternProperties", "the patterns overlap in more than 64 ways"))
			}
		}
	}
	return slices.DeleteFunc(classes, func(c class) bool { return !m.alive(c.key) })
}

// nameBody is stringBody, for names: an enumeration is one of strings.
func (b *builder) nameBody(f *flat) rid {
	for _, n := range f.nodes {
		for _, k := range [...]string{"enum", "const"} {
			x := n.v.get(k)
			if x == nil {
				continue
			}
			list := []*jval{x}
			if k == "enum" {
				list = x.list
			}
			var out []rid
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
					out = append(out, b.m.literal(jsonSpelling(s.s)+`"`))
				}
			}
			return b.m.or(out...)
		}
	}
	return b.stringBody(f)
}

package grammar

import (
	"math/big"
	"slices"
	"strconv"
)

// value is an expression for values that the schemas of f describe.
func (b *builder) value(f *flat) (eid, error) {
	m := b.m
	for _, n := range f.nodes {
		for _, k := range [...]string{"enum", "const"} {
			if n.v.get(k) != nil {
				return b.literals(f, n, k)
			}
		}
	}
	var ways []eid
	if f.types&tNull != 0 {
		ways = append(ways, m.text("null"))
	}
	if f.types&tBool != 0 {
		ways = append(ways, m.lex(m.or(m.literal("true"), m.literal("false"))))
	}
	if f.types&(tInteger|tFraction) != 0 {
		e, err := b.numeric(f)
		if err != nil {
			return eFail, err
		}
		ways = append(ways, e)
	}
	if f.types&tString != 0 {
		r, err := b.stringBody(f)
		if err != nil {
			return eFail, err
		}
		ways = append(ways, m.lex(m.concat(m.literal(`"`), r)))
	}
	if f.types&tArray != 0 {
		e, err := b.array(f)
		if err != nil {
			return eFail, err
		}
		ways = append(ways, e)
	}
	if f.types&tObject != 0 {
		e, err := b.object(f)
		if err != nil {
			return eFail, err
		}
		ways = append(ways, e)
	}
	return m.alt(ways...), nil
}

// literals are the values of an enumeration that all other schemas allow.
func (b *builder) literals(f *flat, n *snode, k string) (eid, error) {
	list := []*jval{n.v.get(k)}
	if k == "enum" {
		list = list[0].list
	}
	var words []rid
	var ways []eid
	v := &validator{b: b}
	for _, x := range list {
		ok := true
		for _, o := range f.nodes {
			if o == n && len(f.nodes) == 1 && len(n.v.keys) == 1 {
				continue
			}
			var err error
			if ok, err = v.valid(o, x, 0); err != nil {
				return eFail, err
			}
			if !ok {
				break
			}
		}
		switch {
		case !ok:
		case x.kind < jArray:
			words = append(words, b.scalar(x))
		default:
			ways = append(ways, b.constant(x))
		}
	}
	return b.m.alt(append(ways, b.m.lex(b.m.or(words...)))...), nil
}

func (b *builder) scalar(x *jval) rid {
	m := b.m
	switch x.kind {
	case jNull:
		return m.literal("null")
	case jBool:
		return m.literal(strconv.FormatBool(x.b))
	case jString:
		return m.literal(`"` + jsonSpelling(x.s) + `"`)
	}
	list := []rid{m.literal(x.s)}
	if r, ok := x.number(); ok && r.IsInt() && len(r.Num().String()) < 40 {
		list = append(list, m.literal(r.Num().String()), m.literal(r.Num().String()+".0"))
	}
	return m.or(list...)
}

func (b *builder) constant(x *jval) eid {
	m := b.m
	blank := m.lex(b.ws)
	sep := m.lex(m.concat(b.ws, m.literal(","), b.ws))
	var list []eid
	switch x.kind {
	case jArray:
		list = append(list, m.text("["), blank)
		for i, e := range x.list {
			if i > 0 {
				list = append(list, sep)
			}
			list = append(list, b.constant(e))
		}
		if len(x.list) > 0 {
			list = append(list, blank)
		}
		return m.seq(append(list, m.text("]"))...)
	case jObject:
		list = append(list, m.text("{"), blank)
		for i, k := range x.keys {
			if i > 0 {
				list = append(list, sep)
			}
			list = append(list, m.lex(m.concat(m.literal(`"`+jsonSpelling(k)+`"`), b.ws, m.literal(":"), b.ws)), b.constant(x.at[k]))
		}
		if len(x.keys) > 0 {
			list = append(list, blank)
		}
		return m.seq(append(list, m.text("}"))...)
	}
	return m.lex(b.scalar(x))
}

func (b *builder) numeric(f *flat) (eid, error) {
	c := numbers{integer: f.types&tFraction == 0}
	for _, n := range f.nodes {
		for _, k := range [...]string{"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"} {
			x := n.v.get(k)
			if x == nil || x.kind == jBool && k[0] == 'e' {
				continue
			}
			r, ok := x.number()
			if !ok {
				return eFail, b.fail(n, k, "'%s' must be a number of ordinary size", k)
			}
			open := func(k string) bool {
				o := n.v.get(k)
				return o != nil && o.kind == jBool && o.b
			}
			switch k {
			case "minimum":
				c.atLeast(bound{r, open("exclusiveMinimum")})
			case "maximum":
				c.atMost(bound{r, open("exclusiveMaximum")})
			case "exclusiveMinimum":
				c.atLeast(bound{r, true})
			case "exclusiveMaximum":
				c.atMost(bound{r, true})
			default:
				if r.Sign() <= 0 {
					return eFail, b.fail(n, k, "'multipleOf' must be more than 0")
				}
				c.steps = append(c.steps, r)
			}
		}
	}
	if c.lo != nil && c.hi != nil && c.lo.at.Cmp(c.hi.at) > 0 {
		return eFail, nil
	}
	r, bad := b.m.number(&c)
	if bad != "" {
		return eFail, b.fail(f.nodes[0], bad, "'%s' has a value that cannot be enforced", bad)
	}
	return b.m.lex(r), nil
}

// pattern compiles what a string must hold somewhere.
func (b *builder) pattern(n *snode, k, text string) (rid, error) {
	key := "p" + text
	if r, ok := b.memo[key]; ok {
		return r, nil
	}
	p, err := parsePattern(text, "")
	r := rEmpty
	if err == nil {
		r, err = b.m.search262(p, jsonText{b.m.regexes})
	}
	if err != nil {
		return rEmpty, b.fail(n, k, "%v", err)
	}
	b.memo[key] = r
	return r, nil
}

func (b *builder) format(n *snode, name string) (rid, error) {
	key := "f" + name
	if r, ok := b.memo[key]; ok {
		return r, nil
	}
	text, ok := formats[name]
	if !ok {
		return rEmpty, b.fail(n, "format", "the format %.60q is not supported", name)
	}
	p, err := parsePattern(text, "")
	r := rEmpty
	if err == nil {
		r, err = b.m.full(p, jsonText{b.m.regexes})
	}
	if err != nil {
		return rEmpty, b.fail(n, "format", "%v", err)
	}
	b.memo[key] = r
	return r, nil
}

// stringBody is what follows the opening quote of a string, closing quote included.
func (b *builder) stringBody(f *flat) (rid, error) {
	m := b.m
	lo, hi := 0, -1
	var parts []rid
	for _, n := range f.nodes {
		for _, k := range n.v.keys {
			x := n.v.at[k]
			switch k {
			case "minLength", "maxLength":
				c, ok := x.count()
				if !ok {
					return rEmpty, b.fail(n, k, "'%s' must be a whole number", k)
				}
				if k == "minLength" {
					lo = max(lo, c)
				} else if hi < 0 || c < hi {
					hi = c
				}
			case "pattern", "\x00pattern":
				if x.kind != jString {
					return rEmpty, b.fail(n, k, "'pattern' must be a string")
				}
				r, err := b.pattern(n, "pattern", x.s)
				if err != nil {
					return rEmpty, err
				}
				if k != "pattern" {
					r = m.not(r)
				}
				parts = append(parts, r)
			case "format":
				if x.kind != jString {
					return rEmpty, b.fail(n, k, "'format' must be a string")
				}
				r, err := b.format(n, x.s)
				if err != nil {
					return rEmpty, err
				}
				parts = append(parts, r)
			case "\x00strings":
				var list []rid
				for _, s := range x.list {
					list = append(list, m.literal(jsonSpelling(s.s)+`"`))
				}
				parts = append(parts, m.not(m.or(list...)))
			}
		}
	}
	quote := m.literal(`"`)
	if hi >= 0 && lo > hi {
		return rEmpty, nil
	}
	if len(parts) == 0 {
		return m.concat(m.repeat(m.char, lo, hi), quote), nil
	}
	// All parts up to the quote: a complement must not run past it.
	list := make([]rid, 0, len(parts)+1)
	bare := true
	for _, p := range parts {
		if m.nodes[p].kind == kNot {
			if x := m.nodes[p].a; m.finite(x) && m.nodes[x].kind != kEps {
				list = append(list, p) // of literals with their quotes
			} else {
				list = append(list, m.not(m.concat(x, quote)))
			}
			continue
		}
		bare = false
		list = append(list, m.concat(p, quote))
	}
	if bare || lo > 0 || hi >= 0 {
		list = append(list, m.concat(m.repeat(m.shortChar, lo, hi), quote))
	}
	return m.and(list...), nil
}

func (b *builder) sizes(f *flat, least, most string) (lo, hi int, err error) {
	hi = -1
	for _, n := range f.nodes {
		for _, k := range [...]string{least, most} {
			x := n.v.get(k)
			if x == nil {
				continue
			}
			c, ok := x.count()
			if !ok {
				return 0, 0, b.fail(n, k, "'%s' must be a whole number", k)
			}
			if k == least {
				lo = max(lo, c)
			} else if hi < 0 || c < hi {
				hi = c
			}
		}
	}
	return lo, hi, nil
}

// itemAt are the schemas of the item at i.
func (b *builder) itemAt(f *flat, i int) (list []*snode, err error) {
	for _, n := range f.nodes {
		prefix, rest := n.v.get("prefixItems"), n.v.get("items")
		where, restAt := "prefixItems", "items"
		if rest != nil && rest.kind == jArray {
			prefix, rest, where, restAt = rest, n.v.get("additionalItems"), "items", "additionalItems"
		}
		switch {
		case prefix != nil && prefix.kind != jArray:
			return nil, b.fail(n, where, "'%s' must be a list of schemas", where)
		case prefix != nil && i < len(prefix.list):
			list = append(list, b.child(n, prefix.list[i], where, strconv.Itoa(i)))
		case rest != nil:
			list = append(list, b.child(n, rest, restAt))
		}
	}
	return list, nil
}

func (b *builder) array(f *flat) (eid, error) {
	m := b.m
	lo, hi, err := b.sizes(f, "minItems", "maxItems")
	if err != nil {
		return eFail, err
	}
	fixed := 0
	for _, n := range f.nodes {
		for _, k := range [...]string{"prefixItems", "items"} {
			if x := n.v.get(k); x != nil && x.kind == jArray {
				fixed = max(fixed, len(x.list))
			}
		}
		if x := n.v.get("uniqueItems"); x != nil && (x.kind != jBool || x.b) && (hi < 0 || hi > 1) {
			return eFail, b.fail(n, "uniqueItems", "'uniqueItems' is not supported")
		}
		if x := n.v.get("contains"); x != nil {
			if least := n.v.get("minContains"); least != nil && least.s == "0" && n.v.get("maxContains") == nil {
				continue
			}
			return eFail, b.fail(n, "contains", "'contains' is not supported")
		}
	}
	if hi >= 0 && lo > hi {
		return eFail, nil
	}
	after, err := b.itemAt(f, fixed)
	if err != nil {
		return eFail, err
	}
	var rest eid
	if hi < 0 || hi > fixed {
		if rest, err = b.compile(after); err != nil {
			return eFail, err
		}
	} else {
		rest = eFail
	}
	comma := m.lex(m.concat(b.ws, m.literal(","), b.ws))
	blank := m.lex(b.ws)
	upTo := func(n int) int {
		if hi < 0 {
			return -1
		}
		return max(0, hi-n)
	}
	// from the last fixed item to the first
	var e eid
	if fixed == 0 {
		e = m.seq(rest, m.times(m.seq(comma, rest), max(0, lo-1), upTo(1)))
		if hi == 0 {
			e = eFail
		}
		if lo == 0 {
			e = m.maybe(m.seq(e, blank))
		} else {
			e = m.seq(e, blank)
		}
	} else {
		e = m.times(m.seq(comma, rest), max(0, lo-fixed), upTo(fixed))
		for i := fixed - 1; i >= 0; i-- {
			item := eFail
			if hi < 0 || i < hi {
				list, err := b.itemAt(f, i)
				if err != nil {
					return eFail, err
				}
				if item, err = b.compile(list); err != nil {
					return eFail, err
				}
			}
			if i > 0 {
				e = m.seq(comma, item, e)
			} else {
				e = m.seq(item, e, blank)
			}
			if i >= lo {
				e = m.maybe(e)
			}
		}
	}
	return m.seq(m.text("["), blank, e, m.text("]")), nil
}

// keyed is what the schemas say of one name, or of all names that a set of patterns
// tells apart.
func (b *builder) keyed(f *flat, name string, known bool, matched map[*jval]bool) (list []*snode, err error) {
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
					r, err := b.pattern(n, "patternProperties", k)
					if err != nil {
						return nil, err
					}
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
	return list, nil
}

func isFalse(list []*snode) bool {
	return slices.ContainsFunc(list, func(n *snode) bool { return n.v.kind == jBool && !n.v.b })
}

// class is a set of keys that the same patterns match.
type class struct {
	key     rid
	matched map[*jval]bool
}

func (b *builder) object(f *flat) (eid, error) {
	m := b.m
	lo, hi, err := b.sizes(f, "minProperties", "maxProperties")
	if err != nil {
		return eFail, err
	}
	var names []string
	seen, required := map[string]bool{}, map[string]bool{}
	for _, n := range f.nodes {
		for _, k := range [...]string{"properties", "patternProperties"} {
			if x := n.v.get(k); x != nil && x.kind != jObject {
				return eFail, b.fail(n, k, "'%s' must be an object", k)
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
			return eFail, b.fail(n, "required", "'required' must be a list of names")
		}
		for _, k := range x.list {
			if k.kind != jString {
				return eFail, b.fail(n, "required", "'required' must be a list of names")
			}
			required[k.s] = true
			if !seen[k.s] {
				seen[k.s] = true
				names = append(names, k.s)
			}
		}
	}
	if hi >= 0 && (lo > hi || len(required) > hi) {
		return eFail, nil
	}
	v := &validator{b: b}
	nameSchemas := b.collect(f, "propertyNames")
	type property struct {
		key   string
		value eid
	}
	var props []property
	for _, name := range names {
		list, err := b.keyed(f, name, true, nil)
		if err != nil {
			return eFail, err
		}
		ok := !isFalse(list)
		for _, s := range nameSchemas {
			fits, err := v.valid(s, jStr(name), 0)
			if err != nil {
				return eFail, err
			}
			ok = ok && fits
		}
		if !ok {
			if required[name] {
				return eFail, nil
			}
			continue
		}
		e, err := b.compile(list)
		if err != nil {
			return eFail, err
		}
		if e == eFail {
			if required[name] {
				return eFail, nil
			}
			continue
		}
		props = append(props, property{name, e})
	}
	others, err := b.otherKeys(f, names, nameSchemas)
	if err != nil {
		return eFail, err
	}
	colon := m.concat(b.ws, m.literal(":"), b.ws)
	comma := m.concat(b.ws, m.literal(","), b.ws)
	blank := m.lex(b.ws)
	var first, next []eid // another member
	for _, c := range others {
		list, err := b.keyed(f, "", false, c.matched)
		if err != nil {
			return eFail, err
		}
		if isFalse(list) {
			continue
		}
		e, err := b.compile(list)
		if err != nil {
			return eFail, err
		}
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
		return m.seq(m.text("{"), blank, m.members(o), blank, m.text("}")), nil
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
		return eFail, b.fail(f.nodes[0], "minProperties", "the number of properties is too large to be counted")
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
		return m.seq(m.text("{"), blank, m.text("}")), nil
	}
	return m.seq(m.text("{"), blank, body, blank, m.text("}")), nil
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
func (b *builder) otherKeys(f *flat, names []string, nameSchemas []*snode) ([]class, error) {
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
		return nil, nil
	}
	if len(names) == 0 && patterns == 0 && len(nameSchemas) == 0 {
		return []class{{key: m.concat(m.star(m.char), quote)}}, nil
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
		flats, err := b.apply([]*flat{{types: tString}}, s)
		if err != nil {
			return nil, err
		}
		var ways []rid
		for _, g := range flats {
			r, err := b.nameBody(g)
			if err != nil {
				return nil, err
			}
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
			r, err := b.pattern(n, "patternProperties", k)
			if err != nil {
				return nil, err
			}
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
				return nil, b.fail(n, "patternProperties", "the patterns overlap in more than 64 ways")
			}
		}
	}
	return slices.DeleteFunc(classes, func(c class) bool { return !m.alive(c.key) }), nil
}

// nameBody is stringBody, for names: an enumeration is one of strings.
func (b *builder) nameBody(f *flat) (rid, error) {
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
					var err error
					if ok, err = v.valid(o, s, 0); err != nil {
						return rEmpty, err
					}
				}
				if ok {
					out = append(out, b.m.literal(jsonSpelling(s.s)+`"`))
				}
			}
			return b.m.or(out...), nil
		}
	}
	return b.stringBody(f)
}

// validator judges values that a schema itself names, in enumerations.
type validator struct {
	b     *builder
	steps int
}

func (v *validator) valid(n *snode, x *jval, depth int) (bool, error) {
	if v.steps++; depth > 100 || v.steps > 1<<20 {
		panic(tooLarge{"its enumerations take too many steps to judge"})
	}
	if n.v.kind == jBool {
		return n.v.b, nil
	}
	if n.v.kind != jObject {
		return false, v.b.fail(n, "", "a schema must be an object or a boolean")
	}
	if ref := n.v.get("$ref"); ref != nil {
		t, err := v.b.target(n, ref.s)
		if err != nil {
			return false, err
		}
		ok, err := v.valid(t, x, depth+1)
		if !ok || err != nil || n.old {
			return ok, err
		}
	}
	t, err := v.b.typesOf(n)
	if err != nil {
		return false, err
	}
	have := kindTypes[x.kind]
	if x.kind == jNumber {
		have = tFraction
		if r, ok := x.number(); ok && r.IsInt() {
			have = tInteger
		}
	}
	if t&have == 0 {
		return false, nil
	}
	for _, k := range n.v.keys {
		ok, err := v.keyword(n, k, n.v.at[k], x, depth)
		if !ok || err != nil {
			return false, err
		}
	}
	return true, nil
}

func (v *validator) keyword(n *snode, k string, s, x *jval, depth int) (bool, error) {
	b := v.b
	some := func(list []*snode) (int, error) {
		c := 0
		for _, o := range list {
			ok, err := v.valid(o, x, depth+1)
			if err != nil {
				return 0, err
			}
			if ok {
				c++
			}
		}
		return c, nil
	}
	size, _ := s.count()
	runes := 0
	for range x.s {
		runes++
	}
	switch k {
	case "enum":
		return slices.ContainsFunc(s.list, x.same), nil
	case "const":
		return s.same(x), nil
	case "allOf":
		c, err := some(b.children(n, k, s))
		return c == len(s.list), err
	case "anyOf":
		c, err := some(b.children(n, k, s))
		return c > 0, err
	case "oneOf":
		c, err := some(b.children(n, k, s))
		return c == 1, err
	case "not":
		ok, err := v.valid(b.child(n, s, k), x, depth+1)
		return !ok, err
	case "if":
		ok, err := v.valid(b.child(n, s, k), x, depth+1)
		if err != nil {
			return false, err
		}
		branch := "then"
		if !ok {
			branch = "else"
		}
		if o := n.v.get(branch); o != nil {
			return v.valid(b.child(n, o, branch), x, depth+1)
		}
		return true, nil
	}
	switch x.kind {
	case jString:
		switch k {
		case "minLength":
			return runes >= size, nil
		case "maxLength":
			return runes <= size, nil
		case "pattern", "\x00pattern":
			r, err := b.pattern(n, k, s.s)
			return err == nil && b.m.matches(r, jsonSpelling(x.s)) == (k == "pattern"), err
		case "format":
			r, err := b.format(n, s.s)
			return err == nil && b.m.matches(r, jsonSpelling(x.s)), err
		case "\x00strings":
			return !slices.ContainsFunc(s.list, x.same), nil
		}
	case jNumber:
		r, ok := x.number()
		limit, also := s.number()
		if !ok || !also {
			return true, nil
		}
		open := func(k string) bool { o := n.v.get(k); return o != nil && o.kind == jBool && o.b }
		c := r.Cmp(limit)
		switch k {
		case "minimum":
			return c > 0 || c == 0 && !open("exclusiveMinimum"), nil
		case "maximum":
			return c < 0 || c == 0 && !open("exclusiveMaximum"), nil
		case "exclusiveMinimum":
			return c > 0, nil
		case "exclusiveMaximum":
			return c < 0, nil
		case "multipleOf":
			return limit.Sign() > 0 && new(big.Rat).Quo(r, limit).IsInt(), nil
		}
	case jArray:
		switch k {
		case "minItems":
			return len(x.list) >= size, nil
		case "maxItems":
			return len(x.list) <= size, nil
		case "items", "prefixItems", "additionalItems":
			f := &flat{nodes: []*snode{n}}
			for i, e := range x.list {
				list, err := b.itemAt(f, i)
				if err != nil {
					return false, err
				}
				for _, o := range list {
					if ok, err := v.valid(o, e, depth+1); !ok || err != nil {
						return false, err
					}
				}
			}
		case "uniqueItems", "contains":
			return false, b.fail(n, k, "'%s' is not supported", k)
		}
	case jObject:
		switch k {
		case "minProperties":
			return len(x.keys) >= size, nil
		case "maxProperties":
			return len(x.keys) <= size, nil
		case "required":
			for _, r := range s.list {
				if x.at[r.s] == nil {
					return false, nil
				}
			}
		case "properties", "patternProperties", "additionalProperties":
			f := &flat{nodes: []*snode{n}}
			for _, name := range x.keys {
				list, err := b.keyed(f, name, true, nil)
				if err != nil {
					return false, err
				}
				for _, o := range list {
					if ok, err := v.valid(o, x.at[name], depth+1); !ok || err != nil {
						return false, err
					}
				}
			}
		case "propertyNames":
			for _, name := range x.keys {
				if ok, err := v.valid(b.child(n, s, k), jStr(name), depth+1); !ok || err != nil {
					return false, err
				}
			}
		case "dependentRequired", "dependentSchemas", "dependencies":
			return false, b.fail(n, k, "'%s' beside an enumeration is not supported", k)
		}
	}
	return true, nil
}

package grammar

import (
	"strconv"

	"github.com/shoal-llm/shoal/internal/text/grammar/regex"
)

// value returns the expression of the values that the schemas of f allow.
func (b *builder) value(f *conjunction) exprID {
	m := b.m
	for _, n := range f.nodes {
		for _, k := range [...]string{"enum", "const"} {
			if n.v.get(k) != nil {
				return b.literals(f, n, k)
			}
		}
	}
	var ways []exprID
	if f.types&tNull != 0 {
		ways = append(ways, m.text("null"))
	}
	if f.types&tBool != 0 {
		ways = append(ways, m.lex(m.Or(m.Literal("true"), m.Literal("false"))))
	}
	if f.types&(tInteger|tFraction) != 0 {
		e := b.numeric(f)
		ways = append(ways, e)
	}
	if f.types&tString != 0 {
		r := b.stringBody(f)
		ways = append(ways, m.lex(m.Concat(m.Literal(`"`), r)))
	}
	if f.types&tArray != 0 {
		e := b.array(f)
		ways = append(ways, e)
	}
	if f.types&tObject != 0 {
		e := b.object(f)
		ways = append(ways, e)
	}
	return m.alt(ways...)
}

// literals returns the values of an enumeration that all other schemas allow.
func (b *builder) literals(f *conjunction, n *schemaNode, k string) exprID {
	list := []*jsonValue{n.v.get(k)}
	if k == "enum" {
		list = list[0].list
	}
	var words []regex.ID
	var ways []exprID
	v := &validator{b: b}
	for _, x := range list {
		ok := true
		for _, o := range f.nodes {
			if o == n && len(f.nodes) == 1 && len(n.v.keys) == 1 {
				continue
			}
			ok = v.valid(o, x, 0)
			if !ok {
				break
			}
		}
		switch {
		case !ok:
		case x.kind < jArray:
			words = append(words, b.scalar(x, f.types))
		default:
			ways = append(ways, b.constant(x))
		}
	}
	return b.m.alt(append(ways, b.m.lex(b.m.Or(words...)))...)
}

// scalar returns the spelling of a value: a string in its shortest form, and a number that must be
// an integer without fraction or exponent.
func (b *builder) scalar(x *jsonValue, t types) regex.ID {
	m := b.m
	switch x.kind {
	case jNull:
		return m.Literal("null")
	case jBool:
		return m.Literal(strconv.FormatBool(x.b))
	case jString:
		return m.Literal(`"` + regex.JSONSpelling(x.s) + `"`)
	}
	if r, ok := x.number(); ok && r.IsInt() && t&tFraction == 0 {
		return m.Literal(r.Num().String())
	}
	return m.Literal(x.s)
}

func (b *builder) constant(x *jsonValue) exprID {
	m := b.m
	blank := m.lex(b.ws)
	sep := m.lex(m.Concat(b.ws, m.Literal(","), b.ws))
	var list []exprID
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
			list = append(list, m.lex(m.Concat(m.Literal(`"`+regex.JSONSpelling(k)+`"`), b.ws, m.Literal(":"), b.ws)), b.constant(x.at[k]))
		}
		if len(x.keys) > 0 {
			list = append(list, blank)
		}
		return m.seq(append(list, m.text("}"))...)
	}
	return m.lex(b.scalar(x, allTypes))
}

func (b *builder) numeric(f *conjunction) exprID {
	c := regex.Numbers{Integer: f.types&tFraction == 0}
	for _, n := range f.nodes {
		if r, ok := regex.NumberFormats[n.v.get("format").text()]; ok {
			c.AtLeast(regex.Bound{At: r[0]})
			c.AtMost(regex.Bound{At: r[1]})
		} else if name := n.v.get("format").text(); name != "" && regex.Formats[name] == "" {
			b.annotation(n, "format")
		}
		for _, k := range [...]string{"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"} {
			x := n.v.get(k)
			if x == nil || x.kind == jBool && k[0] == 'e' {
				continue
			}
			r, ok := x.number()
			if !ok {
				panic(b.fail(n, k, "'%s' must be a number of ordinary size", k))
			}
			open := func(k string) bool {
				o := n.v.get(k)
				return o != nil && o.kind == jBool && o.b
			}
			switch k {
			case "minimum":
				c.AtLeast(regex.Bound{At: r, Open: open("exclusiveMinimum")})
			case "maximum":
				c.AtMost(regex.Bound{At: r, Open: open("exclusiveMaximum")})
			case "exclusiveMinimum":
				c.AtLeast(regex.Bound{At: r, Open: true})
			case "exclusiveMaximum":
				c.AtMost(regex.Bound{At: r, Open: true})
			default:
				if r.Sign() <= 0 {
					panic(b.fail(n, k, "'multipleOf' must be more than 0"))
				}
				c.Steps = append(c.Steps, r)
			}
		}
	}
	if c.Integer && len(c.Steps) == 0 {
		c.Within(regex.NumberFormats["int64"])
	}
	if c.Lo != nil && c.Hi != nil && c.Lo.At.Cmp(c.Hi.At) > 0 {
		return eFail
	}
	r, bad := b.m.Number(&c)
	if bad != "" {
		panic(b.fail(f.nodes[0], bad, "'%s' has a value that cannot be enforced", bad))
	}
	return b.m.lex(r)
}

// pattern compiles a pattern that a string must contain.
func (b *builder) pattern(n *schemaNode, k, text string) regex.ID {
	key := "p" + text
	if r, ok := b.memo[key]; ok {
		return r
	}
	r, err := b.m.Pattern(text, "", regex.JSONText(b.m.Store), false)
	if err != nil {
		panic(b.fail(n, k, "%v", err))
	}
	b.memo[key] = r
	return r
}

// format compiles the pattern of a string format. An unknown format is an annotation.
func (b *builder) format(n *schemaNode, name string) regex.ID {
	text, ok := regex.Formats[name]
	if !ok {
		b.annotation(n, "format")
		return regex.All
	}
	key := "f" + name
	if r, ok := b.memo[key]; ok {
		return r
	}
	r, err := b.m.Pattern(text, "", regex.JSONText(b.m.Store), true)
	if err != nil {
		panic(b.fail(n, "format", "%v", err))
	}
	b.memo[key] = r
	return r
}

// stringBody matches the rest of a string after its opening quote, including the closing quote.
func (b *builder) stringBody(f *conjunction) regex.ID {
	m := b.m
	lo, hi := 0, -1
	var parts []regex.ID
	for _, n := range f.nodes {
		for _, k := range n.v.keys {
			x := n.v.at[k]
			switch k {
			case "minLength", "maxLength":
				c, ok := x.count()
				if !ok {
					panic(b.fail(n, k, "'%s' must be a whole number", k))
				}
				if k == "minLength" {
					lo = max(lo, c)
				} else if hi < 0 || c < hi {
					hi = c
				}
			case "pattern", "\x00pattern":
				if x.kind != jString {
					panic(b.fail(n, k, "'pattern' must be a string"))
				}
				r := b.pattern(n, "pattern", x.s)
				if k != "pattern" {
					r = m.Not(r)
				}
				parts = append(parts, r)
			case "format":
				if x.kind != jString {
					panic(b.fail(n, k, "'format' must be a string"))
				}
				if r := b.format(n, x.s); r != regex.All {
					parts = append(parts, r)
				}
			case "\x00strings":
				var list []regex.ID
				for _, s := range x.list {
					list = append(list, m.Literal(regex.JSONSpelling(s.s)+`"`))
				}
				parts = append(parts, m.Not(m.Or(list...)))
			}
		}
	}
	quote := m.Literal(`"`)
	if hi >= 0 && lo > hi {
		return regex.Empty
	}
	if len(parts) == 0 {
		return m.Concat(m.Repeat(m.char, lo, hi), quote)
	}
	// All parts include the closing quote, so that a complement does not extend beyond it.
	list := make([]regex.ID, 0, len(parts)+1)
	bare := true
	for _, p := range parts {
		if x, ok := m.Complemented(p); ok {
			if m.Finite(x) && x != regex.Epsilon {
				list = append(list, p) // of literals with their quotes
			} else {
				list = append(list, m.Not(m.Concat(x, quote)))
			}
			continue
		}
		bare = false
		list = append(list, m.Concat(p, quote))
	}
	if bare || lo > 0 || hi >= 0 {
		list = append(list, m.Concat(m.Repeat(m.shortChar, lo, hi), quote))
	}
	return m.And(list...)
}

func (b *builder) sizes(f *conjunction, least, most string) (lo, hi int) {
	hi = -1
	for _, n := range f.nodes {
		for _, k := range [...]string{least, most} {
			x := n.v.get(k)
			if x == nil {
				continue
			}
			c, ok := x.count()
			if !ok {
				panic(b.fail(n, k, "'%s' must be a whole number", k))
			}
			if k == least {
				lo = max(lo, c)
			} else if hi < 0 || c < hi {
				hi = c
			}
		}
	}
	return lo, hi
}

// itemAt returns the schemas of the item at i.
func (b *builder) itemAt(f *conjunction, i int) (list []*schemaNode) {
	for _, n := range f.nodes {
		prefix, rest := n.v.get("prefixItems"), n.v.get("items")
		where, restAt := "prefixItems", "items"
		if rest != nil && rest.kind == jArray {
			prefix, rest, where, restAt = rest, n.v.get("additionalItems"), "items", "additionalItems"
		}
		switch {
		case prefix != nil && prefix.kind != jArray:
			panic(b.fail(n, where, "'%s' must be a list of schemas", where))
		case prefix != nil && i < len(prefix.list):
			list = append(list, b.child(n, prefix.list[i], where, strconv.Itoa(i)))
		case rest != nil:
			list = append(list, b.child(n, rest, restAt))
		}
	}
	return list
}

func (b *builder) array(f *conjunction) exprID {
	m := b.m
	lo, hi := b.sizes(f, "minItems", "maxItems")
	fixed := 0
	for _, n := range f.nodes {
		for _, k := range [...]string{"prefixItems", "items"} {
			if x := n.v.get(k); x != nil && x.kind == jArray {
				fixed = max(fixed, len(x.list))
			}
		}
		if x := n.v.get("uniqueItems"); x != nil && (x.kind != jBool || x.b) && (hi < 0 || hi > 1) {
			panic(b.fail(n, "uniqueItems", "'uniqueItems' is not supported"))
		}
		if x := n.v.get("contains"); x != nil {
			if least := n.v.get("minContains"); least != nil && least.s == "0" && n.v.get("maxContains") == nil {
				continue
			}
			panic(b.fail(n, "contains", "'contains' is not supported"))
		}
	}
	if hi >= 0 && lo > hi {
		return eFail
	}
	after := b.itemAt(f, fixed)
	var rest exprID
	if hi < 0 || hi > fixed {
		rest = b.compile(after)
	} else {
		rest = eFail
	}
	comma := m.lex(m.Concat(b.ws, m.Literal(","), b.ws))
	blank := m.lex(b.ws)
	upTo := func(n int) int {
		if hi < 0 {
			return -1
		}
		return max(0, hi-n)
	}
	// from the last fixed item to the first
	var e exprID
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
				list := b.itemAt(f, i)
				item = b.compile(list)
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
	return m.seq(m.text("["), blank, e, m.text("]"))
}

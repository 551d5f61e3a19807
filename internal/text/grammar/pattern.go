package grammar

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/shoal-llm/shoal/internal/attempt"
)

// Patterns are the regular part of the expressions of ECMA 262 (JSON Schema), Python and Rust.
// Groups do not capture, and lazy quantifiers match like greedy ones. Anchors and look-aheads are
// supported wherever the rest of the pattern extends to the end of the text. Look-behind, back
// references and word boundaries are refused.

type pkind uint8

const (
	pSeq pkind = iota
	pAlt
	pClass
	pRepeat
	pStart
	pEnd
	pLook
)

type patternNode struct {
	kind   pkind
	list   []*patternNode
	set    runes
	lo, hi int
	not    bool // a negative look-ahead
	marks  bool // contains an anchor or look-ahead
}

type patternParser struct {
	cursor
	fold bool // flag i
	dot  bool // flag s: a dot matches newlines
	ext  bool // flag x: white space is ignored
	size int
}

const (
	maxPatternDepth  = 200
	maxPatternSize   = 1 << 16
	maxPatternRepeat = 1 << 20
	maxPatternWays   = 256
)

func parsePattern(s, flags string) *patternNode {
	p := &patternParser{cursor: cursor{s: s}}
	for _, f := range flags {
		switch f {
		case 'i':
			p.fold = true
		case 's':
			p.dot = true
		case 'x':
			p.ext = true
		case 'u', 'm', 'l', 'g':
		default:
			panic(p.fail("the flag %q is not supported", f))
		}
	}
	if len(s) > maxPatternSize {
		panic(p.fail("it is longer than %d bytes", maxPatternSize))
	}
	if !utf8.ValidString(s) {
		panic(p.fail("it is not valid UTF-8"))
	}
	n := p.alt()
	if p.at < len(s) {
		panic(p.fail("a ')' too many"))
	}
	return n
}

func (p *patternParser) fail(format string, args ...any) attempt.Failure {
	return refused("regular expression %.80q, byte %d: %s", p.s, p.at, fmt.Sprintf(format, args...))
}

func (p *patternParser) rune() rune {
	r, n := utf8.DecodeRuneInString(p.s[p.at:])
	p.at += n
	return r
}

func (p *patternParser) alt() *patternNode {
	if p.depth++; p.depth > maxPatternDepth {
		panic(p.fail("it is nested deeper than %d", maxPatternDepth))
	}
	defer func() { p.depth-- }()
	fold, dot, ext := p.fold, p.dot, p.ext
	out := &patternNode{kind: pAlt}
	for {
		seq := p.seq()
		out.list = append(out.list, seq)
		out.marks = out.marks || seq.marks
		if !p.eat("|") {
			break
		}
	}
	p.fold, p.dot, p.ext = fold, dot, ext
	if len(out.list) == 1 {
		return out.list[0]
	}
	return out
}

func (p *patternParser) seq() *patternNode {
	out := &patternNode{kind: pSeq}
	for p.more() && p.peek() != '|' && p.peek() != ')' {
		if p.ext && strings.IndexByte(" \t\r\n", p.peek()) >= 0 {
			p.at++
			continue
		}
		item := p.atom()
		if item == nil {
			continue
		}
		item = p.quantified(item)
		out.list = append(out.list, item)
		out.marks = out.marks || item.marks
	}
	return out
}

func (p *patternParser) quantified(item *patternNode) *patternNode {
	for {
		lo, hi, start := 0, -1, p.at
		switch {
		case p.eat("*"):
		case p.eat("+"):
			lo = 1
		case p.eat("?"):
			hi = 1
		case p.peek() == '{':
			var ok bool
			if lo, hi, ok = p.bounds(); !ok {
				p.at = start
				return item
			}
			if lo > maxPatternRepeat || hi > maxPatternRepeat || hi >= 0 && lo > hi {
				panic(p.fail("the repetition {%d,%d} is out of range", lo, hi))
			}
		default:
			return item
		}
		if item.marks {
			panic(p.fail("a repeated anchor or look-ahead is not supported"))
		}
		if p.peek() == '+' && hi != 1 && lo <= 1 && p.s[start] != '{' {
			panic(p.fail("possessive quantifiers are not supported"))
		}
		p.eat("?") // lazy
		item = &patternNode{kind: pRepeat, list: []*patternNode{item}, lo: lo, hi: hi}
	}
}

func (p *patternParser) bounds() (lo, hi int, ok bool) {
	end := strings.IndexByte(p.s[p.at:], '}')
	if end < 0 || end > 24 {
		return 0, 0, false
	}
	a, b, two := strings.Cut(p.s[p.at+1:p.at+end], ",")
	a, b = strings.TrimSpace(a), strings.TrimSpace(b)
	var err error
	if a == "" && two && b != "" {
		a = "0"
	}
	if lo, err = strconv.Atoi(a); err != nil || lo < 0 {
		return 0, 0, false
	}
	hi = lo
	if two {
		hi = -1
		if b != "" {
			if hi, err = strconv.Atoi(b); err != nil || hi < 0 {
				return 0, 0, false
			}
		}
	}
	p.at += end + 1
	return lo, hi, true
}

func (p *patternParser) atom() *patternNode {
	if p.size++; p.size > maxPatternSize {
		panic(p.fail("it is too large"))
	}
	switch p.peek() {
	case '(':
		return p.group()
	case '[':
		p.at++
		set := p.set()
		return p.class(set)
	case '.':
		p.at++
		if p.dot {
			return p.class(anyRune)
		}
		return p.class(anyRune.except(runes{{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}}))
	case '^':
		p.at++
		return &patternNode{kind: pStart, marks: true}
	case '$':
		p.at++
		return &patternNode{kind: pEnd, marks: true}
	case '*', '+', '?':
		panic(p.fail("nothing to repeat before %q", p.peek()))
	case '\\':
		p.at++
		return p.escape()
	}
	c := p.rune()
	return p.class(runes{{c, c}})
}

func (p *patternParser) class(set runes) *patternNode {
	if p.fold {
		set = set.folded()
	}
	return &patternNode{kind: pClass, set: set}
}

func (p *patternParser) group() *patternNode {
	p.at++
	look, not := false, false
	switch {
	case p.eat("?:"), p.eat("?>"):
	case p.eat("?="):
		look = true
	case p.eat("?!"):
		look, not = true, true
	case p.eat("?<="), p.eat("?<!"):
		panic(p.fail("look-behind is not supported"))
	case p.eat("?P<"), p.eat("?<"):
		end := strings.IndexByte(p.s[p.at:], '>')
		if end < 0 {
			panic(p.fail("the name of a group does not end"))
		}
		p.at += end + 1
	case p.eat("?"):
		off := false
		for p.more() && p.peek() != ')' && p.peek() != ':' {
			switch c := p.rune(); c {
			case '-':
				off = true
			case 'i':
				p.fold = !off
			case 's':
				p.dot = !off
			case 'x':
				p.ext = !off
			case 'u', 'm', 'a', 'U':
			default:
				panic(p.fail("the group (?%c is not supported", c))
			}
		}
		if p.eat(")") {
			return nil // flags for the rest of the enclosing group
		}
		p.eat(":")
	}
	n := p.alt()
	if !p.eat(")") {
		panic(p.fail("a group does not end"))
	}
	if look {
		return &patternNode{kind: pLook, list: []*patternNode{n}, not: not, marks: true}
	}
	return n
}

var (
	digits     = runes{{'0', '9'}}
	wordRunes  = runes{{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}}
	spaceRunes = runes{{'\t', '\r'}, {' ', ' '}, {0xA0, 0xA0}, {0x1680, 0x1680}, {0x2000, 0x200A}, {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000}, {0xFEFF, 0xFEFF}}
)

// shorthand parses the class that a letter after a backslash names.
func (p *patternParser) shorthand() (runes, bool) {
	switch p.peek() {
	case 'd', 'D', 'w', 'W', 's', 'S':
		c := p.peek()
		p.at++
		set := map[byte]runes{'d': digits, 'w': wordRunes, 's': spaceRunes}[c|0x20]
		if c < 'a' {
			set = anyRune.except(set)
		}
		return set, true
	case 'p', 'P':
		not := p.peek() == 'P'
		p.at++
		name := ""
		if p.eat("{") {
			end := strings.IndexByte(p.s[p.at:], '}')
			if end < 0 {
				panic(p.fail("the name of a property does not end"))
			}
			name = p.s[p.at : p.at+end]
			p.at += end + 1
		} else if p.more() {
			name = string(p.rune())
		}
		if strings.HasPrefix(name, "^") {
			name, not = name[1:], !not
		}
		if _, v, ok := strings.Cut(name, "="); ok {
			name = v
		}
		var set runes
		switch {
		case longCategories[name] != "":
			set = tableRunes(unicode.Categories[longCategories[name]])
		case unicode.Categories[name] != nil:
			set = tableRunes(unicode.Categories[name])
		case unicode.Scripts[name] != nil:
			set = tableRunes(unicode.Scripts[name])
		case unicode.Properties[name] != nil:
			set = tableRunes(unicode.Properties[name])
		case name == "Any":
			set = anyRune
		case name == "ASCII":
			set = runes{{0, 0x7F}}
		case name == "Alphabetic":
			set = append(append(append(tableRunes(unicode.L), tableRunes(unicode.Nl)...), tableRunes(unicode.Other_Alphabetic)...), runeRange{}).normal().except(runes{{0, 0}})
		case name == "Lowercase":
			set = append(tableRunes(unicode.Ll), tableRunes(unicode.Other_Lowercase)...).normal()
		case name == "Uppercase":
			set = append(tableRunes(unicode.Lu), tableRunes(unicode.Other_Uppercase)...).normal()
		default:
			panic(p.fail("the property %.40q is not known", name))
		}
		if not {
			set = anyRune.except(set)
		}
		return set, true
	}
	return nil, false
}

var longCategories = map[string]string{"Letter": "L", "Lowercase_Letter": "Ll", "Uppercase_Letter": "Lu", "Titlecase_Letter": "Lt", "Mark": "M", "Number": "N", "Decimal_Number": "Nd", "digit": "Nd", "Punctuation": "P", "punct": "P", "Symbol": "S", "Separator": "Z", "Space_Separator": "Zs", "Other": "C", "Control": "Cc"}

func (p *patternParser) escape() *patternNode {
	if !p.more() {
		panic(p.fail("a backslash at the end"))
	}
	if set, ok := p.shorthand(); ok {
		return p.class(set)
	}
	switch c := p.peek(); {
	case c == 'b', c == 'B':
		panic(p.fail("word boundaries are not supported"))
	case c == 'A':
		p.at++
		return &patternNode{kind: pStart, marks: true}
	case c == 'z', c == 'Z':
		p.at++
		return &patternNode{kind: pEnd, marks: true}
	case c >= '1' && c <= '9', c == 'k':
		panic(p.fail("back references are not supported"))
	}
	c := p.escaped()
	return p.class(runes{{c, c}})
}

// escaped parses one character after a backslash.
func (p *patternParser) escaped() rune {
	if !p.more() {
		panic(p.fail("a backslash at the end"))
	}
	c := p.rune()
	hex := func(n int) rune {
		if p.at+n > len(p.s) {
			panic(p.fail("an escape is cut short"))
		}
		v, err := strconv.ParseUint(p.s[p.at:p.at+n], 16, 32)
		if err != nil {
			panic(p.fail("%.8q is not hexadecimal", p.s[p.at:p.at+n]))
		}
		p.at += n
		return rune(v)
	}
	switch c {
	case 'n':
		return '\n'
	case 'r':
		return '\r'
	case 't':
		return '\t'
	case 'f':
		return '\f'
	case 'v':
		return '\v'
	case 'a':
		return '\a'
	case 'e':
		return 0x1B
	case '0':
		return 0
	case 'c':
		if p.more() {
			return p.rune() & 31
		}
	case 'x':
		if p.peek() != '{' {
			return hex(2)
		}
		fallthrough
	case 'u':
		if p.eat("{") {
			end := strings.IndexByte(p.s[p.at:], '}')
			if end < 1 || end > 6 {
				panic(p.fail("an escape is cut short"))
			}
			v := hex(end)
			if v > unicode.MaxRune {
				panic(p.fail("%U is not a character", v))
			}
			p.at++
			return v
		}
		v := hex(4)
		if v >= 0xD800 && v < 0xDC00 && p.eat(`\u`) {
			low := hex(4)
			if low < 0xDC00 || low > 0xDFFF {
				panic(p.fail("an unpaired surrogate"))
			}
			return (v-0xD800)<<10 + (low - 0xDC00) + 0x10000
		}
		return v
	case 'U':
		v := hex(8)
		if v < 0 || v > unicode.MaxRune {
			panic(p.fail("%U is not a character", v))
		}
		return v
	}
	if c < utf8.RuneSelf && (unicode.IsLetter(c) || unicode.IsDigit(c)) {
		panic(p.fail("the escape \\%c is not supported", c))
	}
	return c
}

// set parses the rest of a class after its bracket.
func (p *patternParser) set() runes {
	not := p.eat("^")
	var out runes
	for first := true; ; first = false {
		if !p.more() {
			panic(p.fail("a class does not end"))
		}
		if p.peek() == ']' && (!first || strings.IndexByte(p.s[p.at+1:], ']') < 0) {
			p.at++
			break
		}
		if p.eat("[:") {
			end := strings.Index(p.s[p.at:], ":]")
			var named runes
			if end >= 0 {
				named = posixClass[p.s[p.at:p.at+end]]
			}
			if named == nil {
				panic(p.fail("a class inside a class is not supported"))
			}
			p.at += end + 2
			out = append(out, named...)
			continue
		}
		lo, set := p.member()
		if set != nil {
			out = append(out, set...)
			continue
		}
		hi := lo
		if p.peek() == '-' && p.at+1 < len(p.s) && p.s[p.at+1] != ']' {
			mark := p.at
			p.at++
			hi, set = p.member()
			if set != nil { // [a-\d]: the dash is literal
				p.at, hi = mark, lo
			} else if hi < lo {
				panic(p.fail("the range %q-%q is backwards", lo, hi))
			}
		}
		out = append(out, runeRange{lo, hi})
	}
	out = out.normal()
	if p.fold {
		out = out.folded()
	}
	if not {
		out = anyRune.except(out)
	}
	return out
}

var posixClass = map[string]runes{
	"alpha": {{'A', 'Z'}, {'a', 'z'}}, "digit": digits, "alnum": {{'0', '9'}, {'A', 'Z'}, {'a', 'z'}}, "upper": {{'A', 'Z'}}, "lower": {{'a', 'z'}},
	"space": {{'\t', '\r'}, {' ', ' '}}, "xdigit": {{'0', '9'}, {'A', 'F'}, {'a', 'f'}}, "word": wordRunes, "blank": {{'\t', '\t'}, {' ', ' '}},
	"punct": {{'!', '/'}, {':', '@'}, {'[', '`'}, {'{', '~'}}, "cntrl": {{0, 31}, {127, 127}}, "print": {{32, 126}}, "graph": {{33, 126}},
}

func (p *patternParser) member() (rune, runes) {
	if !p.eat(`\`) {
		if !p.more() {
			panic(p.fail("a class does not end"))
		}
		return p.rune(), nil
	}
	if set, ok := p.shorthand(); ok {
		return 0, set
	}
	if p.eat("b") {
		return '\b', nil
	}
	if p.eat("-") {
		return '-', nil
	}
	return p.escaped(), nil
}

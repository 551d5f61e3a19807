package regex

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
	set    Runes
	lo, hi int
	not    bool // a negative look-ahead
	marks  bool // contains an anchor or look-ahead
}

// Parser parses a pattern. Its flags are the flags of the current group.
type Parser struct {
	Cursor
	fold bool // flag i
	dot  bool // flag s: a dot matches newlines
	ext  bool // flag x: white space is ignored
	size int
}

const (
	MaxDepth       = 200
	maxPatternSize = 1 << 16
	MaxRepeat      = 1 << 20
	maxPatternWays = 256
)

func parsePattern(s, flags string) *patternNode {
	p := &Parser{Cursor: Cursor{Text: s}}
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
	if p.At < len(s) {
		panic(p.fail("a ')' too many"))
	}
	return n
}

// ParserAt returns a parser of the parts that other languages share with patterns: bounds of a
// repetition, escapes, characters.
func ParserAt(s string, at int) *Parser {
	return &Parser{Cursor: Cursor{Text: s, At: at}}
}

func wrong(format string, args ...any) attempt.Failure {
	return attempt.Failure{Err: fmt.Errorf(format, args...)}
}

func (p *Parser) fail(format string, args ...any) attempt.Failure {
	return wrong("regular expression %.80q, byte %d: %s", p.Text, p.At, fmt.Sprintf(format, args...))
}

// Rune reads the next character.
func (p *Parser) Rune() rune {
	r, n := utf8.DecodeRuneInString(p.Text[p.At:])
	p.At += n
	return r
}

func (p *Parser) alt() *patternNode {
	if p.Depth++; p.Depth > MaxDepth {
		panic(p.fail("it is nested deeper than %d", MaxDepth))
	}
	defer func() { p.Depth-- }()
	fold, dot, ext := p.fold, p.dot, p.ext
	out := &patternNode{kind: pAlt}
	for {
		seq := p.seq()
		out.list = append(out.list, seq)
		out.marks = out.marks || seq.marks
		if !p.Eat("|") {
			break
		}
	}
	p.fold, p.dot, p.ext = fold, dot, ext
	if len(out.list) == 1 {
		return out.list[0]
	}
	return out
}

func (p *Parser) seq() *patternNode {
	out := &patternNode{kind: pSeq}
	for p.More() && p.Peek() != '|' && p.Peek() != ')' {
		if p.ext && strings.IndexByte(" \t\r\n", p.Peek()) >= 0 {
			p.At++
			continue
		}
		if p.ext && p.Peek() == '#' { // a comment
			if end := strings.IndexByte(p.Text[p.At:], '\n'); end >= 0 {
				p.At += end
			} else {
				p.At = len(p.Text)
			}
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

func (p *Parser) quantified(item *patternNode) *patternNode {
	for {
		lo, hi, start := 0, -1, p.At
		switch {
		case p.Eat("*"):
		case p.Eat("+"):
			lo = 1
		case p.Eat("?"):
			hi = 1
		case p.Peek() == '{':
			var ok bool
			if lo, hi, ok = p.Bounds(); !ok {
				p.At = start
				return item
			}
			if lo > MaxRepeat || hi > MaxRepeat || hi >= 0 && lo > hi {
				panic(p.fail("the repetition {%d,%d} is out of range", lo, hi))
			}
		default:
			return item
		}
		if item.marks {
			panic(p.fail("a repeated anchor or look-ahead is not supported"))
		}
		if p.Peek() == '+' && hi != 1 && lo <= 1 && p.Text[start] != '{' {
			panic(p.fail("possessive quantifiers are not supported"))
		}
		p.Eat("?") // lazy
		item = &patternNode{kind: pRepeat, list: []*patternNode{item}, lo: lo, hi: hi}
	}
}

// Bounds parses the bounds {lo,hi} of a repetition. hi is -1 without an upper bound. ok is false if
// the text at the cursor has another form.
func (p *Parser) Bounds() (lo, hi int, ok bool) {
	end := strings.IndexByte(p.Text[p.At:], '}')
	if end < 0 || end > 24 {
		return 0, 0, false
	}
	a, b, two := strings.Cut(p.Text[p.At+1:p.At+end], ",")
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
	p.At += end + 1
	return lo, hi, true
}

func (p *Parser) atom() *patternNode {
	if p.size++; p.size > maxPatternSize {
		panic(p.fail("it is too large"))
	}
	switch p.Peek() {
	case '(':
		return p.group()
	case '[':
		p.At++
		set := p.set()
		return p.class(set)
	case '.':
		p.At++
		if p.dot {
			return p.class(AnyRune)
		}
		return p.class(AnyRune.Except(Runes{{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}}))
	case '^':
		p.At++
		return &patternNode{kind: pStart, marks: true}
	case '$':
		p.At++
		return &patternNode{kind: pEnd, marks: true}
	case '*', '+', '?':
		panic(p.fail("nothing to repeat before %q", p.Peek()))
	case '\\':
		p.At++
		return p.escape()
	}
	c := p.Rune()
	return p.class(Runes{{c, c}})
}

func (p *Parser) class(set Runes) *patternNode {
	if p.fold {
		set = set.Folded()
	}
	return &patternNode{kind: pClass, set: set}
}

func (p *Parser) group() *patternNode {
	p.At++
	look, not := false, false
	fold, dot, ext := p.fold, p.dot, p.ext
	switch {
	case p.Eat("?:"), p.Eat("?>"):
	case p.Eat("?="):
		look = true
	case p.Eat("?!"):
		look, not = true, true
	case p.Eat("?<="), p.Eat("?<!"):
		panic(p.fail("look-behind is not supported"))
	case p.Eat("?P<"), p.Eat("?<"):
		end := strings.IndexByte(p.Text[p.At:], '>')
		if end < 0 {
			panic(p.fail("the name of a group does not end"))
		}
		p.At += end + 1
	case p.Eat("?"):
		off := false
		for p.More() && p.Peek() != ')' && p.Peek() != ':' {
			switch c := p.Rune(); c {
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
		if p.Eat(")") {
			return nil // flags for the rest of the enclosing group
		}
		p.Eat(":")
	}
	n := p.alt()
	if !p.Eat(")") {
		panic(p.fail("a group does not end"))
	}
	p.fold, p.dot, p.ext = fold, dot, ext // the flags of (?i:...) end with it
	if look {
		return &patternNode{kind: pLook, list: []*patternNode{n}, not: not, marks: true}
	}
	return n
}

var (
	digits     = Runes{{'0', '9'}}
	wordRunes  = Runes{{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}}
	spaceRunes = Runes{{'\t', '\r'}, {' ', ' '}, {0xA0, 0xA0}, {0x1680, 0x1680}, {0x2000, 0x200A}, {0x2028, 0x2029}, {0x202F, 0x202F},
		{0x205F, 0x205F}, {0x3000, 0x3000}, {0xFEFF, 0xFEFF}}
)

// shorthand parses the class that a letter after a backslash names.
func (p *Parser) shorthand() (Runes, bool) {
	switch p.Peek() {
	case 'd', 'D', 'w', 'W', 's', 'S':
		c := p.Peek()
		p.At++
		set := map[byte]Runes{'d': digits, 'w': wordRunes, 's': spaceRunes}[c|0x20]
		if c < 'a' {
			set = AnyRune.Except(set)
		}
		return set, true
	case 'p', 'P':
		not := p.Peek() == 'P'
		p.At++
		name := ""
		if p.Eat("{") {
			end := strings.IndexByte(p.Text[p.At:], '}')
			if end < 0 {
				panic(p.fail("the name of a property does not end"))
			}
			name = p.Text[p.At : p.At+end]
			p.At += end + 1
		} else if p.More() {
			name = string(p.Rune())
		}
		if strings.HasPrefix(name, "^") {
			name, not = name[1:], !not
		}
		if _, v, ok := strings.Cut(name, "="); ok {
			name = v
		}
		var set Runes
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
			set = AnyRune
		case name == "ASCII":
			set = Runes{{0, 0x7F}}
		case name == "Alphabetic":
			set = append(append(append(tableRunes(unicode.L), tableRunes(unicode.Nl)...), tableRunes(unicode.Other_Alphabetic)...),
				runeRange{}).Normal().Except(Runes{{0, 0}})
		case name == "Lowercase":
			set = append(tableRunes(unicode.Ll), tableRunes(unicode.Other_Lowercase)...).Normal()
		case name == "Uppercase":
			set = append(tableRunes(unicode.Lu), tableRunes(unicode.Other_Uppercase)...).Normal()
		default:
			panic(p.fail("the property %.40q is not known", name))
		}
		if not {
			set = AnyRune.Except(set)
		}
		return set, true
	}
	return nil, false
}

var longCategories = map[string]string{"Letter": "L", "Lowercase_Letter": "Ll", "Uppercase_Letter": "Lu", "Titlecase_Letter": "Lt",
	"Mark": "M", "Number": "N", "Decimal_Number": "Nd", "digit": "Nd", "Punctuation": "P", "punct": "P", "Symbol": "S", "Separator": "Z",
	"Space_Separator": "Zs", "Other": "C", "Control": "Cc"}

func (p *Parser) escape() *patternNode {
	if !p.More() {
		panic(p.fail("a backslash at the end"))
	}
	if set, ok := p.shorthand(); ok {
		return p.class(set)
	}
	switch c := p.Peek(); {
	case c == 'b', c == 'B':
		panic(p.fail("word boundaries are not supported"))
	case c == 'A':
		p.At++
		return &patternNode{kind: pStart, marks: true}
	case c == 'z', c == 'Z':
		p.At++
		return &patternNode{kind: pEnd, marks: true}
	case c >= '1' && c <= '9', c == 'k':
		panic(p.fail("back references are not supported"))
	}
	c := p.Escaped()
	return p.class(Runes{{c, c}})
}

// Escaped parses one character after a backslash.
func (p *Parser) Escaped() rune {
	if !p.More() {
		panic(p.fail("a backslash at the end"))
	}
	c := p.Rune()
	hex := func(n int) rune {
		if p.At+n > len(p.Text) {
			panic(p.fail("an escape is cut short"))
		}
		v, err := strconv.ParseUint(p.Text[p.At:p.At+n], 16, 32)
		if err != nil {
			panic(p.fail("%.8q is not hexadecimal", p.Text[p.At:p.At+n]))
		}
		p.At += n
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
		if p.More() {
			return p.Rune() & 31
		}
	case 'x':
		if p.Peek() != '{' {
			return hex(2)
		}
		fallthrough
	case 'u':
		if p.Eat("{") {
			end := strings.IndexByte(p.Text[p.At:], '}')
			if end < 1 || end > 6 {
				panic(p.fail("an escape is cut short"))
			}
			v := hex(end)
			if v > unicode.MaxRune {
				panic(p.fail("%U is not a character", v))
			}
			p.At++
			return v
		}
		v := hex(4)
		if v >= 0xD800 && v < 0xDC00 && p.Eat(`\u`) {
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
func (p *Parser) set() Runes {
	not := p.Eat("^")
	var out Runes
	for first := true; ; first = false {
		if !p.More() {
			panic(p.fail("a class does not end"))
		}
		if p.Peek() == ']' && (!first || strings.IndexByte(p.Text[p.At+1:], ']') < 0) {
			p.At++
			break
		}
		if p.Eat("[:") {
			end := strings.Index(p.Text[p.At:], ":]")
			var named Runes
			if end >= 0 {
				named = posixClass[p.Text[p.At:p.At+end]]
			}
			if named == nil {
				panic(p.fail("a class inside a class is not supported"))
			}
			p.At += end + 2
			out = append(out, named...)
			continue
		}
		lo, set := p.member()
		if set != nil {
			out = append(out, set...)
			continue
		}
		hi := lo
		if p.Peek() == '-' && p.At+1 < len(p.Text) && p.Text[p.At+1] != ']' {
			mark := p.At
			p.At++
			hi, set = p.member()
			if set != nil { // [a-\d]: the dash is literal
				p.At, hi = mark, lo
			} else if hi < lo {
				panic(p.fail("the range %q-%q is backwards", lo, hi))
			}
		}
		out = append(out, runeRange{lo, hi})
	}
	out = out.Normal()
	if p.fold {
		out = out.Folded()
	}
	if not {
		out = AnyRune.Except(out)
	}
	return out
}

var posixClass = map[string]Runes{
	"alpha": {{'A', 'Z'}, {'a', 'z'}}, "digit": digits, "alnum": {{'0', '9'}, {'A', 'Z'}, {'a', 'z'}},
	"upper": {{'A', 'Z'}}, "lower": {{'a', 'z'}},
	"space": {{'\t', '\r'}, {' ', ' '}}, "xdigit": {{'0', '9'}, {'A', 'F'}, {'a', 'f'}},
	"word": wordRunes, "blank": {{'\t', '\t'}, {' ', ' '}},
	"punct": {{'!', '/'}, {':', '@'}, {'[', '`'}, {'{', '~'}}, "cntrl": {{0, 31}, {127, 127}}, "print": {{32, 126}}, "graph": {{33, 126}},
}

func (p *Parser) member() (rune, Runes) {
	if !p.Eat(`\`) {
		if !p.More() {
			panic(p.fail("a class does not end"))
		}
		return p.Rune(), nil
	}
	if set, ok := p.shorthand(); ok {
		return 0, set
	}
	if p.Eat("b") {
		return '\b', nil
	}
	if p.Eat("-") {
		return '-', nil
	}
	return p.Escaped(), nil
}

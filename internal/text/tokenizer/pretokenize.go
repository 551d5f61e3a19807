package tokenizer

import (
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/shoal-llm/shoal/internal/attempt"
	"github.com/shoal-llm/shoal/internal/text/tokenizer/alphabet"
	"github.com/shoal-llm/shoal/internal/text/tokenizer/categories"
	"github.com/shoal-llm/shoal/internal/text/tokenizer/sentencepiece"
)

// pretokenizer splits a piece into smaller ones, and may change their spelling.
type pretokenizer interface {
	split(p piece, next func(piece) error) error
}

var knownPretokenizers = []string{"Sequence", "Split", "ByteLevel", "Metaspace", "Digits", "Punctuation", "Whitespace", "WhitespaceSplit",
	"BertPreTokenizer", "SentencePieceSymbols"}

func parsePretokenizers(n node) []pretokenizer {
	var out []pretokenizer
	for _, o := range flatten(n, "pretokenizers") {
		if o.kind() == "BertPreTokenizer" { // two stages of others
			out = append(out, cut{runeMatch(unicode.IsSpace), removed}, cut{runeMatch(categories.IsPunctuation), isolated})
			continue
		}
		out = append(out, parsePretokenizer(o))
	}
	return out
}

func parsePretokenizer(o object) pretokenizer {
	kind := o.kind()
	switch kind {
	case "Split":
		m, b := parsePattern(o.at("pattern")), parseBehavior(o.at("behavior"))
		if o.flag("invert", false) {
			m = inverted{m}
		}
		return cut{m, b}
	case "ByteLevel":
		return byteLevel{o.flag("add_prefix_space", true), o.flag("use_regex", true), true}
	case "Metaspace":
		return parseMetaspace(o)
	case "SentencePieceSymbols": // of vocabfile, not of the library
		var n sentencepiece.Normalizer
		n.SetSymbols(parseSymbols(o))
		return cut{scanner(func(s string, i int) int { return i + n.Symbol(s[i:]) }), isolated}
	case "Digits":
		if o.flag("individual_digits", false) {
			return cut{runeMatch(unicode.IsNumber), isolated}
		}
		return cut{runeMatch(unicode.IsNumber), contiguous}
	case "Punctuation":
		b := isolated
		if n := o.at("behavior"); !n.null() {
			b = parseBehavior(n)
		}
		return cut{runeMatch(categories.IsPunctuation), b}
	case "Whitespace":
		return cut{inverted{scanner(scanWords)}, removed}
	case "WhitespaceSplit":
		return cut{runeMatch(unicode.IsSpace), removed}
	}
	panic(attempt.Failure{Err: unsupported(join(o.path, "type"), "pre-tokenizer", kind, knownPretokenizers)})
}

type cut struct {
	by matcher
	b  behavior
}

func (c cut) split(p piece, next func(piece) error) error { return c.b.split(p, c.by, next) }

// byteLevel splits by GPT-2's pattern and maps bytes to its alphabet. With spell false it keeps the
// bytes, for a model that maps them itself.
type byteLevel struct{ prefix, pattern, spell bool }

func (l byteLevel) split(p piece, next func(piece) error) error {
	if l.prefix && !strings.HasPrefix(p.text, " ") {
		p.text = " " + p.text
	}
	if l.spell {
		plain := next
		next = func(q piece) error {
			q.text = alphabet.Spell(q.text)
			return plain(q)
		}
	}
	if !l.pattern {
		return next(p)
	}
	return isolated.split(p, scanner(scanGPT2), next)
}

// prepend schemes of Metaspace
type scheme uint8

const (
	always scheme = iota
	firstOnly
	never
)

var schemeNames = []string{"always", "first", "never"}

// metaspace is SentencePiece's spelling. Spaces become a visible mark and, depending on the scheme,
// a mark is prepended. Words are then split before each mark.
type metaspace struct {
	mark   string
	scheme scheme
	cut    bool
}

func parseMetaspace(o object) metaspace {
	var m metaspace
	r := o.at("replacement").oneRune()
	m.mark = string(r)
	m.cut = o.flag("split", true)
	name := o.text("prepend_scheme", "always")
	i := slices.Index(schemeNames, name)
	if i < 0 {
		panic(attempt.Failure{Err: unsupported(join(o.path, "prepend_scheme"), "scheme", name, schemeNames)})
	}
	m.scheme = scheme(i)
	prefix := o.flag("add_prefix_space", true)
	if !prefix { // the older form of "never"
		if n := o.at("prepend_scheme"); !n.null() && m.scheme != never {
			panic(attempt.Failure{Err: invalid(join(o.path, "add_prefix_space"), "is false, but prepend_scheme is %q", name)})
		}
		m.scheme = never
	}
	return m
}

func (m metaspace) split(p piece, next func(piece) error) error {
	p.text = strings.ReplaceAll(p.text, " ", m.mark)
	if (m.scheme == always || m.scheme == firstOnly && p.first) && !strings.HasPrefix(p.text, m.mark) {
		p.text = m.mark + p.text
	}
	if !m.cut {
		return next(p)
	}
	return mergedWithNext.split(p, literal(m.mark), next)
}

// isWord is \w of Rust's regex (UTS #18): alphabetic, marks, digits, connectors and joiners.
func isWord(r rune) bool {
	return unicode.In(r, unicode.L, unicode.M, unicode.Nd, unicode.Nl, unicode.Pc, unicode.Other_Alphabetic, unicode.Join_Control)
}

// scanWords: \w+|[^\w\s]+
func scanWords(s string, i int) int {
	r, n := utf8.DecodeRuneInString(s[i:])
	if unicode.IsSpace(r) {
		return i
	}
	word := isWord(r)
	for i < len(s) && isWord(r) == word && !unicode.IsSpace(r) {
		i += n
		r, n = utf8.DecodeRuneInString(s[i:])
	}
	return i
}

package tokenizer

import (
	"fmt"
	"strings"
	"unicode"

	"github.com/shoal-llm/shoal/internal/attempt"
	"github.com/shoal-llm/shoal/internal/text/tokenizer/categories"
	"github.com/shoal-llm/shoal/internal/text/tokenizer/sentencepiece"
	"github.com/shoal-llm/shoal/internal/text/tokenizer/unicodeform"
	"github.com/shoal-llm/shoal/internal/text/tokenizer/wordpiece"
)

// piece is a range of text during encoding. first marks the piece that starts at the first
// character of the input, for Metaspace's prepend_scheme "first".
type piece struct {
	text     string
	first    bool
	searches *searches
}

type normalizer func(piece) (piece, error)

type normalizers []normalizer

// apply runs the normalizers in order. If one gives up, it returns its input with the error.
func (ns normalizers) apply(p piece) (piece, error) {
	limit := maxText(p.text)
	for _, n := range ns {
		q, err := n(p)
		if err == nil && len(q.text) > limit {
			err = fmt.Errorf("%w: normalization makes %d bytes or more", ErrGaveUp, limit)
		}
		if err != nil {
			return p, err
		}
		p = q
	}
	return p, nil
}

// maxText returns the maximum length of the text that components may produce from s.
func maxText(s string) int { return maxGrowth*len(s) + 4*maxContent }

func insertion(n node) string {
	s := n.str()
	if len(s) > maxContent {
		panic(attempt.Failure{Err: invalid(n.path, "has %d bytes, the limit is %d", len(s), maxContent)})
	}
	return s
}

var knownNormalizers = []string{"Sequence", "NFC", "NFD", "NFKC", "NFKD", "Lowercase", "Prepend", "Replace", "Strip", "StripAccents",
	"BertNormalizer", "Nmt", "Precompiled", "SentencePiece"}

func parseNormalizers(n node) normalizers {
	var out normalizers
	for _, o := range flatten(n, "normalizers") {
		out = append(out, parseNormalizer(o))
	}
	return out
}

func parseNormalizer(o object) normalizer {
	kind := o.kind()
	if form, ok := unicodeform.Forms[kind]; ok {
		return textual(func(s string) string { return unicodeform.Normal(form, s) })
	}
	switch kind {
	case "Lowercase":
		return textual(categories.Lower)
	case "Prepend":
		with := insertion(o.at("prepend"))
		return func(p piece) (piece, error) {
			if p.text != "" {
				p.text = with + p.text
			}
			return p, nil
		}
	case "Replace":
		return parseReplace(o)
	case "Strip":
		left, right := o.flag("strip_left", true), o.flag("strip_right", true)
		return func(p piece) (piece, error) {
			if right {
				p.text = strings.TrimRightFunc(p.text, unicode.IsSpace)
			}
			if left {
				n := len(p.text)
				p.text = strings.TrimLeftFunc(p.text, unicode.IsSpace)
				p.first = p.first && len(p.text) == n
			}
			return p, nil
		}
	case "BertNormalizer":
		b := wordpiece.Normalizer{Clean: o.flag("clean_text", true), Chinese: o.flag("handle_chinese_chars", true),
			Lower: o.flag("lowercase", true)}
		b.Accents = o.flag("strip_accents", b.Lower)
		return textual(b.Apply)
	case "Precompiled":
		return textual(parseCharsmap(o.at("precompiled_charsmap")).Precompiled)
	case "SentencePiece": // of vocabfile, not of the library
		n := sentencepiece.Normalizer{Charsmap: parseCharsmap(o.at("precompiled_charsmap")), DummyPrefix: o.flag("add_dummy_prefix", true),
			RemoveExtra: o.flag("remove_extra_whitespaces", true), Escape: o.flag("escape_whitespaces", true),
			Suffix: o.flag("treat_whitespace_as_suffix", false)}
		n.SetSymbols(parseSymbols(o))
		return textual(n.Apply)
	case "Nmt":
		return textual(nmt)
	case "StripAccents":
		return func(p piece) (piece, error) {
			for _, r := range p.text {
				p.first = p.first && !categories.IsMark(r)
				break
			}
			p.text = strings.Map(func(r rune) rune {
				if categories.IsMark(r) {
					return -1
				}
				return r
			}, p.text)
			return p, nil
		}
	}
	panic(attempt.Failure{Err: unsupported(join(o.path, "type"), "normalizer", kind, knownNormalizers)})
}

func parseCharsmap(n node) *sentencepiece.Charsmap {
	var data []byte // base64
	n.into(&data, "a table in base64")
	c, err := sentencepiece.ParseCharsmap(data)
	if err != nil {
		panic(attempt.Failure{Err: invalid(n.path, "%v", err)})
	}
	return c
}

func parseSymbols(o object) (out []string) {
	if n := o.at("symbols"); !n.null() {
		n.into(&out, "a list of texts")
	}
	for i, s := range out {
		if len(s) > maxAddedBytes {
			panic(attempt.Failure{Err: invalid(fmt.Sprintf("%s[%d]", join(o.path, "symbols"), i),
				"has %d bytes, the limit is %d", len(s), maxAddedBytes)})
		}
	}
	return out
}

// nmt removes control characters and turns unusual spaces into plain ones.
func nmt(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case categories.IsNmtRemoved(r):
			return -1
		case categories.IsNmtSpace(r):
			return ' '
		}
		return r
	}, s)
}

func textual(f func(string) string) normalizer {
	return func(p piece) (piece, error) {
		p.text = f(p.text)
		return p, nil
	}
}

// parseReplace parses the Replace normalizer. content is inserted literally.
func parseReplace(o object) normalizer {
	replace := parseReplacement(o)
	return func(p piece) (piece, error) {
		s, err := replace(p.text, p.searches)
		p.text = s
		return p, err
	}
}

// parseReplacement parses a Replace component of a normalizer or a decoder.
func parseReplacement(o object) func(string, *searches) (string, error) {
	m, content := parsePattern(o.at("pattern")), insertion(o.at("content"))
	if l, ok := m.(literal); ok {
		return func(s string, _ *searches) (string, error) { return strings.ReplaceAll(s, string(l), content), nil }
	}
	return func(s string, within *searches) (string, error) {
		if s == "" {
			return "", nil
		}
		var b strings.Builder
		err := m.match(s, within, func(lo, hi int, matched bool) error {
			if matched {
				b.WriteString(content)
			} else {
				b.WriteString(s[lo:hi])
			}
			return nil
		})
		return b.String(), err
	}
}

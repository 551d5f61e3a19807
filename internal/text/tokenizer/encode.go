package tokenizer

import (
	"context"
	"sort"
	"strings"
	"unicode/utf8"
)

// Part is a range of a prompt. In a literal part (user text) no added token is recognised:
// "<|im_end|>" stays plain text.
type Part struct {
	Text    string
	Literal bool
}

// Encode converts text to ids. It recognises added and special tokens in the text. With addSpecial,
// the post-processor adds its own (BOS). Bytes that are not UTF-8 become U+FFFD. It panics with the
// error of TryEncode, but lets searches run for minutes. Use it only for the program's own text.
func (t *Tokenizer) Encode(text string, addSpecial bool) []int32 {
	return t.mustEncode(Part{Text: text}, addSpecial)
}

func (t *Tokenizer) mustEncode(p Part, addSpecial bool) []int32 {
	ids, err := t.encode(unlimited(), []Part{p}, addSpecial)
	if err != nil {
		panic(err)
	}
	return ids
}

// EncodeLiteral encodes plain text. No added token is recognised, and the post-processor adds
// nothing. The result has no special token except the unknown token, for characters missing in the
// vocabulary.
func (t *Tokenizer) EncodeLiteral(text string) []int32 {
	return t.mustEncode(Part{text, true}, false)
}

// TryEncode encodes the joined parts as one text. Words may span parts, so the ids equal
// those of Encode on the joined text wherever literal parts contain no added token.
//
// It returns ErrGaveUp and no ids in three cases: a split pattern without a hand-written
// scanner exceeds its limit on this text, ctx ends during a search, or a normalizer makes
// the text far too long. A prompt must not depend on how far a search got in its time.
func (t *Tokenizer) TryEncode(ctx context.Context, parts []Part, addSpecial bool) ([]int32, error) {
	size := 0
	for _, p := range parts {
		size += len(p.Text)
	}
	return t.encode(searchesOf(ctx, size), parts, addSpecial)
}

func (t *Tokenizer) encode(s *searches, parts []Part, addSpecial bool) ([]int32, error) {
	e := encoder{t: t, searches: s}
	text := e.join(parts)
	var before, after []int32
	if addSpecial {
		before, after = t.post.around()
	}
	e.ids = append(make([]int32, 0, len(text)/3+len(before)+len(after)+1), before...)
	e.next = e.word
	for i := len(t.pre) - 1; i >= 0; i-- {
		pre, next := t.pre[i], e.next
		e.next = func(p piece) error { return pre.split(p, next) }
	}
	e.run(text)
	e.ids = append(e.ids, after...)
	if e.err != nil {
		return nil, e.err
	}
	return e.ids, nil
}

// encoder is the state of one TryEncode.
type encoder struct {
	t        *Tokenizer
	literal  []span // of the joined text, in order
	searches *searches
	next     func(piece) error
	ids      []int32
	inert    bool // the current range has literal text
	err      error
}

func (e *encoder) join(parts []Part) string {
	var b strings.Builder
	for _, p := range parts {
		s := p.Text
		if !utf8.ValidString(s) {
			s = strings.ToValidUTF8(s, "\uFFFD")
		}
		if p.Literal && s != "" {
			e.literal = append(e.literal, span{b.Len(), b.Len() + len(s)})
		}
		if len(parts) == 1 {
			return s
		}
		b.WriteString(s)
	}
	return b.String()
}

// run extracts plain added tokens and processes the ranges between them. A failing pattern sets
// e.err and processing continues.
func (e *encoder) run(text string) {
	a := e.t.added
	e.find(&a.plain, text, e.literal, func(lo, hi int) {
		inside := within(e.literal, lo, hi)
		p := piece{text[lo:hi], lo == 0, e.searches}
		switch {
		case len(inside) == 0:
			e.inert = false
			p = e.normalize(p)
			e.find(&a.normalized, p.text, nil, func(lo, hi int) {
				e.pretokenize(piece{p.text[lo:hi], p.first && lo == 0, e.searches})
			})
		case a.raw.empty():
			e.inert = true
			e.pretokenize(e.normalize(p))
		default:
			// If literal and other text are normalized together, the origin of a normalized
			// character is unknown. So tokens are matched before that, by their plain contents.
			e.find(&a.raw, p.text, inside, func(lo, hi int) {
				e.inert = len(within(inside, lo, hi)) > 0
				e.pretokenize(e.normalize(piece{p.text[lo:hi], p.first && lo == 0, e.searches}))
			})
		}
	})
}

func (e *encoder) find(t *trie, text string, literal []span, between func(lo, hi int)) {
	e.setError(e.t.added.find(t, text, literal,
		func(lo, hi int) error { between(lo, hi); return nil },
		func(id int32) { e.ids = append(e.ids, id) }))
}

func (e *encoder) setError(err error) {
	if e.err == nil {
		e.err = err
	}
}

func (e *encoder) normalize(p piece) piece {
	q, err := e.t.normalizer.apply(p)
	e.setError(err)
	return q
}

func (e *encoder) pretokenize(p piece) {
	if p.text != "" {
		e.setError(e.next(p))
	}
}

func (e *encoder) word(p piece) error {
	e.ids = e.t.model.encode(e.ids, p.text, e.t.raw, e.inert)
	return nil
}

// within returns the parts of spans inside [lo, hi), relative to lo.
func within(spans []span, lo, hi int) []span {
	var out []span
	first := sort.Search(len(spans), func(i int) bool { return spans[i].hi > lo })
	for _, s := range spans[first:] {
		if s.lo >= hi {
			break
		}
		out = append(out, span{max(s.lo, lo) - lo, min(s.hi, hi) - lo})
	}
	return out
}

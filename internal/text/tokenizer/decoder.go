package tokenizer

import (
	"context"
	"strings"
	"unicode/utf8"

	"github.com/shoal-llm/shoal/internal/attempt"
)

// stage is one decoder component at work on one stream. Text goes through it in
// units: whole tokens, or, behind a component that joins all tokens into one
// (ByteLevel, Fuse), fragments of that one token. It hands on what later
// tokens cannot change any more; flush hands on the rest.
type stage interface {
	push(s string, out func(string))
	flush(out func(string))
}

// decoder makes the stages of one stream.
type decoder struct {
	make []func() stage
	// single turns one token into the bytes it stands for amid a text.
	single []func(string) string
}

var knownDecoders = []string{"Sequence", "ByteLevel", "Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"}

func parseDecoder(n node) *decoder {
	list := flatten(n, "decoders")
	d := &decoder{}
	if n.null() { // no decoder: tokens separated by spaces
		d.make = append(d.make, func() stage { return &spaced{} })
	}
	fused := false
	for i, o := range list {
		kind := o.kind()
		var mk func() stage
		var one func(string) string
		switch kind {
		case "ByteLevel":
			mk, one = func() stage { return &bytesStage{} }, alphabetBytes
			if fused {
				mk = gathered(mk)
			}
			fused = true
		case "ByteFallback":
			next := ""
			if i+1 < len(list) {
				next = list[i+1].kind()
			}
			early := i+1 == len(list) || next == "Fuse"
			mk, one = func() stage { return &fallbackStage{early: early} }, fallbackBytes
			if fused {
				mk = gathered(mk)
			}
		case "Fuse":
			fused = true
			continue
		case "Replace":
			f := parseReplacement(o)
			one = lossless(func(s string) (string, error) { return f(s, searchesOf(context.Background(), len(s))) })
			mk = func() stage { return mapped(one) }
			if fused {
				mk = gathered(mk)
			}
		case "Metaspace":
			m := parseMetaspace(o)
			joined := fused
			mk = func() stage { return &metaspaceStage{m: m, fused: joined} }
			one = func(s string) string { return strings.ReplaceAll(s, m.mark, " ") }
		case "Strip":
			st := parseStrip(o)
			if fused { // strips the ends of the text, not of a token
				mk = func() stage { s := st; return &s }
			} else {
				one = st.whole
				mk = func() stage { return mapped(st.whole) }
			}
		default:
			panic(attempt.Failure{Err: unsupported(join(o.path, "type"), "decoder", kind, knownDecoders)})
		}
		d.make = append(d.make, mk)
		if one != nil {
			d.single = append(d.single, one)
		}
	}
	return d
}

// lossless: a replacement that gives up leaves the token as it is.
func lossless(f func(string) (string, error)) func(string) string {
	return func(s string) string {
		if r, err := f(s); err == nil && len(r) <= maxText(s) {
			return r
		}
		return s
	}
}

// mapped rewrites each unit by itself.
type mapped func(string) string

func (f mapped) push(s string, out func(string)) { out(f(s)) }
func (f mapped) flush(func(string))              {}

// spaced puts a space between tokens.
type spaced struct{ some bool }

func (x *spaced) push(s string, out func(string)) {
	if x.some {
		out(" ")
	}
	x.some = true
	out(s)
}
func (x *spaced) flush(func(string)) {}

// gathered holds a component that needs the one joined token whole until the
// end of the stream. No published tokenizer asks for that.
func gathered(mk func() stage) func() stage {
	return func() stage { return &gather{inner: mk()} }
}

type gather struct {
	inner stage
	all   strings.Builder
}

func (g *gather) push(s string, _ func(string)) { g.all.WriteString(s) }
func (g *gather) flush(out func(string)) {
	g.inner.push(g.all.String(), out)
	g.inner.flush(out)
}

// bytesStage turns GPT-2's alphabet back into bytes and hands on complete
// characters; what can never become one is U+FFFD, once for each maximal part
// (the substitution that the WHATWG Encoding Standard asks for).
type bytesStage struct{ held []byte }

func (b *bytesStage) push(s string, out func(string)) {
	if bytes, ok := fromAlphabet(b.held, s); ok {
		b.held = bytes
	} else {
		b.held = append(b.held, s...)
	}
	b.drain(out, false)
}

func (b *bytesStage) flush(out func(string)) { b.drain(out, true) }

func (b *bytesStage) drain(out func(string), last bool) {
	text := make([]byte, 0, len(b.held)+2)
	at := 0
	for at < len(b.held) {
		n, state := leadingRune(b.held[at:])
		if state == incomplete && !last {
			break
		}
		if state == complete {
			text = append(text, b.held[at:at+n]...)
		} else {
			text = append(text, "\uFFFD"...)
		}
		at += n
	}
	b.held = append(b.held[:0], b.held[at:]...)
	if len(text) > 0 {
		out(string(text))
	}
}

type runeState uint8

const (
	complete   runeState = iota
	incomplete           // a valid beginning, more bytes needed
	broken
)

// leadingRune looks at the character that p starts with: its length, or the
// length of the longest beginning of a character if it is cut short or broken.
func leadingRune(p []byte) (n int, s runeState) {
	if p[0] < utf8.RuneSelf {
		return 1, complete
	}
	if r, n := utf8.DecodeRune(p); r != utf8.RuneError || n > 1 {
		return n, complete
	}
	want, lo, hi := 0, byte(0x80), byte(0xBF) // bounds of the second byte (Unicode, table 3-7)
	switch c := p[0]; {
	case c >= 0xC2 && c <= 0xDF:
		want = 2
	case c >= 0xE0 && c <= 0xEF:
		want = 3
		if c == 0xE0 {
			lo = 0xA0
		} else if c == 0xED {
			hi = 0x9F
		}
	case c >= 0xF0 && c <= 0xF4:
		want = 4
		if c == 0xF0 {
			lo = 0x90
		} else if c == 0xF4 {
			hi = 0x8F
		}
	default:
		return 1, broken
	}
	for n = 1; n < len(p) && n < want; n++ {
		if p[n] < lo || p[n] > hi {
			return n, broken
		}
		lo, hi = 0x80, 0xBF
	}
	return n, incomplete
}

func alphabetBytes(s string) string {
	if b, ok := fromAlphabet(nil, s); ok {
		return string(b)
	}
	return s
}

package tokenizer

import (
	"context"
	"strings"

	"github.com/shoal-llm/shoal/internal/attempt"
	"github.com/shoal-llm/shoal/internal/text/tokenizer/alphabet"
)

// stage is one decoder component of a stream. It receives text in units: whole tokens, or, after a
// component that joins all tokens (ByteLevel, Fuse), fragments of that joined token. It emits the text
// that later tokens cannot change. flush emits the rest.
type stage interface {
	push(s string, out func(string))
	flush(out func(string))
}

// decoder creates the stages of a stream.
type decoder struct {
	make []func() stage
	// single converts one token to the bytes that it adds inside a text.
	single []func(string) string
}

var knownDecoders = []string{"Sequence", "ByteLevel", "Replace", "ByteFallback", "Fuse", "Strip", "Metaspace", "WordPiece"}

func parseDecoder(n node) *decoder {
	list := flatten(n, "decoders")
	d := &decoder{}
	if n.null() { // no decoder: tokens are separated by spaces
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
		case "WordPiece":
			w := parseWordPieceDecoder(o)
			mk, one = func() stage { s := w; return &s }, w.inside
			if fused {
				mk = gathered(mk)
			}
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

// lossless returns f, except that a replacement that gives up leaves the token unchanged.
func lossless(f func(string) (string, error)) func(string) string {
	return func(s string) string {
		if r, err := f(s); err == nil && len(r) <= maxText(s) {
			return r
		}
		return s
	}
}

// mapped rewrites each unit independently.
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

// gathered collects the joined token until the end of the stream, for components that need all of
// it. No published tokenizer requires that.
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

// bytesStage converts GPT-2's alphabet to bytes and emits complete characters. Invalid bytes become
// U+FFFD, one per maximal subpart, as in the WHATWG Encoding Standard.
type bytesStage struct{ held []byte }

func (b *bytesStage) push(s string, out func(string)) {
	if bytes, ok := alphabet.Bytes(b.held, s); ok {
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
		n, state := alphabet.LeadingRune(b.held[at:])
		if state == alphabet.Incomplete && !last {
			break
		}
		if state == alphabet.Complete {
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

func alphabetBytes(s string) string {
	if b, ok := alphabet.Bytes(nil, s); ok {
		return string(b)
	}
	return s
}

package sentencepiece

import (
	"strings"
	"unicode/utf8"
)

// Mark is the visible space of SentencePiece.
const Mark = "\u2581"

// Normalizer is the normalizer of the sentencepiece library (normalizer.cc).
type Normalizer struct {
	Charsmap        *Charsmap
	DummyPrefix     bool // puts a space before the text, or after it with Suffix
	RemoveExtra     bool // removes spaces at both ends and repeated ones
	Escape          bool // makes spaces visible
	Suffix          bool // a space belongs to the word before it
	symbols         map[string]bool
	longest         int // bytes of the longest symbol
	symbolFirstByte [256]bool
}

// SetSymbols sets the user-defined symbols, which are not normalized.
func (n *Normalizer) SetSymbols(symbols []string) {
	n.symbols = map[string]bool{}
	for _, s := range symbols {
		if s != "" {
			n.symbols[s] = true
			n.longest = max(n.longest, len(s))
			n.symbolFirstByte[s[0]] = true
		}
	}
}

// Symbol returns the length of the longest user-defined symbol at the start of s.
func (n *Normalizer) Symbol(s string) int {
	if !n.symbolFirstByte[s[0]] {
		return 0
	}
	for k := min(n.longest, len(s)); k > 0; k-- {
		if n.symbols[s[:k]] {
			return k
		}
	}
	return 0
}

// prefix returns the normalized form of the shortest prefix of s that can be normalized alone, and
// the length of that prefix.
func (n *Normalizer) prefix(s string) (string, int) {
	if k := n.Symbol(s); k > 0 {
		return s[:k], k
	}
	if with, k := n.Charsmap.lookup(s, true); k > 0 {
		return with, k
	}
	_, k := utf8.DecodeRuneInString(s)
	return s[:k], k
}

// Apply normalizes a valid UTF-8 text.
func (n *Normalizer) Apply(s string) string {
	space := " "
	if n.Escape {
		space = Mark
	}
	if n.RemoveExtra {
		for s != "" {
			p, k := n.prefix(s)
			if p != " " {
				break
			}
			s = s[k:]
		}
	}
	if s == "" {
		return ""
	}
	var b strings.Builder
	b.Grow(len(s) + len(s)/4)
	if n.DummyPrefix && !n.Suffix {
		b.WriteString(space)
	}
	after := n.RemoveExtra // the text so far ends in a space
	for s != "" {
		p, k := n.prefix(s)
		s = s[k:]
		if after {
			p = strings.TrimLeft(p, " ")
		}
		if p != "" {
			after = n.RemoveExtra && strings.HasSuffix(p, " ")
			if n.Escape {
				p = strings.ReplaceAll(p, " ", Mark)
			}
			b.WriteString(p)
		}
	}
	out := b.String()
	if n.RemoveExtra {
		for strings.HasSuffix(out, space) {
			out = out[:len(out)-len(space)]
		}
	}
	if n.DummyPrefix && n.Suffix {
		out += space
	}
	return out
}

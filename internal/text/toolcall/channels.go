package toolcall

import "strings"

// Channels separates the text of the messages in an answer of Harmony from its thoughts and headers, without
// changing either: all spans together are the answer. The zero value is ready for use.
type Channels struct {
	at  harmonyPlace // harmonyBetween, harmonyHeader, harmonyText or harmonyThought
	buf string       // may be a part of a mark
}

// Push adds text and returns the spans that are certain.
func (c *Channels) Push(text string) (out []Span) {
	c.buf += text
	for c.step(&out) {
	}
	return out
}

// Flush ends the answer and returns the held text.
func (c *Channels) Flush() []Span {
	text := c.buf
	if c.buf = ""; text == "" {
		return nil
	}
	return []Span{{text, c.at == harmonyText || c.at == harmonyBetween && strings.TrimLeft(text, blanks) != ""}}
}

// emit takes n bytes from the buffer.
func (c *Channels) emit(out *[]Span, n int, answer bool) {
	if n > 0 {
		*out = append(*out, Span{c.buf[:n], answer})
		c.buf = c.buf[n:]
	}
}

// step advances within one state; false: more text is needed.
func (c *Channels) step(out *[]Span) bool {
	switch c.at {
	case harmonyBetween:
		left := strings.TrimLeft(c.buf, blanks)
		v := startsWith(left, []string{harmonyStart, harmonyChannel}, false)
		if left == "" || v == unsure {
			return false
		}
		if c.at = harmonyText; v == yes {
			c.emit(out, len(c.buf)-len(left), false)
			c.at = harmonyHeader
		}
		return true
	case harmonyHeader:
		head, _, whole := strings.Cut(c.buf, harmonyMessage)
		switch {
		case len(head) > maxHarmonyHeader+len(harmonyMessage) || whole && len(head) > maxHarmonyHeader: // no header
			c.at = harmonyText
			c.emit(out, len("<|"), false)
			return true
		case !whole:
			return false
		}
		if c.at = harmonyText; channelOf(head) == harmonyAnalysis {
			c.at = harmonyThought
		}
		c.emit(out, len(head)+len(harmonyMessage), false)
		return true
	}
	at, mark, keep := harmonyBreak(c.buf)
	if mark == "" {
		c.emit(out, len(c.buf)-keep, c.at == harmonyText)
		return false
	}
	c.emit(out, at, c.at == harmonyText)
	if mark != harmonyStart && mark != harmonyChannel {
		c.emit(out, len(mark), false)
	}
	c.at = harmonyBetween
	return true
}

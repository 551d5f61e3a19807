package regex

import "strings"

// Cursor is a position in a parsed text: a regular expression, GBNF or Lark.
type Cursor struct {
	Text  string
	At    int
	Depth int // nesting at that position
}

// More reports whether the text continues.
func (c *Cursor) More() bool { return c.At < len(c.Text) }

// Peek returns the next byte, 0 at the end.
func (c *Cursor) Peek() byte {
	if c.More() {
		return c.Text[c.At]
	}
	return 0
}

// Eat moves past s if the text has it next.
func (c *Cursor) Eat(s string) bool {
	if strings.HasPrefix(c.Text[c.At:], s) {
		c.At += len(s)
		return true
	}
	return false
}

// While moves past all bytes for which is holds, and returns them.
func (c *Cursor) While(is func(byte) bool) string {
	start := c.At
	for c.More() && is(c.Text[c.At]) {
		c.At++
	}
	return c.Text[start:c.At]
}

// Blanks skips spaces, line comments, and optionally line breaks.
func (c *Cursor) Blanks(lines bool, comments ...string) {
	for again := true; again; {
		again = c.While(func(b byte) bool { return b == ' ' || b == '\t' || lines && (b == '\n' || b == '\r') }) != ""
		for _, mark := range comments {
			if c.Eat(mark) {
				c.While(func(b byte) bool { return b != '\n' && b != '\r' })
				again = true
			}
		}
	}
}

// Line returns the number of the line, from 1.
func (c *Cursor) Line() int { return 1 + strings.Count(c.Text[:min(c.At, len(c.Text))], "\n") }

// IsWord reports letters, digits and underscores.
func IsWord(b byte) bool {
	return b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' || b >= '0' && b <= '9'
}

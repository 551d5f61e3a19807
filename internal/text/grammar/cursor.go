package grammar

import "strings"

// cursor is a position in a parsed text: a regular expression, GBNF or Lark.
type cursor struct {
	s     string
	at    int
	depth int // nesting at that position
}

func (c *cursor) more() bool { return c.at < len(c.s) }

// peek returns the next byte, 0 at the end.
func (c *cursor) peek() byte {
	if c.more() {
		return c.s[c.at]
	}
	return 0
}

func (c *cursor) eat(s string) bool {
	if strings.HasPrefix(c.s[c.at:], s) {
		c.at += len(s)
		return true
	}
	return false
}

func (c *cursor) while(is func(byte) bool) string {
	start := c.at
	for c.more() && is(c.s[c.at]) {
		c.at++
	}
	return c.s[start:c.at]
}

// blanks skips spaces, line comments, and optionally line breaks.
func (c *cursor) blanks(lines bool, comments ...string) {
	for again := true; again; {
		again = c.while(func(b byte) bool { return b == ' ' || b == '\t' || lines && (b == '\n' || b == '\r') }) != ""
		for _, mark := range comments {
			if c.eat(mark) {
				c.while(func(b byte) bool { return b != '\n' && b != '\r' })
				again = true
			}
		}
	}
}

func (c *cursor) line() int { return 1 + strings.Count(c.s[:min(c.at, len(c.s))], "\n") }

// isWord reports letters, digits and underscores.
func isWord(b byte) bool {
	return b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' || b >= '0' && b <= '9'
}

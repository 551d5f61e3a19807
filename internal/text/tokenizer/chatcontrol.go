package tokenizer

import (
	"slices"
	"strings"
	"unicode"

	"github.com/shoal-llm/shoal/internal/text/jinja/python"
)

// ChatSegment is a range of rendered text. No added token may be recognised in a literal one.
type ChatSegment struct {
	Text    string
	Literal bool
}

// Rendered is a prompt. The joined segments are the exact output of the template. The encoder must
// keep words that span segments whole, so that the ids of a prompt without hostile text do not
// change.
type Rendered []ChatSegment

// String returns the joined segments.
func (r Rendered) String() string {
	var b strings.Builder
	for _, s := range r {
		b.WriteString(s.Text)
	}
	return b.String()
}

// chatControls are the tokens that steer a model, which users must not be able to write: all
// special tokens, and those other added tokens that the template contains. (DeepSeek's turn marks
// and Qwen's <tool_call> are not flagged as special. Neither are Gemma's <table> or runs of spaces,
// which users may write, but the template does not contain those.)
type chatControls struct {
	known   map[string]bool
	lengths []int // lengths of known, in bytes
	first   [256]bool
}

func newChatControls(added []chatAdded, source map[string]string) *chatControls {
	c := &chatControls{known: map[string]bool{}}
	for _, a := range added {
		if a.Content == "" || !(a.Special || chatWrites(source, a.Content)) {
			continue
		}
		c.known[a.Content] = true
		c.first[a.Content[0]] = true
		if !slices.Contains(c.lengths, len(a.Content)) {
			c.lengths = append(c.lengths, len(a.Content))
		}
	}
	return c
}

// chatWrites reports whether a template contains this token and the token is more than words or
// spaces.
func chatWrites(source map[string]string, token string) bool {
	mark := func(r rune) bool {
		return !unicode.IsSpace(r) && !unicode.IsLetter(r) && !unicode.IsDigit(r) && r != '▁'
	}
	if strings.IndexFunc(token, mark) < 0 {
		return false
	}
	for _, s := range source {
		if strings.Contains(s, token) {
			return true
		}
	}
	return false
}

// segments splits the text so that every byte of a request that is part of a control token is in a
// literal segment. All other text stays together and is encoded as without the split.
func (c *chatControls) segments(t python.Str) Rendered {
	text, spans := t.String(), t.Spans()
	var out Rendered
	done := 0 // end of the text in out
	mark := func(lo, hi int) {
		lo = max(lo, done)
		if lo >= hi {
			return
		}
		if done < lo {
			out = append(out, ChatSegment{text[done:lo], false})
		}
		if n := len(out); n > 0 && out[n-1].Literal {
			out[n-1].Text += text[lo:hi]
		} else {
			out = append(out, ChatSegment{text[lo:hi], true})
		}
		done = hi
	}
	for i := 0; i < len(text); i++ {
		if !c.first[text[i]] {
			continue
		}
		longest := 0
		for _, n := range c.lengths {
			if n > longest && i+n <= len(text) && c.known[text[i:i+n]] {
				longest = n
			}
		}
		for len(spans) > 0 && spans[0].Hi <= i {
			spans = spans[1:]
		}
		for _, sp := range spans {
			if sp.Lo >= i+longest {
				break
			}
			mark(max(sp.Lo, i), min(sp.Hi, i+longest))
		}
	}
	if done < len(text) {
		out = append(out, ChatSegment{text[done:], false})
	}
	return out
}

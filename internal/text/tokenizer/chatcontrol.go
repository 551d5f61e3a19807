package tokenizer

import (
	"slices"
	"strings"
	"unicode"

	"github.com/shoal-llm/shoal/internal/text/jinja"
)

// ChatSegment is a stretch of rendered text. In a literal one no added token is
// to be recognised.
type ChatSegment struct {
	Text    string
	Literal bool
}

// Rendered is a prompt. The joined segments are exactly what the template
// printed; encoding them must keep words that span segments whole, so that a
// prompt without hostile text has the ids that it always had.
type Rendered []ChatSegment

// String joins the segments.
func (r Rendered) String() string {
	var b strings.Builder
	for _, s := range r {
		b.WriteString(s.Text)
	}
	return b.String()
}

// chatControls are the tokens that steer a model and that a user must not be
// able to write: every special token, and of the other added tokens those that
// the template itself writes. (DeepSeek's turn marks and Qwen's <tool_call> are
// not flagged special; but Gemma's <table> or a run of spaces, which users may
// well write, are not either, and the template does not contain them.)
type chatControls struct {
	known   map[string]bool
	lengths []int // of known, in bytes
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

// chatWrites: a template holds this token, and it is not mere words or space.
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

// segments cuts the text so that every request byte which takes part in a
// control token lies in a literal segment. All other text stays together, to be
// encoded as it would be without this.
func (c *chatControls) segments(t jinja.Str) Rendered {
	text, spans := t.String(), t.Spans()
	var out Rendered
	done := 0 // text before it is in out
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

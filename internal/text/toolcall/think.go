package toolcall

import "strings"

// Tags surround a thought. Label is text that may follow Open and is not part of the thought.
type Tags struct{ Open, Close, Label string }

// DefaultTags are the tags of most families.
var DefaultTags = Tags{Open: "<think>", Close: "</think>"}

// cohereThought is the thought format of Command A.
var cohereThought = Tags{Open: "<|START_THINKING|>", Close: "<|END_THINKING|>"}

// thoughtTags lists the tags that are recognised in a template: also those of Mistral, Seed,
// earlier models of Kimi, and Gemma 4.
var thoughtTags = []Tags{DefaultTags, {Open: "[THINK]", Close: "[/THINK]"}, {Open: "<seed:think>", Close: "</seed:think>"},
	{Open: "◁think▷", Close: "◁/think▷"},
	cohereThought, {Open: "<|channel>", Close: "<channel|>", Label: "thought\n"}}

// TagsOf returns the tags of thoughts with which answers with a template may start. Without any, ok
// is false.
func TagsOf(template string) (t Tags, ok bool) {
	for _, t := range thoughtTags {
		if strings.Contains(template, t.Close) {
			return t, true
		}
	}
	return Tags{}, false
}

// Thought reports whether the end of a prompt, which the answer continues, leaves a thought open
// (inside) or has closed one.
func (t Tags) Thought(turn string) (inside, closed bool) {
	open, end := strings.LastIndex(turn, t.Open), strings.LastIndex(turn, t.Close)
	return open > end, end > open
}

// ThoughtParser separates the thought at the start of an answer.
type ThoughtParser struct {
	tags     Tags
	state    thinkState
	late     bool // a closing tag may come without an opening one
	begun    bool // the thought has more than white space
	labelled bool // its label was read
	held     string
	whole    strings.Builder // for thinkLate
}

type thinkState uint8

const (
	thinkStart   thinkState = iota // only white space so far
	thinkInside                    // between the tags
	thinkLate                      // in text that becomes a thought if a closing tag follows
	thinkBetween                   // after the closing tag: white space is skipped
	thinkOver
)

// NewThoughtParser returns one for an answer, with the tags of its family. inside: the prompt opened the thought. late: the model may
// close a thought without an opening tag; text is then held until a closing tag or the end.
func NewThoughtParser(tags Tags, inside, late bool) *ThoughtParser {
	t := &ThoughtParser{tags: tags, late: late}
	if inside {
		t.state = thinkInside
	}
	return t
}

// Inside reports whether a thought is open.
func (t *ThoughtParser) Inside() bool { return t != nil && t.state == thinkInside }

// Open reports whether a closing tag would end a thought.
func (t *ThoughtParser) Open() bool { return t != nil && t.state < thinkBetween }

// Begins reports whether a control token opens a thought.
func (t *ThoughtParser) Begins(token string) bool { return t != nil && token == t.tags.Open }

// Ends reports whether a control token closes a thought.
func (t *ThoughtParser) Ends(token string) bool { return t != nil && token == t.tags.Close }

// Late reports whether the thought was recognised by its closing tag alone.
func (t *ThoughtParser) Late() bool { return t != nil && t.late && t.state > thinkLate }

// Push adds text and returns the parts that are certain.
func (t *ThoughtParser) Push(text string) (thought, answer string) {
	for {
		if t.state == thinkOver {
			return thought, answer + text
		}
		buf := t.held + text
		t.held, text = "", ""
		switch t.state {
		case thinkStart:
			s := strings.TrimLeft(buf, blanks)
			switch {
			case strings.HasPrefix(s, t.tags.Open):
				t.state, t.late, text = thinkInside, false, s[len(t.tags.Open):]
			case strings.HasPrefix(t.tags.Open, s):
				t.held = buf
				return thought, answer
			case t.late:
				t.state, text = thinkLate, buf
			default:
				t.state, text = thinkOver, buf
			}
		case thinkInside:
			if !t.begun {
				buf = strings.TrimLeft(buf, blanks)
				if rest, twice := strings.CutPrefix(buf, t.tags.Open); twice {
					text = rest
					continue
				}
				rest, labelled := strings.CutPrefix(buf, t.tags.Label)
				if labelled = labelled && !t.labelled && t.tags.Label != ""; labelled {
					t.labelled, text = true, rest
					continue
				}
				if strings.HasPrefix(t.tags.Open, buf) || !t.labelled && strings.HasPrefix(t.tags.Label, buf) {
					t.held = buf
					return thought, answer
				}
				t.begun = true
			}
			if at := strings.Index(buf, t.tags.Close); at >= 0 {
				thought += strings.TrimRight(buf[:at], blanks)
				t.state, text = thinkBetween, buf[at+len(t.tags.Close):]
				continue
			}
			keep := len(strings.TrimRight(buf[:len(buf)-partial(buf, t.tags.Close)], blanks))
			thought += buf[:keep]
			t.held = buf[keep:]
			return thought, answer
		case thinkLate:
			from := max(0, t.whole.Len()-len(t.tags.Close))
			t.whole.WriteString(buf)
			all := t.whole.String()
			at := t.tags.lateClose(all, from)
			if at < 0 {
				return thought, answer
			}
			thought += strings.TrimSpace(all[:at])
			t.state, text = thinkBetween, all[at+len(t.tags.Close):]
			t.whole.Reset()
		case thinkBetween:
			if text = strings.TrimLeft(buf, blanks); text == "" {
				return thought, answer
			}
			t.state = thinkOver
		}
	}
}

// lateClose returns the position of an unquoted closing tag, or -1. The character after the tag
// must be known.
func (t Tags) lateClose(s string, from int) int {
	for {
		at := strings.Index(s[from:], t.Close)
		end := from + at + len(t.Close)
		if at < 0 || end == len(s) {
			return -1
		}
		at += from
		if quote := "`\"'"; strings.IndexByte(quote, s[end]) < 0 && (at == 0 || strings.IndexByte(quote, s[at-1]) < 0) {
			return at
		}
		from = end
	}
}

// Flush ends the answer and returns the held text.
func (t *ThoughtParser) Flush() (thought, answer string) {
	held := t.held
	t.held = ""
	switch t.state {
	case thinkInside:
		return held, ""
	case thinkLate:
		held = t.whole.String()
		t.late = false
		if rest, closed := strings.CutSuffix(held, t.tags.Close); closed {
			t.late, t.state = true, thinkOver
			return strings.TrimSpace(rest), ""
		}
	}
	t.state = thinkOver
	return "", held
}

// partial returns how many bytes at the end of buf are the start of a mark.
func partial(buf, mark string) int {
	for n := min(len(buf), len(mark)-1); n > 0; n-- {
		if strings.HasPrefix(mark, buf[len(buf)-n:]) {
			return n
		}
	}
	return 0
}

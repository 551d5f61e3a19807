package toolcall

import "strings"

const (
	thinkOpen  = "<think>"
	thinkClose = "</think>"
)

// Thinker splits thoughts off the beginning of an answer.
type Thinker struct {
	state thinkState
	begun bool // the thought has more than blanks
	held  string
}

type thinkState uint8

const (
	thinkStart   thinkState = iota // nothing but blanks so far
	thinkInside                    // between the tags
	thinkBetween                   // behind the closing tag: blanks do not count
	thinkOver
)

// NewThinker is one for an answer; inside: the prompt has opened the thought already.
func NewThinker(inside bool) *Thinker {
	if inside {
		return &Thinker{state: thinkInside}
	}
	return &Thinker{}
}

// Inside tells whether a thought has begun and not ended.
func (t *Thinker) Inside() bool { return t != nil && t.state == thinkInside }

// Push returns what is certain after more text.
func (t *Thinker) Push(text string) (thought, answer string) {
	for {
		if t.state == thinkOver {
			return thought, answer + text
		}
		buf := t.held + text
		t.held, text = "", ""
		switch t.state {
		case thinkStart:
			s := strings.TrimLeft(buf, " \t\r\n")
			switch {
			case strings.HasPrefix(s, thinkOpen):
				t.state, text = thinkInside, s[len(thinkOpen):]
			case strings.HasPrefix(thinkOpen, s):
				t.held = buf
				return thought, answer
			default:
				t.state, text = thinkOver, buf
			}
		case thinkInside:
			if !t.begun {
				if buf = strings.TrimLeft(buf, " \t\r\n"); buf == "" {
					return thought, answer
				}
				t.begun = true
			}
			if at := strings.Index(buf, thinkClose); at >= 0 {
				thought += strings.TrimRight(buf[:at], " \t\r\n")
				t.state, text = thinkBetween, buf[at+len(thinkClose):]
				continue
			}
			keep := len(strings.TrimRight(buf[:len(buf)-partial(buf, thinkClose)], " \t\r\n"))
			thought += buf[:keep]
			t.held = buf[keep:]
			return thought, answer
		case thinkBetween:
			if text = strings.TrimLeft(buf, " \t\r\n"); text == "" {
				return thought, answer
			}
			t.state = thinkOver
		}
	}
}

// Flush returns what was held back: nothing more comes.
func (t *Thinker) Flush() (thought, answer string) {
	held := t.held
	t.held = ""
	if t.state == thinkInside {
		return held, ""
	}
	t.state = thinkOver
	return "", held
}

// partial is how many bytes at the end of buf begin a mark.
func partial(buf, mark string) int {
	for n := min(len(buf), len(mark)-1); n > 0; n-- {
		if strings.HasPrefix(mark, buf[len(buf)-n:]) {
			return n
		}
	}
	return 0
}

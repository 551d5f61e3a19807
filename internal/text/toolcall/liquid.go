package toolcall

import "strings"

// LFM2's form: <|tool_call_start|>[f(a=1), g()]<|tool_call_end|>, Python calls between two control
// tokens. A list is read when it is complete.
const (
	liquidOpen = "<|tool_call_start|>"
	liquidEnd  = "<|tool_call_end|>"
)

// liquid reads an answer.
type liquid struct {
	python Parser // for its tools
	buf    string // not classified yet
	inside bool   // buf follows liquidOpen
	blank  string // white space that is dropped if a call follows
	calls  int
}

func (l *liquid) marks(token string) bool { return token == liquidOpen || token == liquidEnd }
func (l *liquid) held() int               { return len(l.blank) + len(l.buf) }
func (l *liquid) made() int               { return l.calls }
func (l *liquid) open() bool              { return false } // calls are emitted whole

func (l *liquid) push(text string) (out []Piece) {
	l.buf += text
	for l.step(&out, false) {
	}
	return out
}

func (l *liquid) flush(cut bool) (out []Piece) {
	for l.step(&out, true) {
	}
	if l.inside && (cut || !l.called(&out, l.buf)) {
		l.text(&out, liquidOpen+l.buf)
	}
	if l.buf = ""; l.blank != "" && l.calls == 0 {
		out = append(out, Piece{Text: l.blank})
	}
	return out
}

// step classifies the next part; false: more text is needed.
func (l *liquid) step(out *[]Piece, final bool) bool {
	if l.inside {
		list, after, ok := strings.Cut(l.buf, liquidEnd)
		if !ok {
			return false
		}
		if !l.called(out, list) {
			l.text(out, liquidOpen+list+liquidEnd)
		}
		l.buf, l.inside = after, false
		return true
	}
	at := 0
	for ; at < len(l.buf); at++ {
		if found := startsWith(l.buf[at:], []string{liquidOpen}, final); found == yes {
			l.text(out, l.buf[:at])
			l.buf, l.inside = l.buf[at+len(liquidOpen):], true
			return true
		} else if found == unsure {
			break
		}
	}
	l.text(out, l.buf[:at])
	l.buf = l.buf[at:]
	return false
}

// called emits the calls of a list. It returns false if there are none.
func (l *liquid) called(out *[]Piece, list string) bool {
	calls := l.python.python(list)
	for i := range calls {
		*out = append(*out, Piece{Call: &calls[i]})
	}
	l.calls += len(calls)
	if len(calls) > 0 {
		l.blank = ""
	}
	return len(calls) > 0
}

// text emits text, but holds white space back until more text follows.
func (l *liquid) text(out *[]Piece, s string) {
	s = l.blank + s
	solid := strings.TrimRight(s, blanks)
	if l.blank = s[len(solid):]; solid != "" {
		*out = append(*out, Piece{Text: solid})
	}
}

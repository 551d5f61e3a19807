package toolcall

import (
	"encoding/json"
	"strings"
)

// tagForm is a syntax of calls in tags, with one tag for each argument. Values are text, or JSON
// where the schema allows no text:
//
//	opens (call NAME close (key KEY keyEnd value TEXT valueEnd)* callEnd)* end
type tagForm struct {
	opens, end    string // around the calls
	call, callEnd string // around one call; "": opens and end are around one
	key, keyEnd   string // around a parameter's name; an empty end is ">", with the name perhaps in quotes
	value         string // before its text; "": the end of the name
	valueEnd      string
}

var tagForms = map[Family]*tagForm{
	GLM: {opens: hermesOpen, end: hermesEnd, key: "<arg_key>", keyEnd: "</arg_key>", value: "<arg_value>", valueEnd: "</arg_value>"},
	MiniMax: {opens: "<minimax:tool_call>", end: "</minimax:tool_call>", call: "<invoke name=", callEnd: "</invoke>",
		key: "<parameter name=", valueEnd: parameterEnd},
	Seed: {opens: "<seed:tool_call>", end: "</seed:tool_call>", call: "<function=", callEnd: functionEnd,
		key: "<parameter=", valueEnd: parameterEnd},
	DSML: {opens: "<｜DSML｜function_calls>", end: "</｜DSML｜function_calls>", call: "<｜DSML｜invoke name=", callEnd: "</｜DSML｜invoke>",
		key: "<｜DSML｜parameter name=", valueEnd: "</｜DSML｜parameter>"},
}

// maxTagName bounds the name of a function or of a parameter.
const maxTagName = 256

// tagged parses one answer in such a form. A value is passed on when it is complete.
type tagged struct {
	*tagForm
	tools map[string]Tool

	at    tagPlace
	block bool   // opens was read, and end was not
	buf   string // text that is not classified yet
	kept  string // marks before buf, which are text if no call follows
	blank string // white space that is dropped if a call follows
	left  string // text inside a call, emitted after it
	name  string // of the newest call
	keys  int    // of its parameters
	seen  int    // bytes of buf in which no mark ends the value
	calls int
	final bool // no more text follows
	cut   bool // the answer was cut: an open value is dropped
}

type tagPlace uint8

const (
	tagText   tagPlace = iota // outside of calls
	tagHead                   // before a call, or the end of the calls
	tagInside                 // in a call, before a parameter or its end
)

func (t *tagged) push(text string) (out []Piece) {
	t.buf += text
	for t.step(&out) {
	}
	return out
}

func (t *tagged) flush(cut bool) []Piece {
	t.final, t.cut = true, cut
	out := t.push("")
	if t.blank != "" && t.calls == 0 {
		out = append(out, Piece{Text: t.blank})
	}
	t.blank = ""
	return out
}

// marks reports whether a control token is one of the form's tags, without their attributes.
func (t *tagged) marks(token string) bool {
	for _, mark := range []string{t.opens, t.end, t.call, t.callEnd, t.key, t.keyEnd, t.value, t.valueEnd} {
		if mark != "" && (token == mark || strings.HasPrefix(mark, token) && strings.HasPrefix(token, "<") && len(token) > 1) {
			return true
		}
	}
	return false
}

func (t *tagged) held() int { return len(t.kept) + len(t.blank) + len(t.left) + len(t.buf) }

func (t *tagged) made() int { return t.calls }

func (t *tagged) open() bool { return t.at == tagInside }

// step advances; false: more text is needed.
func (t *tagged) step(out *[]Piece) bool {
	switch t.at {
	case tagHead:
		return t.head(out)
	case tagInside:
		return t.inside(out)
	}
	marks := []string{t.opens}
	if t.block && t.callEnd != "" {
		marks = append(marks, t.end, t.call)
	}
	at, keep, mark := len(t.buf), 0, ""
	for _, m := range marks {
		if i := strings.Index(t.buf, m); i >= 0 && i < at {
			at, mark = i, m
		}
		keep = max(keep, partial(t.buf, m))
	}
	if mark != "" {
		t.text(out, at)
		switch t.kept = ""; mark {
		case t.end:
			t.buf, t.block = t.buf[len(mark):], false
		case t.call:
			t.at = tagHead
		default:
			t.buf, t.kept, t.at, t.block = t.buf[len(mark):], mark, tagHead, false
		}
		return true
	}
	if t.final && !(t.cut && t.calls > 0) {
		keep = 0
	}
	t.text(out, len(t.buf)-keep)
	if t.final {
		t.buf = "" // the start of a mark after a call
	}
	return false
}

// text emits n bytes, but holds white space back until text follows it.
func (t *tagged) text(out *[]Piece, n int) {
	s := t.blank + t.buf[:n]
	t.buf = t.buf[n:]
	solid := strings.TrimRight(s, blanks)
	if t.blank = s[len(solid):]; solid != "" {
		*out = append(*out, Piece{Text: solid})
	}
}

// head parses the start of a call.
func (t *tagged) head(out *[]Piece) bool {
	m := match{s: t.buf, final: t.final}
	m.blank()
	if t.kept == "" && (m.lit(t.end) || m.at == len(m.s) && t.final) {
		t.buf, t.at, t.block = m.s[m.at:], tagText, false
		return true
	}
	if t.kept == "" && t.final && strings.HasPrefix(t.end, m.s[m.at:]) { // the answer ends in the mark
		t.buf, t.at = "", tagText
		return true
	}
	name, ok := m.tagName(t.call, t.named())
	switch _, known := t.tools[name]; {
	case m.short:
		return false
	case ok && known:
		*out = append(*out, Piece{Call: &Call{Name: name}})
		t.buf, t.kept, t.blank, t.at, t.name, t.keys, t.seen = m.s[m.at:], "", "", tagInside, name, 0, 0
		t.calls++
		t.block = true
	default: // no call: the mark is text
		n := max(len(t.kept), 1)
		t.buf, t.kept, t.at = t.kept+t.buf, "", tagText
		t.text(out, n)
	}
	return true
}

// named lists the strings that end the name of a function.
func (t *tagged) named() []string {
	if t.call != "" {
		return []string{">"}
	}
	return []string{"\n", t.key, t.end}
}

// tagName parses a mark and the name after it, up to one of ends. ">" and a line's end are skipped.
func (m *match) tagName(mark string, ends []string) (name string, ok bool) {
	if !m.lit(mark) {
		return "", false
	}
	left := m.s[m.at:]
	at := -1
	for _, end := range ends {
		if i := strings.Index(left, end); i >= 0 && (at < 0 || i < at) {
			at = i
		}
	}
	if at < 0 && m.final { // cut inside the name
		at = len(left)
	}
	if at > maxTagName || at < 0 && len(left) > maxTagName {
		return "", false
	}
	if at < 0 {
		m.short = true
		return "", false
	}
	if m.at += at; at < len(left) && (left[at] == '>' || left[at] == '\n') {
		m.at++
	}
	return strings.Trim(left[:at], " \t\r\n\"'"), at < len(left)
}

// inside parses a parameter, or the end of the call.
func (t *tagged) inside(out *[]Piece) bool {
	m := match{s: t.buf, final: t.final}
	m.blank()
	left := m.s[m.at:]
	end := t.callEnd
	if end == "" {
		end = t.end
	}
	switch {
	case m.lit(end):
		t.close(out, m.at)
	case end != t.end && (m.lit(t.end) || m.lit(t.opens)), m.lit(t.opens): // the call lacks its own end
		t.close(out, len(t.buf)-len(left))
	case t.final && (left == "" || strings.HasPrefix(end, left) || strings.HasPrefix(t.end, left)):
		t.close(out, len(t.buf))
	case t.final && strings.HasPrefix(t.key, left):
		return t.drop(out)
	case strings.HasPrefix(left, t.key):
		return t.parameter(out, left)
	case !t.final && (left == "" || startsWith(left, []string{t.key}, false) == unsure) || m.short:
		return false
	case m.lit(t.valueEnd): // of a value that was completed without it
		t.buf = m.s[m.at:]
	case m.short:
		return false
	default: // text between parameters
		n := strings.IndexByte(left[1:], '<') + 1
		if n == 0 {
			n = len(left)
		}
		n = len(strings.TrimRight(left[:n], blanks))
		t.left += t.buf[:m.at+n]
		t.buf = left[n:]
	}
	return true
}

// close completes the call and skips n bytes.
func (t *tagged) close(out *[]Piece, n int) {
	end := "}"
	if t.keys == 0 {
		end = "{}"
	}
	*out = append(*out, Piece{Arguments: end})
	t.buf, t.at = t.left+t.buf[n:], tagText
	if t.callEnd != "" && t.left == "" {
		t.at = tagHead
	}
	t.left = ""
}

// parameter parses one parameter at the start of s.
func (t *tagged) parameter(out *[]Piece, s string) bool {
	m := match{s: s, at: len(t.key), final: t.final}
	keyEnd := t.keyEnd
	if keyEnd == "" {
		keyEnd = ">"
	}
	key, ok := m.until(keyEnd)
	if ok && t.value != "" {
		m.blank()
		ok = m.lit(t.value)
	}
	if !ok {
		if m.short {
			return false
		}
		if !t.final { // no parameter: skip its mark
			t.left, t.buf, t.seen = t.left+t.key, s[len(t.key):], 0
			return true
		}
		return t.drop(out)
	}
	isString := "" // DSML has an attribute for text values
	if t.keyEnd == "" {
		key, isString, _ = strings.Cut(key, ` string=`)
		key = strings.Trim(key, " \t\r\n\"'")
	}
	value, n, found := t.textOf(m.s[m.at:])
	switch {
	case !found && !t.final:
		return false
	case !found && t.cut: // the value may be incomplete
		return t.drop(out)
	}
	before := ", "
	if t.keys++; t.keys == 1 {
		before = "{"
	}
	text := typed(t.tools[t.name].Schema, key, value)
	if plain := strings.TrimSpace(value); strings.Contains(isString, "false") && json.Valid([]byte(plain)) {
		text = plain
	}
	*out = append(*out, Piece{Arguments: before + quoted(key) + ": " + text})
	t.buf, t.seen = m.s[m.at+n:], 0
	return true
}

// drop ends an answer inside a parameter. If the answer was cut, the call stays open.
func (t *tagged) drop(out *[]Piece) bool {
	if !t.cut {
		t.close(out, len(t.buf))
	}
	t.buf = ""
	return !t.cut
}

// textOf reads a value up to the end mark that a parameter, or the end of the call, follows. A value
// may contain the mark. At the end of the answer the last mark counts, or the end of the call.
func (t *tagged) textOf(s string) (value string, n int, found bool) {
	for at := t.seen; ; {
		i := strings.Index(s[at:], t.valueEnd)
		if i < 0 {
			t.seen = max(0, len(s)-len(t.valueEnd)+1)
			break
		}
		at += i
		after := strings.TrimLeft(s[at+len(t.valueEnd):], blanks)
		marks := []string{t.key, t.end}
		if t.callEnd != "" {
			marks = append(marks, t.callEnd)
		}
		v := startsWith(after, marks, false)
		if t.final && v == unsure { // the start of a mark, at the end of the answer
			v = yes
		}
		switch v {
		case yes:
			return line(s[:at]), at + len(t.valueEnd), true
		case unsure:
			t.seen = at
			return "", 0, false
		}
		at += len(t.valueEnd)
	}
	if !t.final {
		return "", 0, false
	}
	end := len(s)
	for _, mark := range []string{t.valueEnd, t.callEnd, t.end} {
		if i := strings.Index(s, mark); mark != "" && i >= 0 && i < end {
			end = i
		}
	}
	return line(s[:end]), end, false
}

// line removes one line break around a value.
func line(s string) string {
	s = strings.TrimPrefix(strings.TrimPrefix(s, "\r"), "\n")
	return strings.TrimSuffix(strings.TrimSuffix(s, "\n"), "\r")
}

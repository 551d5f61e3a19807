package toolcall

import (
	"strings"
)

// Qwen3-Coder's form: <function=NAME>, <parameter=KEY>VALUE</parameter> for each argument,
// </function>. Models omit end marks, so a value also ends at the next mark.
const (
	functionMark  = "<function"
	functionEnd   = "</function>"
	parameterMark = "<parameter"
	parameterEnd  = "</parameter>"
	hermesOpen    = "<tool_call>"
	hermesEnd     = "</tool_call>"
)

// hermesOpens start another call. hermesStops end a call that lacks its own end mark.
var (
	hermesOpens = []string{hermesOpen, functionMark + "=", functionMark + " name="}
	hermesStops = append([]string{hermesEnd}, hermesOpens...)

	parameterOpens = []string{parameterMark + "=", parameterMark + " name="}
)

// xmlCall is a call whose parameters are being read.
type xmlCall struct {
	name string
	keys int
	left string // text between the parameters, emitted after the call
	seen int    // bytes of the current value in which no mark ends it
}

// tag parses <WORD=NAME> or <WORD name="NAME">, where mark is "<WORD".
func (m *match) tag(mark string) (name string, ok bool) {
	start := m.at
	if !m.lit(mark) {
		return "", false
	}
	if !m.lit("=") && !m.lit(" name=") {
		m.at = start
		return "", false
	}
	left := m.s[m.at:]
	end := strings.IndexAny(left, ">\n")
	if end < 0 {
		m.at, m.short = start, !m.final
		return "", false
	}
	m.at += end
	if left[end] == '>' {
		m.at++
	}
	if name = strings.Trim(left[:end], " \t\r\"'"); name == "" {
		m.at = start
	}
	return name, name != ""
}

// function parses the start of a call of a known function, up to its parameters, or up to an object
// in their place. A name alone is not a call, because text may mention it.
func (m *match) function(p *Parser) (name string, kind place) {
	name, ok := m.tag(functionMark)
	if !ok || !p.known(name) {
		return "", 0
	}
	m.blank()
	left, fresh := m.s[m.at:], p.block && !p.made
	marks := []string{parameterMark, functionEnd}
	if fresh {
		marks = append(marks, hermesEnd)
	}
	switch v := startsWith(left, marks, m.final); {
	case v == yes, left == "" && fresh && m.final && !p.cut:
		return name, parameters
	case v == unsure:
		m.short = true
		return "", 0
	case left != "" && left[0] == '{':
		return name, between
	}
	return "", 0
}

// parameter parses one parameter, or their end.
func (p *Parser) parameter(out *[]Piece) bool {
	m := match{s: p.buf, final: p.final}
	m.blank()
	left := m.s[m.at:]
	if p.final && (left == "" || startsWith(left, []string{functionEnd, hermesEnd}, false) == unsure) {
		p.close(out, len(p.buf))
		return true
	}
	switch v := startsWith(left, hermesStops, m.final); {
	case m.lit(functionEnd) || v == yes:
		p.close(out, m.at)
		return true
	case v == unsure:
		return false
	}
	if key, ok := m.tag(parameterMark); ok {
		value, n, v := parameterValue(m.s[m.at:], p.xml.seen, m.final)
		if v != yes || p.cut && m.at+n == len(m.s) && !strings.HasSuffix(m.s, parameterEnd) {
			p.xml.seen = n
			if p.final { // the answer was cut inside a value
				p.buf = ""
			}
			return false
		}
		before := ", "
		if p.xml.keys++; p.xml.keys == 1 {
			before = "{"
		}
		*out = append(*out, Piece{Arguments: before + quoted(key) + ": " + typed(p.tools[p.xml.name].Schema, key, value)})
		p.buf, p.xml.seen = m.s[m.at+n:], 0
		return true
	}
	if m.lit(parameterEnd) {
		p.buf = m.s[m.at:]
		return true
	}
	if m.short {
		return false
	}
	// Text between parameters: it is emitted only after the call is complete.
	n := strings.IndexByte(left[1:], '<') + 1
	if n == 0 {
		n = len(left)
	}
	n = len(strings.TrimRight(left[:n], blanks))
	p.xml.left += p.buf[:m.at+n]
	p.buf = left[n:]
	return true
}

// close completes the call and skips n bytes.
func (p *Parser) close(out *[]Piece, n int) {
	end := "}"
	if p.xml.keys == 0 {
		end = "{}"
	}
	*out = append(*out, Piece{Arguments: end})
	p.buf, p.at = p.xml.left+p.buf[n:], between
}

// parameterValue reads a value up to its end. n includes the end mark if that belongs to the value.
// The first seen bytes have no mark that ends it. While the end is unsure, n is the next seen.
func parameterValue(s string, seen int, final bool) (value string, n int, v verdict) {
	end := len(s)
	for at := seen; ; at++ {
		next := strings.IndexByte(s[at:], '<')
		if next < 0 {
			if n = len(s); !final {
				return "", n, unsure
			}
			break
		}
		at += next
		left := s[at:]
		if strings.HasPrefix(left, parameterEnd) {
			end, n = at, at+len(parameterEnd)
			break
		}
		v := startsWith(left, parameterOpens, final)
		if v == no {
			v = endsFunction(left, final)
		}
		if v == unsure || v == no && !final && strings.HasPrefix(parameterEnd, left) {
			return "", at, unsure
		}
		if v == yes {
			end, n = at, at
			break
		}
	}
	value = s[:end]
	for _, line := range []string{"\r\n", "\n"} {
		if rest, ok := strings.CutPrefix(value, line); ok {
			value = rest
			break
		}
	}
	return strings.TrimSuffix(strings.TrimSuffix(value, "\n"), "\r"), n, yes
}

// endsFunction reports whether s, inside a value, starts with the end of the call rather than with
// text of the value: only marks follow, or no </parameter>.
func endsFunction(s string, final bool) verdict {
	for _, mark := range []string{functionEnd, hermesEnd} {
		rest, whole := strings.CutPrefix(s, mark)
		if !whole {
			if !final && strings.HasPrefix(mark, s) {
				return unsure
			}
			continue
		}
		after, next := strings.TrimLeft(rest, blanks), hermesOpens
		if mark == functionEnd {
			next = hermesStops
		}
		if after == "" {
			return atEnd(final, yes)
		}
		if v := startsWith(after, next, final); v != no {
			return v
		}
		value := strings.Index(after, parameterMark)
		if at := strings.Index(after, parameterEnd); at >= 0 && (value < 0 || at < value) {
			value = at
		}
		for _, open := range hermesOpens {
			if at := strings.Index(after, open); at >= 0 && (value < 0 || at < value) {
				return yes
			}
		}
		if value >= 0 {
			return no
		}
		return atEnd(final, yes)
	}
	return no
}

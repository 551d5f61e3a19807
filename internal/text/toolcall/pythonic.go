package toolcall

import (
	"encoding/json"
	"strings"
)

// python parses a whole answer as Python calls, possibly in a code block.
func (p *Parser) python(body string) []Call {
	s := strings.TrimSpace(body)
	for _, mark := range [...]string{pythonTag, pythonStart} {
		s = strings.TrimSpace(strings.TrimPrefix(s, mark))
	}
	s = strings.TrimSpace(strings.TrimSuffix(s, pythonEnd))
	if rest, ok := strings.CutPrefix(s, "```"); ok {
		_, rest, _ = strings.Cut(rest, "\n")
		s = strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "```"))
	}
	return p.pythonic(s)
}

// pythonic parses [f(a=1, b="x"), g()] and returns nil for anything else.
func (p *Parser) pythonic(s string) (calls []Call) {
	r := &pyReader{s: s}
	list := r.eat("[")
	for {
		name := r.name()
		if name == "" || !r.eat("(") {
			return nil
		}
		var args strings.Builder
		args.WriteByte('{')
		for n := 0; !r.eat(")"); n++ {
			if n > 0 && !r.eat(",") {
				return nil
			}
			if n > 0 && r.eat(")") {
				break
			}
			key := r.name()
			if key == "" || !r.eat("=") {
				return nil
			}
			value, ok := r.value(0)
			if !ok {
				return nil
			}
			if n > 0 {
				args.WriteString(", ")
			}
			args.WriteString(quoted(key) + ": " + value)
		}
		args.WriteByte('}')
		if !p.known(name) {
			return nil
		}
		calls = append(calls, Call{name, args.String()})
		if !r.eat(",") {
			break
		}
	}
	if list && !r.eat("]") || strings.TrimSpace(r.s[r.at:]) != "" {
		return nil
	}
	return calls
}

// pyReader converts Python literals to JSON.
type pyReader struct {
	s  string
	at int
}

func (r *pyReader) eat(mark string) bool {
	for r.at < len(r.s) && strings.IndexByte(" \t\r\n", r.s[r.at]) >= 0 {
		r.at++
	}
	if strings.HasPrefix(r.s[r.at:], mark) {
		r.at += len(mark)
		return true
	}
	return false
}

func (r *pyReader) name() string {
	r.eat("")
	start := r.at
	for r.at < len(r.s) {
		c := r.s[r.at]
		if c == '_' || c == '.' || c == '-' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' {
			r.at++
			continue
		}
		break
	}
	return r.s[start:r.at]
}

func (r *pyReader) value(depth int) (string, bool) {
	if depth > 64 {
		return "", false
	}
	r.eat("")
	if r.at >= len(r.s) {
		return "", false
	}
	switch c := r.s[r.at]; c {
	case '"', '\'':
		return r.str(c)
	case '[', '(', '{':
		return r.group(c, depth)
	}
	start := r.at
	for r.at < len(r.s) && strings.IndexByte(",)]} \t\r\n:", r.s[r.at]) < 0 {
		r.at++
	}
	word := literal(r.s[start:r.at])
	return word, word[0] != '"'
}

func (r *pyReader) group(open byte, depth int) (string, bool) {
	end := map[byte]string{'[': "]", '(': ")", '{': "}"}[open]
	r.at++
	var parts []string
	for !r.eat(end) {
		if len(parts) > 0 && !r.eat(",") {
			return "", false
		}
		if len(parts) > 0 && r.eat(end) {
			break
		}
		v, ok := r.value(depth + 1)
		if !ok {
			return "", false
		}
		if open == '{' {
			if v[0] != '"' || !r.eat(":") {
				return "", false
			}
			x, ok := r.value(depth + 1)
			if !ok {
				return "", false
			}
			v += ": " + x
		}
		parts = append(parts, v)
	}
	if open == '{' {
		return "{" + strings.Join(parts, ", ") + "}", true
	}
	return "[" + strings.Join(parts, ", ") + "]", true
}

func (r *pyReader) str(quote byte) (string, bool) {
	var out []byte
	for r.at++; r.at < len(r.s); r.at++ {
		switch c := r.s[r.at]; c {
		case quote:
			r.at++
			return quoted(string(out)), true
		case '\\':
			r.at++
			if r.at >= len(r.s) {
				return "", false
			}
			switch c := r.s[r.at]; c {
			case 'n':
				out = append(out, '\n')
			case 't':
				out = append(out, '\t')
			case 'r':
				out = append(out, '\r')
			case 'u':
				var x string
				if r.at+5 > len(r.s) || json.Unmarshal([]byte(`"\u`+r.s[r.at+1:r.at+5]+`"`), &x) != nil {
					return "", false
				}
				out = append(out, x...)
				r.at += 4
			case '\\', '\'', '"':
				out = append(out, c)
			default:
				out = append(out, '\\', c)
			}
		default:
			out = append(out, c)
		}
	}
	return "", false
}

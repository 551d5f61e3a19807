package jinja

import (
	"strconv"
	"strings"
)

// strFormat is "text {} {0} {name.attr[key]!r:>10}".format(...).
func strFormat(in *interp, s Str, a *args) Value {
	auto := 0
	var b builder
	for i := 0; i < len(s.s); {
		j := strings.IndexAny(s.s[i:], "{}")
		if j < 0 {
			b.add(s.slice(i, len(s.s)))
			break
		}
		b.add(s.slice(i, i+j))
		i += j
		if i+1 < len(s.s) && s.s[i+1] == s.s[i] {
			b.add(s.slice(i, i+1))
			i += 2
			continue
		}
		if s.s[i] == '}' {
			in.fail("Single '}' encountered in format string")
		}
		end := strings.IndexByte(s.s[i:], '}')
		if end < 0 {
			in.fail("Single '{' encountered in format string")
		}
		field, spec, _ := strings.Cut(s.s[i+1:i+end], ":")
		if strings.ContainsAny(field+spec, "{}") {
			in.fail("nested replacement fields are not supported in a format string")
		}
		field, conv, _ := strings.Cut(field, "!")
		v := in.field(field, a, &auto)
		switch conv {
		case "":
		case "r":
			v = in.repr(v)
		case "s":
			v = in.str(v)
		default:
			in.fail("Unknown conversion specifier '%s'", oneLine(conv))
		}
		b.add(in.parseSpec(spec).apply(in, v))
		i += end + 1
	}
	return in.made(b.str())
}

func (in *interp) field(path string, a *args, auto *int) Value {
	end := strings.IndexAny(path, ".[")
	if end < 0 {
		end = len(path)
	}
	head, rest := path[:end], path[end:]
	var v Value
	n, err := strconv.Atoi(head)
	if head == "" {
		n, err = *auto, nil
		*auto++
	}
	if err == nil {
		if n < 0 || n >= len(a.pos) {
			in.fail("Replacement index %d out of range for positional args tuple", n)
		}
		v = a.pos[n]
	} else if i := a.find(head); i >= 0 {
		v = a.named[i].value
	} else {
		in.fail("format: no value for '%s'", oneLine(head))
	}
	for rest != "" {
		var part string
		if rest[0] == '.' {
			part = rest[1:]
			if end = strings.IndexAny(part, ".["); end < 0 {
				end = len(part)
			}
			part, rest = part[:end], part[end:]
			v = in.getattr(v, part)
			in.defined(v)
			continue
		}
		end := strings.IndexByte(rest, ']')
		if end < 0 {
			in.fail("Missing ']' in format string")
		}
		part, rest = rest[1:end], rest[end+1:]
		if i, err := strconv.ParseInt(part, 10, 64); err == nil {
			v = in.getitem(v, i)
		} else {
			v = in.getitem(v, Trusted(part))
		}
		in.defined(v)
	}
	return v
}

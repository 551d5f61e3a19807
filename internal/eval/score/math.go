package score

import (
	"regexp"
	"strings"
)

// Math compares the last \boxed answer of a text with the reference, both normalized like those of
// MATH (arXiv 2103.03874). The reference may be a whole solution.
func Math(text, want string) float64 {
	got, ok := Boxed(text)
	if !ok {
		return 0
	}
	if b, ok := Boxed(want); ok {
		want = b
	}
	return is(plain(got) == plain(want))
}

// Boxed returns the content of the last \boxed or \fbox.
func Boxed(text string) (string, bool) {
	for _, command := range []string{`\boxed`, `\fbox`} {
		at := strings.LastIndex(text, command)
		if at < 0 {
			continue
		}
		rest := text[at+len(command):]
		if inner, ok := strings.CutPrefix(rest, " "); ok && !strings.HasPrefix(strings.TrimLeft(inner, " "), "{") {
			inner, _, _ = strings.Cut(inner, "$") // \boxed 7$
			return strings.TrimSpace(inner), true
		}
		open := strings.IndexByte(rest, '{')
		if open < 0 || strings.TrimSpace(rest[:open]) != "" {
			return "", false
		}
		depth := 0
		for i, c := range rest[open:] {
			switch c {
			case '{':
				depth++
			case '}':
				if depth--; depth == 0 {
					return rest[open+1 : open+i], true
				}
			}
		}
		return "", false
	}
	return "", false
}

// removed are texts and what replaces them, one after the other: a later one may match what an earlier one leaves.
var removed = [][2]string{{"\n", ""}, {`\!`, ""}, {`\\`, `\`}, {"tfrac", "frac"}, {"dfrac", "frac"}, {`\left`, ""}, {`\right`, ""},
	{`^{\circ}`, ""}, {`^\circ`, ""}, {`\$`, ""}}

// plain returns the normal form of an answer: no spacing, units, degrees and percent signs, and every
// fraction and root with braces.
func plain(s string) string {
	for _, r := range removed {
		s = strings.ReplaceAll(s, r[0], r[1])
	}
	s, _, _ = strings.Cut(s, `\text{ `) // a unit
	s = strings.NewReplacer(`\%`, "").Replace(s)
	s = strings.NewReplacer(" .", " 0.", "{.", "{0.").Replace(s)
	if strings.HasPrefix(s, ".") {
		s = "0" + s
	}
	if name, value, ok := strings.Cut(s, "="); ok && len(name) <= 2 && !strings.Contains(value, "=") {
		s = value
	}
	s = strings.ReplaceAll(braced(strings.TrimSpace(s), `\sqrt`, 1), " ", "")
	s = braced(s, `\frac`, 2)
	if s == "0.5" {
		return `\frac{1}{2}`
	}
	if m := slash.FindStringSubmatch(s); m != nil {
		return `\frac{` + m[1] + "}{" + m[2] + "}"
	}
	return s
}

var slash = regexp.MustCompile(`^(-?\d+)/(-?\d+)$`)

// braced gives the n arguments of a command braces where they are one character each.
func braced(s, command string, n int) string {
	parts := strings.Split(s, command)
	for i, p := range parts[1:] {
		var b strings.Builder
		for range n {
			if p == "" || p[0] == '{' {
				break
			}
			b.WriteString("{" + p[:1] + "}")
			p = p[1:]
		}
		parts[i+1] = b.String() + p
	}
	return strings.Join(parts, command)
}

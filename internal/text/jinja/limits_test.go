package jinja

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/internal/text/jinja/python"
)

func render(t testing.TB, source string, vars *python.Dict, o Options) (python.Str, error) {
	t.Helper()
	tmpl, err := Parse(source)
	if err != nil {
		return python.Str{}, err
	}
	return tmpl.Render(vars, o)
}

// Templates that would exhaust the machine quickly fail with ErrLimit.
func TestLimits(t *testing.T) {
	deep := strings.Repeat("(", 100000) + strings.Repeat(")", 100000)
	self := `{% set n = namespace() %}{% set n.x = [n] %}`
	for name, source := range map[string]string{
		"doubling":          `{% set n = namespace(s='aaaaaaaaaaaaaaaa') %}{% for i in range(99) %}{% set n.s = n.s ~ n.s %}{% endfor %}`,
		"doubling list":     `{% set n = namespace(s=[1]) %}{% for i in range(99) %}{% set n.s = n.s + n.s %}{% endfor %}`,
		"repeat":            `{{ 'ab' * 999999999999 }}`,
		"repeat list":       `{{ [1] * 999999999 }}`,
		"repeat empty":      `{{ ('' * 9223372036854775807) ~ 'x' * 9223372036854775807 }}`,
		"power":             `{{ 10 ** 100 }}`,
		"overflow":          `{{ 9223372036854775807 + 1 }}`,
		"nested loops":      `{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}`,
		"macro":             `{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}`,
		"call block":        `{% macro m() %}{{ caller }}{% call m() %}{% endcall %}{% endmacro %}{{ m() }}`,
		"recursive loop":    `{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}`,
		"output":            `{% for a in range(9999) %}{{ 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa' * 9999 }}{% endfor %}`,
		"indent":            `{{ 'a'|indent(99999999999) }}`,
		"json indent":       `{{ [[1]]|tojson(indent=99999999999) }}`,
		"format":            `{{ '%99999999999d' % 1 }}`,
		"format precision":  `{{ '%.999999999f' % 1 }}`,
		"scans":             `{% set s = 'a' * 4000000 %}{% for i in range(99999) %}{{ s.find('b') }}{{ s|length }}{% endfor %}`,
		"scans of marked":   `{% set s = x * 400000 %}{% for i in range(99999) %}{{ s.upper()|length }}{% endfor %}`,
		"strip set":         `{% for i in range(99999) %}{{ ('a' * 400000).strip('a' * 400000 )}}{% endfor %}`,
		"split marked":      `{% set s = (x ~ 'a ') * 40000 %}{% for i in range(99999) %}{{ s.split()|length }}{% endfor %}`,
		"self":              self + `{{ n }}`,
		"nested key":        `{% set n = namespace(t=(1,)) %}{% for i in range(9999) %}{% set n.t = (n.t,) %}{% endfor %}{{ {}[n.t] }}`,
		"self equal":        self + `{% set m = namespace() %}{% set m.x = [m] %}{{ n == m or n.x == m.x }}{{ n }}`,
		"shared":            `{% set n = namespace(l=[1,1]) %}{% for i in range(40) %}{% set n.l = [n.l, n.l] %}{% endfor %}{{ n.l }}`,
		"shared json":       `{% set n = namespace(l=[1,1]) %}{% for i in range(40) %}{% set n.l = [n.l, n.l] %}{% endfor %}{{ n.l|tojson }}`,
		"shared equal":      `{% set n = namespace(l=[1,1], m=[1,1]) %}{% for i in range(40) %}{% set n.l = [n.l, n.l] %}{% set n.m = [n.m, n.m] %}{% endfor %}{{ n.l == n.m }}`,
		"deep parentheses":  `{{ ` + deep + ` }}`,
		"deep not":          `{{ ` + strings.Repeat("not ", 100000) + `1 }}`,
		"deep minus":        `{{ ` + strings.Repeat("- ", 100000) + `1 }}`,
		"deep if":           strings.Repeat("{% if 1 %}", 100000),
		"deep list":         `{{ ` + strings.Repeat("[", 100000) + strings.Repeat("]", 100000) + ` }}`,
		"deep targets":      `{% set ` + strings.Repeat("(", 100000) + "a" + strings.Repeat(")", 100000) + ` = 1 %}`,
		"long chain":        `{{ a` + strings.Repeat(".b", 100000) + ` }}`,
		"long filter chain": `{{ a` + strings.Repeat("|d", 100000) + ` }}`,
		"long sum":          `{{ 1` + strings.Repeat("+1", 100000) + ` }}`,
		"long else":         `{{ 1` + strings.Repeat(" if 1 else 1", 100000) + ` }}`,
	} {
		start := time.Now()
		vars := python.NewDict()
		vars.Set("x", python.Literal("x"))
		_, err := render(t, source, vars, Options{Limits: python.Limits{Steps: 1_000_000, Bytes: 16 << 20, Output: 1 << 20}})
		if !errors.Is(err, python.ErrLimit) {
			t.Errorf("%s: error %v", name, err)
		}
		if d := time.Since(start); d > 5*time.Minute { // the step limit ends it; allows for a loaded machine with the race detector
			t.Errorf("%s: took %v", name, d)
		} else if testing.Verbose() {
			t.Logf("%s: %v", name, d)
		}
	}
}

func TestErrorsHaveLines(t *testing.T) {
	for source, want := range map[string]int{
		"a\nb\n{{ missing.x }}":                                   3,
		"{% if true %}\n\n{{ raise_exception('no') }}{% endif %}": 3,
		"a\n{% for x in 5 %}{% endfor %}":                         2,
		"a\r\n{{ 'x' + 1 }}\r\n":                                  2,
		"{#\n\n#}{{ (1 }}":                                        3,
		"{% for x in l %}\n\n":                                    2, // the last newline is not part of a template
		"{{ 'a\n\nb' ~ (1 / 0) }}":                                3,
		"{{\n\n  1 2\n}}":                                         3,
	} {
		vars := python.NewDict()
		vars.Set("x", python.Literal("x"))
		_, err := render(t, source, vars, Options{})
		var e *python.Error
		if !errors.As(err, &e) || e.Line != want {
			t.Errorf("%q: %v, want line %d", source, err, want)
		}
	}
}

// Many goroutines can render a template at once, and rendering changes no value.
func TestConcurrentRenders(t *testing.T) {
	vars := readVars(t, "values.json")
	tmpl, err := Parse(`{{ l|sort|join }}{% for u in users|sort(attribute='age') %}{{ u.name|length }}{% endfor %}{{ d }}`)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 50 {
				s, err := tmpl.Render(vars, Options{})
				if err != nil || s.String() != "123534{'b': 1, 'a': 'x', 'c': [1, 2]}" {
					t.Errorf("%q %v", s.String(), err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// Every operation keeps the marks of bytes, and marks no others.
func TestMarksFollowTheText(t *testing.T) {
	vars := python.NewDict()
	vars.Set("x", python.Literal("Ab cd"))
	vars.Set("d", func() python.Value { v, _ := python.DecodeJSON([]byte(`{"k": "v\n", "l": ["w"]}`), true); return v }())
	for source, want := range map[string]string{
		`a{{ x }}b`:                                               `a«Ab cd»b`,
		`{{ 'a' ~ x ~ 1 }}`:                                       `a«Ab cd»1`,
		`{{ 'a' + x[1:4] + x[::-1] }}`:                            `a«b cdc bA»`,
		`{{ x|upper }}{{ x.title() }}`:                            `«AB CDAb Cd»`,
		`{{ ('<' ~ x ~ '>')|upper }}`:                             `<«AB CD»>`,
		`{{ x.split()|join('-') }}`:                               `«Ab»-«cd»`,
		`{{ ('a ' ~ x)|trim|replace('a', 'o') }}`:                 `o «Ab cd»`,
		`{{ ('a' ~ x)|replace('c', 'c') }}`:                       `a«Ab »c«d»`,
		`{{ x|replace('b', x) }}`:                                 `«AAb cd cd»`,
		`{{ '%s|%5s' % (x, x[0]) }}`:                              `«Ab cd»|    «A»`,
		`{{ [x] }}{{ d }}`:                                        `['«Ab cd»']{'«k»': '«v\n»', '«l»': ['«w»']}`,
		`{{ d|tojson }}`:                                          `{"«k»": "«v\n»", "«l»": ["«w»"]}`,
		`{% for k, v in d.items() %}{{ k }}{% endfor %}`:          `«kl»`,
		`{% set y %}({{ x }}){% endset %}{{ y }}`:                 `(«Ab cd»)`,
		`{% macro m(a) %}<{{ a }}>{% endmacro %}{{ m(x)|lower }}`: `<«ab cd»>`,
		`{{ 'k' if x == 'Ab cd' }}{{ x|length }}`:                 `k5`,
		`{{ ('a\n' ~ x)|indent(2) }}`:                             "a\n  «Ab cd»",
		`{% for c in x[:2] %}{{ c }}.{% endfor %}`:                `«A».«b».`,
		`{{ x|list|sort|join }}{{ x|e }}`:                         `« AbcdAb cd»`,
	} {
		s, err := render(t, source, vars, Options{})
		if err != nil {
			t.Errorf("%s: %v", source, err)
			continue
		}
		checkSpans(t, s)
		got, at := "", 0
		for _, sp := range s.Spans() {
			got += s.String()[at:sp.Lo] + "«" + s.String()[sp.Lo:sp.Hi] + "»"
			at = sp.Hi
		}
		if got += s.String()[at:]; got != want {
			t.Errorf("%s: %s, want %s", source, got, want)
		}
	}
}

func TestDecodeJSON(t *testing.T) {
	for _, bad := range []string{``, `{`, `[1,]`, `{"a":1} x`, `{"a":1}{}`, strings.Repeat("[", 200), `{1:2}`, strings.Repeat("9", 5000)} {
		if v, err := python.DecodeJSON([]byte(bad), true); err == nil {
			t.Errorf("%.20q decoded to %v", bad, v)
		}
	}
	v, err := python.DecodeJSON([]byte(`{"z": 1, "a": 1.0, "z": 1e999, "n": -0, "b": 123456789012345678901}`), false)
	if err != nil {
		t.Fatal(err)
	}
	in := &interp{Meter: python.NewMeter(python.Limits{})}
	if got, want := in.Repr(v).Text, `{'z': inf, 'a': 1.0, 'n': 0, 'b': 123456789012345678901}`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

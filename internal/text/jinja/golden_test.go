package jinja

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/internal/text/jinja/python"
)

// Output of Python's jinja2; see testdata/make_goldens.py.
type goldens struct {
	Renders []struct {
		Template, Chat string
		Text, Error    *string
	}
	Expressions []struct {
		Source      string
		Text, Error *string
	}
}

var goldenNow = time.Date(2026, 3, 4, 15, 6, 7, 89e6, time.UTC)

func readFile(t testing.TB, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func readGoldens(t testing.TB) (g goldens) {
	if err := json.Unmarshal([]byte(readFile(t, "goldens.json")), &g); err != nil {
		t.Fatal(err)
	}
	return g
}

func readVars(t testing.TB, file string) *python.Dict {
	v, err := python.DecodeJSON([]byte(readFile(t, file)), true)
	if err != nil {
		t.Fatal(err)
	}
	return v.(*python.Dict)
}

func compare(t *testing.T, source string, vars *python.Dict, text, failure *string) {
	t.Helper()
	got := ""
	tmpl, err := Parse(source)
	if err == nil {
		var s python.Str
		s, err = tmpl.Render(vars, Options{Now: goldenNow})
		got = s.String()
		checkSpans(t, s)
	}
	switch {
	case errors.Is(err, python.ErrInternal):
		t.Errorf("%s\n%v", source, err)
	case failure != nil && err == nil:
		t.Errorf("%s\nPython fails with %s\nwe printed %q", source, *failure, got)
	case failure == nil && err != nil:
		t.Errorf("%s\nwant %q\nerror %v", source, *text, err)
	case failure == nil && got != *text:
		t.Errorf("%s\nwant %q\ngot  %q", source, *text, got)
	case failure != nil:
		checkMessage(t, source, err, *failure)
	}
}

// checkMessage compares the most frequent error messages with Jinja's.
func checkMessage(t *testing.T, source string, err error, want string) {
	t.Helper()
	kind, message, _ := strings.Cut(want, ": ")
	if kind == "TemplateError" && (!errors.Is(err, python.ErrRaised) || !strings.Contains(err.Error(), message)) {
		t.Errorf("%s\nPython raised %q, error %v", source, message, err)
	}
	if kind == "UndefinedError" && !strings.Contains(err.Error(), message) && !strings.Contains(source, " if false") {
		t.Errorf("%s\nPython's message is %q, error %v", source, message, err)
	}
	if kind == "TemplateSyntaxError" && !errors.Is(err, python.ErrSyntax) {
		t.Errorf("%s\nPython finds a syntax error, error %v", source, err)
	}
}

func checkSpans(t testing.TB, s python.Str) {
	t.Helper()
	at := -1
	for _, sp := range s.Spans() {
		if sp.Lo <= at || sp.Hi <= sp.Lo || sp.Hi > len(s.String()) {
			t.Fatalf("spans %v of a string of %d bytes", s.Spans(), len(s.String()))
		}
		at = sp.Hi - 1
	}
}

func TestGoldenTemplates(t *testing.T) {
	chats := readVars(t, "chats.json")
	g := readGoldens(t)
	if len(g.Renders) < 100 {
		t.Fatalf("only %d renderings", len(g.Renders))
	}
	for _, r := range g.Renders {
		t.Run(r.Template+"/"+r.Chat, func(t *testing.T) {
			chat, _ := chats.Get(r.Chat)
			vars := chat.(*python.Dict).Clone()
			vars.Set("bos_token", python.Trusted("<s>"))
			vars.Set("eos_token", python.Trusted("</s>"))
			compare(t, readFile(t, "templates/"+r.Template), vars, r.Text, r.Error)
		})
	}
}

func TestGoldenExpressions(t *testing.T) {
	values := readVars(t, "values.json")
	for _, e := range readGoldens(t).Expressions {
		compare(t, e.Source, values, e.Text, e.Error)
	}
}

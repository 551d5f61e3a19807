package jinja

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/shoal-llm/shoal/internal/text/jinja/python"
)

// Any text as a template renders or fails within its limits, deterministically.
func FuzzRender(f *testing.F) {
	for _, e := range readGoldens(f).Expressions {
		f.Add(e.Source)
	}
	paths, _ := filepath.Glob("testdata/templates/*.jinja")
	families, _ := filepath.Glob("../tokenizer/testdata/templates/*.jinja")
	if len(paths) == 0 || len(families) == 0 {
		f.Fatal("no templates")
	}
	for _, p := range append(paths, families...) {
		b, err := os.ReadFile(p)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(b))
	}
	vars := readVars(f, "values.json")
	chats := readVars(f, "chats.json")
	chat, _ := chats.Get("tool_calls")
	for _, e := range chat.(*python.Dict).Entries {
		vars.Set(e.Key.(python.Str).Text, e.Value)
	}
	o := Options{Now: goldenNow, Limits: python.Limits{Steps: 20000, Bytes: 1 << 20, Output: 1 << 18, Depth: 200}}
	f.Fuzz(func(t *testing.T, source string) {
		tmpl, err := Parse(source)
		if err != nil {
			mustBeOurs(t, err)
			return
		}
		a, err := tmpl.Render(vars, o)
		b, err2 := tmpl.Render(vars, o)
		if err != nil {
			mustBeOurs(t, err)
			if err2 == nil || err.Error() != err2.Error() {
				t.Fatalf("first %v, then %v", err, err2)
			}
			return
		}
		checkSpans(t, a)
		if a.Text != b.Text || len(a.Marks) != len(b.Marks) {
			t.Fatalf("first %q, then %q", a.Text, b.Text)
		}
	})
}

func mustBeOurs(t *testing.T, err error) {
	var e *python.Error
	if !errors.As(err, &e) || errors.Is(err, python.ErrInternal) {
		t.Fatal(err)
	}
}

func FuzzDecodeJSON(f *testing.F) {
	f.Add([]byte(`{"a": [1, 2.5, "x", null, true, {"b": -0}], "c": 123456789012345678901234567890}`))
	f.Add([]byte(`[1e999, "\ud800", ""]`))
	f.Fuzz(func(t *testing.T, data []byte) {
		v, err := python.DecodeJSON(data, true)
		if err != nil {
			return
		}
		in := &interp{Meter: python.NewMeter(python.Limits{})}
		var rerr error
		func() {
			defer python.Catch(&in.Line, &rerr)
			s := toJSON(in, v, &args{}).(python.Str)
			w, err := python.DecodeJSON([]byte(s.Text), true)
			if err == nil && !in.Equal(v, w) {
				t.Errorf("%s does not decode to its source", s.Text)
			}
		}()
		if rerr != nil {
			t.Error(rerr)
		}
	})
}

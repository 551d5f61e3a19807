package jinja

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
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
	for _, e := range chat.(*Dict).entries {
		vars.Set(e.key.(Str).s, e.value)
	}
	o := Options{Now: goldenNow, Limits: Limits{Steps: 20000, Bytes: 1 << 20, Output: 1 << 18, Depth: 200}}
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
		if a.s != b.s || len(a.lit) != len(b.lit) {
			t.Fatalf("first %q, then %q", a.s, b.s)
		}
	})
}

func mustBeOurs(t *testing.T, err error) {
	var e *Error
	if !errors.As(err, &e) || errors.Is(err, ErrInternal) {
		t.Fatal(err)
	}
}

func FuzzDecodeJSON(f *testing.F) {
	f.Add([]byte(`{"a": [1, 2.5, "x", null, true, {"b": -0}], "c": 123456789012345678901234567890}`))
	f.Add([]byte(`[1e999, "\ud800", ""]`))
	f.Fuzz(func(t *testing.T, data []byte) {
		v, err := DecodeJSON(data, true)
		if err != nil {
			return
		}
		in := &interp{lim: Limits{}.withDefaults()}
		var rerr error
		func() {
			defer catch(&in.line, &rerr)
			s := toJSON(in, v, &args{}).(Str)
			w, err := DecodeJSON([]byte(s.s), true)
			if err == nil && !in.equal(v, w) {
				t.Errorf("%s does not decode to what it was made of", s.s)
			}
		}()
		if rerr != nil {
			t.Error(rerr)
		}
	})
}

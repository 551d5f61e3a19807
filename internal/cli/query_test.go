package cli

import (
	"slices"
	"testing"

	"github.com/shoal-llm/shoal/internal/cli/models"
	"github.com/shoal-llm/shoal/internal/testutil"
)

// TestUnderstand checks that a mistyped model is never treated as a text.
func TestUnderstand(t *testing.T) {
	checkpoint := func(w string) string {
		if w == "fry" || w == "./m" || w == "/m.gguf" {
			return "/at/" + w
		}
		return ""
	}
	served := func(w string) bool { return w == "ours" || w == "org/ours" || w == "ours-7b" }
	for _, c := range []struct {
		words []string
		want  query
		fails string // parts of the error
	}{
		{nil, query{}, ""},
		{[]string{"-"}, query{}, ""},
		{[]string{"-", "x"}, query{text: []string{"-", "x"}}, ""},
		{[]string{"fry"}, query{checkpoint: "/at/fry"}, ""},
		{[]string{"fry", "-"}, query{checkpoint: "/at/fry"}, ""},
		{[]string{"fry", "What", "is", "Go?"}, query{checkpoint: "/at/fry", text: []string{"What", "is", "Go?"}}, ""},
		{[]string{"./m", "x"}, query{checkpoint: "/at/./m", text: []string{"x"}}, ""},
		{[]string{"ours", "x"}, query{served: "ours", text: []string{"x"}}, ""},
		{[]string{"org/ours", "x"}, query{served: "org/ours", text: []string{"x"}}, ""},
		{[]string{"ours-7b"}, query{served: "ours-7b"}, ""},

		{[]string{"What is Go?"}, query{text: []string{"What is Go?"}}, ""},
		{[]string{"func add(a, b int) int {"}, query{text: []string{"func add(a, b int) int {"}}, ""},
		{[]string{"// Package sort provides"}, query{text: []string{"// Package sort provides"}}, ""},
		{[]string{"is a/b c"}, query{text: []string{"is a/b c"}}, ""},
		{[]string{"hello"}, query{text: []string{"hello"}}, ""},
		{[]string{"hi"}, query{text: []string{"hi"}}, ""},
		{[]string{"Hello."}, query{text: []string{"Hello."}}, ""},
		{[]string{"2+2"}, query{text: []string{"2+2"}}, ""},
		{[]string{"3.14"}, query{text: []string{"3.14"}}, ""},
		{[]string{"你好"}, query{text: []string{"你好"}}, ""},
		{[]string{""}, query{text: []string{""}}, ""},
		{[]string{"Hello,", "world"}, query{text: []string{"Hello,", "world"}}, ""},
		{[]string{"two words", "more"}, query{text: []string{"two words", "more"}}, ""},

		{[]string{"Qwen/Qwen3-0.6B"}, query{pull: "Qwen/Qwen3-0.6B"}, ""},
		{[]string{"Qwen/Qwen3-0.6B", "What is Go?"}, query{pull: "Qwen/Qwen3-0.6B", text: []string{"What is Go?"}}, ""},
		{[]string{"ollama://qwen3:0.6b", "-"}, query{pull: "ollama://qwen3:0.6b"}, ""},
		{[]string{"Is it either/or, or both?"}, query{text: []string{"Is it either/or, or both?"}}, ""},
		{[]string{"llama3.2", "What is Go?"}, query{}, `no model "llama3.2" ... quote the text: shoal run "llama3.2 What is Go?"`},
		{[]string{"What", "is", "Go?"}, query{}, `no model "What" ... shoal run "What is Go?"`},
		{[]string{"./models/nope", "What is Go?"}, query{}, `no model "./models/nope"`},
		{[]string{"/nonexistent", "hello"}, query{}, `no model "/nonexistent"`},
		{[]string{"my models/nope", "hello"}, query{}, `no model "my models/nope"`},
		{[]string{"nope.gguf", "hello"}, query{}, `no model "nope.gguf"`},
		{[]string{"fri", "-"}, query{}, `no model "fri"`},
		{[]string{"nope.GGUF"}, query{}, `no model "nope.GGUF"`},
		{[]string{"my model.gguf"}, query{}, `no model "my model.gguf"`},
		{[]string{"./models/nope"}, query{}, `no model ... echo "./models/nope" | shoal run`},
		{[]string{"llama3"}, query{}, `no model "llama3"`},
		{[]string{"llama3.2:1b"}, query{}, `no model "llama3.2:1b"`},
		{[]string{"deepseek-r1"}, query{}, `no model "deepseek-r1"`},
		{[]string{"fry-tool"}, query{}, `no model "fry-tool"`},
		{[]string{"my_model"}, query{}, `no model "my_model"`},
		{[]string{"mistral:latest"}, query{}, `no model "mistral:latest"`},
		{[]string{"Mistral"}, query{}, `no model "Mistral"`},
		{[]string{"lama"}, query{}, `no model "lama"`},
	} {
		got, err := understand(c.words, checkpoint, served, models.CanPull)
		if c.fails == "" {
			if err != nil || got.checkpoint != c.want.checkpoint || got.served != c.want.served ||
				got.pull != c.want.pull || !slices.Equal(got.text, c.want.text) || (got.text == nil) != (c.want.text == nil) {
				t.Errorf("%q: %+v, %v; want %+v", c.words, got, err, c.want)
			}
			continue
		}
		if err == nil || !testutil.InOrder(err.Error(), c.fails) {
			t.Errorf("%q: %+v, %v; want an error with %q", c.words, got, err, c.fails)
		}
	}
}

func TestNearest(t *testing.T) {
	for word, want := range map[string]string{"statsu": "status", "chta": "chat", "rnu": "run", "bogus": "", "x": "", "": "", "UP": ""} {
		if got, _ := nearest(word, []string{"run", "chat", "status", "up"}); got != want {
			t.Errorf("nearest to %q is %q, want %q", word, got, want)
		}
	}
}

package tokenizer

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/internal/text/jinja/python"
)

// templateGoldens has the output of transformers, written by train/goldens_templates.py.
type templateGoldens struct {
	Cases []struct {
		Name     string
		Messages json.RawMessage
		Prompt   bool
		Tools    json.RawMessage
		Kwargs   map[string]any
	}
	Templates map[string][]struct{ Text, Error *string }
}

func readTemplateGoldens(t *testing.T) (g templateGoldens) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", "templates", "goldens.json.gz"))
	if err != nil {
		t.Fatal(err)
	}
	z, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.NewDecoder(z).Decode(&g); err != nil {
		t.Fatal(err)
	}
	return g
}

// TestTemplatesOfFamilies: for chats with systems, tools, results, thoughts and generated turns,
// the prompts equal those of transformers' apply_chat_template, byte for byte. The templates
// resemble those of Llama 3, Qwen 2.5, 3 and 3.5, Mistral, Mixtral, DeepSeek V2, V3 and R1, and Gemma 3 and 4.
// Chats that transformers refuses are refused.
func TestTemplatesOfFamilies(t *testing.T) {
	g := readTemplateGoldens(t)
	if len(g.Templates) < 21 {
		t.Fatalf("%d templates", len(g.Templates))
	}
	for path, want := range g.Templates {
		t.Run(filepath.Base(path), func(t *testing.T) {
			source, err := os.ReadFile(filepath.FromSlash(path))
			if err != nil {
				t.Fatal(err)
			}
			c, err := newChatTemplate(map[string]string{"default": string(source)},
				map[string]json.RawMessage{"bos_token": []byte(`"<s>"`), "eos_token": []byte(`"</s>"`)}, nil, nil)
			if err != nil {
				t.Fatal(err)
			}
			compared, wrong := 0, 0
			for i, in := range g.Cases {
				messages := chatMessages(t, string(in.Messages))
				if !passesUnchanged(c, messages) {
					continue
				}
				compared++
				r, err := c.Render(messages, RenderOptions{AddGenerationPrompt: in.Prompt, Tools: in.Tools,
					Extra: in.Kwargs, Now: time.Date(2026, 3, 4, 15, 6, 7, 89e6, time.UTC)})
				if say := differs(r.String(), err, want[i].Text, want[i].Error); say != "" {
					if wrong++; wrong <= 5 {
						t.Errorf("%s (prompt %v, %d bytes of tools, %v): %s", in.Name, in.Prompt, len(in.Tools), in.Kwargs, say)
					}
				}
			}
			if compared < len(g.Cases)*9/10 || len(want) != len(g.Cases) {
				t.Errorf("%d of %d cases compared with %d", compared, len(g.Cases), len(want))
			}
			if wrong > 0 {
				t.Errorf("%d differences in all", wrong)
			}
		})
	}
}

// passesUnchanged reports whether the template reads the contents unchanged. Otherwise lists of
// parts are joined, where transformers fails.
func passesUnchanged(c *ChatTemplate, messages []Message) bool {
	for _, m := range messages {
		if (m.Parts == nil && c.plain.content == chatList) || (m.Parts != nil && string(m.Parts) != "null" && c.plain.content == chatString) {
			return false
		}
	}
	return true
}

func differs(got string, err error, text, failure *string) string {
	switch {
	case failure == nil && err != nil:
		return "error " + err.Error() + "; want " + *text
	case failure == nil && got != *text:
		return "\n" + got + "\nwant\n" + *text
	case failure == nil:
		return ""
	case err == nil:
		return "printed " + got + "; transformers fails with " + *failure
	case errors.Is(err, python.ErrInternal):
		return err.Error()
	}
	kind, message, _ := strings.Cut(*failure, ": ")
	sameMessage := strings.Contains(err.Error(), message)
	if kind == "TemplateError" && !(errors.Is(err, python.ErrRaised) && sameMessage) || kind == "UndefinedError" && !sameMessage ||
		kind == "RecursionError" && !errors.Is(err, python.ErrLimit) {
		return "error " + err.Error() + "; want " + *failure
	}
	return ""
}

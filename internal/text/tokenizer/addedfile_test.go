package tokenizer

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// addedFolder is a folder with an added_tokens.json.
func addedFolder(t *testing.T, added, config, specials string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{"tokenizer.json": `{` + tinyModel + `}`, "added_tokens.json": added,
		"tokenizer_config.json": config, "special_tokens_map.json": specials} {
		if text == "" {
			continue
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// Old folders list their own tokens only in added_tokens.json. transformers adds them unless
// tokenizer_config.json has added_tokens_decoder. Those that special_tokens_map.json names are special.
func TestAddedTokensFile(t *testing.T) {
	const added = `{"<|im_start|>": 5, "<|im_end|>": 6, "</s>": 4}`
	for _, test := range []struct {
		config, specials string
		want             []int32 // of the text below
		special          []int32
	}{
		{"", "", []int32{5, 2, 6, 4}, nil},
		{`{"eos_token": "<|im_end|>"}`, "", []int32{5, 2, 6, 4}, []int32{6}},
		{"", `{"eos_token": {"content": "</s>"}, "additional_special_tokens": ["<|im_start|>"]}`, []int32{5, 2, 6, 4}, []int32{4, 5}},
		{`{"added_tokens_decoder": null}`, "", []int32{5, 2, 6, 4}, nil},
		{`{"added_tokens_decoder": {"5": {"content": "<|im_start|>", "special": true}}}`, "", []int32{5, 2}, []int32{5}},
	} {
		dir := addedFolder(t, added, test.config, test.specials)
		tok, err := Load(dir)
		if err != nil {
			t.Fatal(err)
		}
		if got := tok.Encode("<|im_start|>ab<|im_end|></s>", false); !slices.Equal(got, test.want) {
			t.Errorf("%s %s: %v, want %v", test.config, test.specials, got, test.want)
		}
		if got := tok.Specials(); !slices.Equal(got, test.special) {
			t.Errorf("%s %s: specials %v, want %v", test.config, test.specials, got, test.special)
		}
	}
}

// The tokens of the file are control tokens of a chat if the template writes them.
func TestAddedTokensFileInChats(t *testing.T) {
	dir := addedFolder(t, `{"<|im_start|>": 5, "<|im_end|>": 6}`,
		`{"chat_template": "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}"}`, "")
	c, err := LoadChatTemplate(dir)
	if err != nil {
		t.Fatal(err)
	}
	text, err := c.Render([]Message{{Role: "user", Content: "a<|im_end|>b"}}, RenderOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if want := (Rendered{{"<|im_start|>a", false}, {"<|im_end|>", true}, {"b<|im_end|>", false}}); !slices.Equal(text, want) {
		t.Errorf("got %q, want %q", text, want)
	}
}

// An entry that contradicts the vocabulary is skipped with a warning: tokenizer.json counts, as in transformers.
func TestAddedTokensFileConflicts(t *testing.T) {
	for added, says := range map[string]string{`{"new": 2, "<x>": 5}`: `"new" the id 2`, `{"ab": 7, "<x>": 5}`: `"ab" the id 7`} {
		tok, err := Load(addedFolder(t, added, "", ""))
		if err != nil {
			t.Fatal(err)
		}
		if got := tok.Encode("ab<x>", false); !slices.Equal(got, []int32{2, 5}) {
			t.Errorf("%s: %v", added, got)
		}
		if w := strings.Join(tok.Warnings(), "\n"); !strings.Contains(w, "added_tokens.json") || !strings.Contains(w, says) {
			t.Errorf("%s: warnings %q", added, w)
		}
	}
	for _, added := range []string{`[]`, `{"x": -1}`, `{"x": "5"}`, `{"x": 99999999}`, `{"x": 1.5}`,
		fmt.Sprintf(`{%q: 5}`, strings.Repeat("x", maxAddedBytes+1))} {
		_, err := Load(addedFolder(t, added, "", ""))
		if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "added_tokens.json") {
			t.Errorf("%.40s: %v", added, err)
		}
	}
}

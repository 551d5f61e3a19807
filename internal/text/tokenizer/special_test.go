package tokenizer

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Expected values of transformers 5.24 (special_tokens_map, then the tokens without names), except
// for the last three, which it refuses or reads differently.
var specialCases = []struct{ config, specials, want string }{
	{`{}`, `{"bos_token": "<s>"}`, "map[bos_token:<s>] []"},
	{`{"bos_token": null}`, `{"bos_token": {"content": "<s>", "lstrip": false}}`, "map[bos_token:<s>] []"},
	{`{"bos_token": "<x>"}`, `{"bos_token": "<s>"}`, "map[bos_token:<s>] []"},
	{`{"bos_token": "<x>"}`, `{"bos_token": null}`, "map[] []"},
	{`{"added_tokens_decoder": {"1": {"content": "<s>", "special": true}}}`, `{"bos_token": "<s>"}`, "map[] []"},
	{`{"added_tokens_decoder": {}, "eos_token": "</s>"}`, `{"bos_token": "<s>"}`, "map[eos_token:</s>] []"},
	{`{"image_token": "<img>", "add_bos_token": true, "pad_token_id": 3}`, ``, "map[image_token:<img>] []"},
	{`{"image_token": {"content": "<img>", "__type": "AddedToken"}}`, ``, "map[image_token:<img>] []"},
	{`{"extra_special_tokens": {"image_token": "<img>", "boi": "<x>"}}`, ``, "map[boi:<x> image_token:<img>] []"},
	{`{"model_specific_special_tokens": {"image_token": "<img>"}}`, ``, "map[image_token:<img>] []"},
	{`{}`, `{"image_token": "<img>", "additional_special_tokens": ["<x>"]}`, "map[image_token:<img>] [<x>]"},
	{`{}`, `{"extra_special_tokens": {"boi_token": "<x>"}}`, "map[boi_token:<x>] []"},
	{`{"additional_special_tokens": ["<x>", {"content": "<y>", "lstrip": false}]}`, ``, "map[] [<x> <y>]"},
	{`{"extra_special_tokens": ["<x>", "<y>"], "additional_special_tokens": ["<img>"]}`, ``, "map[] [<x> <y> <img>]"},
	{`{"added_tokens_decoder": null}`, `{"bos_token": "<s>"}`, "map[bos_token:<s>] []"},
}

func TestReadSpecials(t *testing.T) {
	for _, c := range specialCases {
		var config, specials map[string]json.RawMessage
		if err := json.Unmarshal([]byte(c.config), &config); err != nil {
			t.Fatal(err)
		}
		if c.specials != "" {
			if err := json.Unmarshal([]byte(c.specials), &specials); err != nil {
				t.Fatal(err)
			}
		}
		s, err := readSpecials(config, specials)
		if got := fmt.Sprint(s.named, " ", s.extra); err != nil || got != c.want {
			t.Errorf("%s %s: %s, %v, want %s", c.config, c.specials, got, err, c.want)
		}
	}
	for _, bad := range []string{`{"bos_token": 1}`, `{"eos_token": {}}`, `{"additional_special_tokens": 5}`, `{"extra_special_tokens": [1]}`, `{"extra_special_tokens": {"x": []}}`} {
		var config map[string]json.RawMessage
		if err := json.Unmarshal([]byte(bad), &config); err != nil {
			t.Fatal(err)
		}
		if _, err := readSpecials(config, nil); err == nil {
			t.Errorf("%s was read", bad)
		}
	}
}

// Tokenizer, template and Info have the same names.
func TestSpecialsReachAll(t *testing.T) {
	config, specials := `{"bos_token": null, "image_token": "<img>", "chat_template": "x"}`, `{"bos_token": {"content": "<s>"}, "eos_token": "</s>"}`
	dir := chatDir(t, nil, map[string]string{"tokenizer_config.json": config, "special_tokens_map.json": specials,
		"chat_template.jinja": "{{ bos_token }}{{ image_token }}{{ eos_token }}{{ pad_token is defined }}"})
	c, err := LoadChatTemplate(dir)
	if err != nil {
		t.Fatal(err)
	}
	if r, err := c.Render(nil, RenderOptions{}); err != nil || r.String() != "<s><img></s>False" {
		t.Errorf("%q, %v", r.String(), err)
	}
	f := Files{Tokenizer: []byte(`{` + tinyModel + `}`), Config: []byte(config), Specials: []byte(specials)}
	tok, err := Parse(f)
	if err != nil {
		t.Fatal(err)
	}
	if id, ok := tok.BOS(); !ok || tok.Token(id) != "<s>" {
		t.Errorf("the tokenizer's BOS is %d, %v", id, ok)
	}
	var info map[string]any
	raw, err := f.Info()
	if err == nil {
		err = json.Unmarshal(raw, &info)
	}
	if want := "map[bos_token:<s> chat_template:x eos_token:</s> image_token:<img>]"; err != nil || fmt.Sprint(info) != want {
		t.Errorf("%v, %v, want %s", info, err, want)
	}
}

// Templates come from the three places that transformers reads.
func TestChatTemplatePlaces(t *testing.T) {
	list := []map[string]string{
		{"name": "default", "template": "d"},
		{"name": "tool_use", "template": "t"},
		{"name": "rag", "template": "{% broken"},
	}
	for name, c := range map[string]struct {
		config       any
		files        map[string]string
		plain, tools string
	}{
		"a string":  {"d", nil, "d", "d"},
		"a list":    {list, nil, "d", "t"},
		"an object": {map[string]string{"default": "d", "tool_use": "t"}, nil, "d", "t"},
		"a file":    {list, map[string]string{"chat_template.jinja": "f"}, "f", "f"},
		"a folder":  {"d", map[string]string{"additional_chat_templates/tool_use.jinja": "u"}, "d", "u"},
		"a file and a folder": {list, map[string]string{"chat_template.jinja": "f",
			"additional_chat_templates/tool_use.jinja": "u", "additional_chat_templates/x.txt": "x"}, "f", "u"},
		"a folder alone":             {nil, map[string]string{"additional_chat_templates/tool_use.jinja": "u"}, "u", "u"},
		"a list without a default":   {list[1:], nil, "", "t"},
		"a list of one":              {[]map[string]string{{"name": "chat", "template": "c"}}, nil, "c", "c"},
		"a list of which no one can": {[]map[string]string{{"name": "a", "template": "c"}, {"name": "b", "template": "c"}}, nil, "", ""},
	} {
		dir := chatDir(t, c.config, nil)
		for file, text := range c.files {
			if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, file)), 0o750); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		tmpl, err := LoadChatTemplate(dir)
		if c.tools == "" {
			if err == nil {
				t.Errorf("%s was loaded", name)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if tmpl.Source() != c.plain || tmpl.ToolSource() != c.tools {
			t.Errorf("%s: %q and %q, want %q and %q", name, tmpl.Source(), tmpl.ToolSource(), c.plain, c.tools)
		}
		for want, tools := range map[string]string{c.plain: "", c.tools: "[{}]"} {
			r, err := tmpl.Render(chatMessages(t, chatIn), RenderOptions{Tools: json.RawMessage(tools)})
			if c.plain == c.tools {
				want = c.plain
			}
			if want == "" && tools == "" {
				if err == nil {
					t.Errorf("%s: rendered %q without tools", name, r.String())
				}
			} else if err != nil || r.String() != want {
				t.Errorf("%s with tools %q: %q, %v", name, tools, r.String(), err)
			}
		}
	}
}

// A bare word is not a string: the template NaN must not become the prompt "NaN".
func TestChatTemplateIsNoBareWord(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"tokenizer_config.json": `{"model_max_length": Infinity, "chat_template": NaN}`, "tokenizer.json": `{}`} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if c, err := LoadChatTemplate(dir); err == nil || !strings.Contains(err.Error(), "chat_template") {
		t.Errorf("%v, %v", c, err)
	}
}

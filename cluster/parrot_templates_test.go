package cluster

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/parrot"
)

// edit changes members of a folder's JSON file; nil removes one.
func edit(t *testing.T, dir, file string, change map[string]any) {
	t.Helper()
	path := filepath.Join(dir, file)
	config := map[string]any{}
	if text, err := os.ReadFile(path); err == nil {
		if err := json.Unmarshal(text, &config); err != nil {
			t.Fatal(err)
		}
	}
	for name, value := range change {
		if config[name] = value; value == nil {
			delete(config, name)
		}
	}
	text, err := json.Marshal(config)
	if err == nil {
		err = os.WriteFile(path, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// Requests and answers use the template that transformers would choose.
func TestParrotNamedTemplates(t *testing.T) {
	type M = map[string]any
	const plain = "{{ image_token }}{% for m in messages %}<|im_start|>{{ m.role }}\n" +
		"{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
	const tools = "TOOLS {{ tools | tojson }} in <tool_call>\n" + plain
	const call = "<tool_call>\n{\"name\": \"put\", \"arguments\": {\"path\": \"a\"}}\n</tool_call>"
	list := []M{{"name": "default", "template": plain}, {"name": "tool_use", "template": tools}}
	for name, change := range map[string]func(dir string){
		"a list": func(dir string) { edit(t, dir, "tokenizer_config.json", M{"chat_template": list}) },
		"a file and a folder": func(dir string) {
			if err := os.Mkdir(filepath.Join(dir, "additional_chat_templates"), 0o750); err != nil {
				t.Fatal(err)
			}
			for file, text := range map[string]string{"chat_template.jinja": plain, "additional_chat_templates/tool_use.jinja": tools} {
				if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
		},
		"a list without a default": func(dir string) {
			edit(t, dir, "tokenizer_config.json", M{"chat_template": append([]M{{"name": "rag", "template": plain}}, list[1])})
		},
	} {
		h := serveParrot(t, parrot.Script{Text: call}, func(dir string) {
			change(dir)
			edit(t, dir, "tokenizer_config.json", M{"image_token": "<|im_start|>", "eos_token": nil})
			edit(t, dir, "special_tokens_map.json", M{"eos_token": "<|im_end|>", "pad_token": M{"content": "<|im_end|>"}})
		})
		ask := M{"messages": []M{{"role": "user", "content": "x"}}, "tools": putTool(`{"type":"object"}`)}
		if got := askChat(t, h, ask, false); got.calls != `put{"path": "a"}` || got.finish != "tool_calls" || got.content != "" {
			t.Errorf("%s: %+v", name, got)
		}
		prompt := func(ask M) string {
			_, text := h.ask("/tokenize", ask)
			var ids struct{ Tokens []int }
			if err := json.Unmarshal([]byte(text), &ids); err != nil {
				t.Fatal(err)
			}
			_, text = h.ask("/detokenize", M{"tokens": ids.Tokens})
			return text
		}
		if text := prompt(ask); !strings.Contains(text, "TOOLS [") || strings.Contains(text, "You can call") {
			t.Errorf("%s: the prompt is %s", name, text)
		}
		delete(ask, "tools")
		code, text := h.ask("/v1/chat/completions", ask)
		if name == "a list without a default" {
			if code != 400 || !strings.Contains(text, "chat-template") {
				t.Errorf("%s: %d %s", name, code, text)
			}
		} else if text := prompt(ask); code != 200 || strings.Contains(text, "TOOLS") || !strings.Contains(text, `"<|im_start|><|im_start|>`) && !strings.Contains(text, `im_start|\u003e\u003c|im_start`) {
			t.Errorf("%s: %d, the prompt is %s", name, code, text)
		}
		_, text = h.ask("/tokenizer_info", nil)
		var info M
		if err := json.Unmarshal([]byte(text), &info); err != nil {
			t.Fatal(err)
		}
		all, _ := info["chat_templates"].(M)
		if info["eos_token"] != "<|im_end|>" || info["pad_token"] != "<|im_end|>" ||
			info["image_token"] != "<|im_start|>" || all["tool_use"] != tools {
			t.Errorf("%s: %s", name, text)
		}
		if want := any(plain); name != "a list without a default" && info["chat_template"] != want {
			t.Errorf("%s: /tokenizer_info has the template %v", name, info["chat_template"])
		}
	}
}

package cluster

import (
	"encoding/json"
	"testing"

	"github.com/shoal-llm/shoal/internal/parrot"
)

// Invalid tool arguments in the history do not fail a request, even if the template reads them as an
// object. The prompt has the part that could be parsed.
func TestParrotBrokenHistory(t *testing.T) {
	type M = map[string]any
	const template = "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content or '' }}" +
		"{% for c in m.tool_calls or [] %}<tool_call>{{ c.function.name }}{% for k, v in c.function.arguments " +
		"| items %}({{ k }}={{ v }}){% endfor %}{% endfor %}<|im_end|>\n{% endfor %}"
	h := serveParrot(t, parrot.Script{Text: "Well said.", Template: template}, nil)
	for _, c := range []struct {
		arguments any
		want      string
	}{
		{`{"path": "cut he`, "put(path=cut he)"},
		{`{"path": "a",}`, "put(path=a)"},
		{`{"path": "a"}`, "put(path=a)"},
		{`not json`, "put"},
		{`[1]`, "put"},
		{``, "put"},
		{`"text"`, "put"},
		{[]int{1}, "put"},
		{7, "put"},
		{nil, "put"},
		{M{"path": "a"}, "put(path=a)"},
	} {
		first, last := M{"role": "user", "content": "x"}, M{"role": "user", "content": "y"}
		call := M{"id": "call_1", "type": "function", "function": M{"name": "put", "arguments": c.arguments}}
		turns := []M{first, {"role": "assistant", "content": nil, "tool_calls": []M{call}},
			{"role": "tool", "tool_call_id": "call_1", "content": "r"}, last}
		uses := []M{first, {"role": "assistant", "content": []M{{"type": "tool_use", "id": "call_1", "name": "put", "input": c.arguments}}},
			{"role": "user", "content": []M{{"type": "tool_result", "tool_use_id": "call_1", "content": "r"}}}, last}
		items := []M{first, {"type": "function_call", "call_id": "call_1", "name": "put", "arguments": c.arguments},
			{"type": "function_call_output", "call_id": "call_1", "output": "r"}, last}
		for path, body := range map[string]M{
			"/v1/chat/completions": {"messages": turns, "max_tokens": 2},
			"/api/chat":            {"model": "parrot", "messages": turns, "stream": false},
			"/v1/messages":         {"messages": uses, "max_tokens": 2},
			"/v1/responses":        {"input": items, "store": false},
		} {
			if code, text := h.ask(path, body); code != 200 {
				t.Errorf("%s, arguments %v: %d %s", path, c.arguments, code, text)
			}
		}
		var ids struct{ Tokens []int }
		code, text := h.ask("/tokenize", M{"messages": turns})
		if err := json.Unmarshal([]byte(text), &ids); err != nil || code != 200 {
			t.Fatalf("%d %s: %v", code, text, err)
		}
		_, text = h.ask("/detokenize", M{"tokens": ids.Tokens})
		var prompt struct{ Prompt string }
		want := "<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n<tool_call>" +
			c.want + "<|im_end|>\n<|im_start|>tool\nr<|im_end|>\n<|im_start|>user\ny<|im_end|>\n"
		if err := json.Unmarshal([]byte(text), &prompt); err != nil || prompt.Prompt != want {
			t.Errorf("arguments %v: the prompt is %q, want %q (%v)", c.arguments, prompt.Prompt, want, err)
		}
	}
}

package cluster

import (
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/parrot"
)

// putTool is a tool of one function, put, with a schema for its parameters.
func putTool(schema string) []any {
	return []any{map[string]any{"type": "function", "function": map[string]any{"name": "put", "parameters": json.RawMessage(schema)}}}
}

// reply is the answer of a chat: content, thought, tool calls with names and arguments, and finish
// reason.
type reply struct {
	content, thought, calls, finish string
	reason                          any
}

// askChat sends a chat with the members of more, streaming or not. It checks that the arguments of
// each call are JSON unless the answer was cut.
func askChat(t *testing.T, h apiOf, more map[string]any, stream bool) reply {
	t.Helper()
	body := map[string]any{"messages": []any{map[string]any{"role": "user", "content": "x"}}, "temperature": 0, "stream": stream}
	maps.Copy(body, more)
	code, text := h.ask("/v1/chat/completions", body)
	if code != 200 {
		t.Fatalf("%d %s", code, text)
	}
	var out reply
	var args []string
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if data, ok := strings.CutPrefix(line, "data: "); ok {
			line = data
		}
		type message struct {
			Content   string
			Reasoning string `json:"reasoning_content"`
			Calls     []struct {
				Function struct{ Name, Arguments string }
			} `json:"tool_calls"`
		}
		var a struct {
			Choices []struct {
				Message, Delta message
				Finish         string `json:"finish_reason"`
				Reason         any    `json:"stop_reason"`
			}
		}
		if line == "" || line == "[DONE]" || line[0] == ':' {
			continue
		}
		if err := json.Unmarshal([]byte(line), &a); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		for _, c := range a.Choices {
			for _, m := range []message{c.Message, c.Delta} {
				out.content, out.thought = out.content+m.Content, out.thought+m.Reasoning
				for _, call := range m.Calls {
					if call.Function.Name != "" {
						args = append(args, "")
						out.calls += " " + call.Function.Name
					}
					args[len(args)-1] += call.Function.Arguments
					out.calls += call.Function.Arguments
				}
			}
			if c.Finish != "" {
				out.finish, out.reason = c.Finish, c.Reason
			}
		}
	}
	for _, a := range args {
		if out.finish == "tool_calls" && (!json.Valid([]byte(a)) || a[0] != '{') {
			t.Errorf("the arguments %q are not a JSON object", a)
		}
	}
	out.calls = strings.TrimPrefix(out.calls, " ")
	return out
}

// The server parses model text into tool calls with JSON arguments, in whole answers and in
// streams.
func TestParrotCalls(t *testing.T) {
	type M = map[string]any
	const schema = `{"type":"object","properties":{"path":{"type":"string"},"n":{"type":"integer"}}}`
	const call = "<tool_call>\n{\"name\": \"put\", \"arguments\": {\"path\": \"a\"}}\n</tool_call>"
	for _, c := range []struct {
		text string
		more M
		want reply
	}{
		{"<tool_call>\n{\"name\": \"put\", \"arguments\": {\"path\": \"l1\nl2\"}}\n</tool_call>", nil, reply{"", "", `put{"path": "l1\nl2"}`, "tool_calls", nil}},
		{"<tool_call>\n{\"name\": \"put\", \"arguments\": {\"path\": \"C:\\dir\", \"n\": 007,}}\n</tool_call>", nil, reply{"", "", `put{"path": "C:\\dir", "n": 7}`, "tool_calls", nil}},
		{"I will.\n<function=put>\n<parameter=path>\na b\n</parameter>\n</function>", nil, reply{"I will.", "", `put{"path": "a b"}`, "tool_calls", nil}},
		{"Use <function=put> like so.", nil, reply{"Use <function=put> like so.", "", "", "stop", nil}},
		{call + "\nDONE now", M{"stop": []string{"DONE"}}, reply{"", "", `put{"path": "a"}`, "tool_calls", "DONE"}},
		{call + "\nDONE now", M{"stop": []string{"</tool_call>"}}, reply{"", "", `put{"path": "a"}`, "tool_calls", "</tool_call>"}},
		{call + "\nDONE now", M{"stop": []string{"a\"}"}}, reply{"", "", `put{"path": "`, "stop", "a\"}"}},
	} {
		h := serveParrot(t, parrot.Script{Text: c.text}, nil)
		more := M{"tools": putTool(schema)}
		maps.Copy(more, c.more)
		for _, stream := range []bool{false, true} {
			if got := askChat(t, h, more, stream); got != c.want {
				t.Errorf("%q %v, stream: %v:\n%+v\nwant\n%+v", c.text, c.more, stream, got, c.want)
			}
		}
	}
	// If max_tokens cuts the answer anywhere, no part of a mark becomes content after a call.
	h := serveParrot(t, parrot.Script{Text: call}, nil)
	for n := 1; ; n++ {
		got := askChat(t, h, M{"tools": putTool(schema), "max_tokens": n}, n%2 == 0)
		if got.calls != "" && got.content != "" {
			t.Errorf("%d tokens: %+v", n, got)
		}
		if got.finish != "length" {
			if want := (reply{"", "", `put{"path": "a"}`, "tool_calls", nil}); got != want {
				t.Errorf("%+v", got)
			}
			break
		}
	}
	// The other protocols return the same.
	h = serveParrot(t, parrot.Script{Text: call + "\nDONE now"}, nil)
	_, text := h.ask("/v1/messages",
		M{"max_tokens": 100, "stop_sequences": []string{"DONE"}, "messages": []M{{"role": "user", "content": "x"}},
			"tools": []M{{"name": "put", "input_schema": json.RawMessage(schema)}}})
	if !strings.Contains(text, `"stop_reason":"tool_use"`) || !strings.Contains(text, `"input":{"path":"a"}`) && !strings.Contains(text, `"input":{"path": "a"}`) {
		t.Error(text)
	}
	if _, text = h.ask("/api/chat", M{"model": "parrot", "stream": false, "messages": []M{{"role": "user", "content": "x"}},
		"tools": putTool(schema)}); !strings.Contains(text, fmt.Sprintf("%q", "path")) {
		t.Error(text)
	}
}

// A Qwen3-Coder parameter is text unless its own schema requires another type.
func TestParrotParameterTypes(t *testing.T) {
	for value, cases := range map[string]map[string]string{
		"1e5": {
			`{"properties":{"path":{"type":"string"}}}`:                                       `"1e5"`,
			`{"properties":{"path":{"anyOf":[{"type":"string"},{"type":"null"}]}}}`:           `"1e5"`,
			`{"properties":{"path":{"type":"string"},"z":true}}`:                              `"1e5"`,
			`{"properties":{"path":{"$ref":"#/$defs/p"}},"$defs":{"p":{"type":"string"}}}`:    `"1e5"`,
			`{"type":"object","additionalProperties":{"type":"string"}}`:                      `"1e5"`,
			`{"patternProperties":{"^p":{"type":"string"}},"additionalProperties":true}`:      `"1e5"`,
			`{"properties":{"path":{"enum":["1e5","x"]}}}`:                                    `"1e5"`,
			`{"properties":{"path":{"const":"1e5"}}}`:                                         `"1e5"`,
			`{"properties":{"path":{"type":["string","integer"]}}}`:                           `"1e5"`,
			`{"properties":{"path":{"allOf":[{"type":"string"}],"format":"no-such-format"}}}`: `"1e5"`,
			`{"properties":{"path":{"type":"integer"}}}`:                                      `100000`,
			`{"properties":{"path":{"type":"number"}}}`:                                       `1e5`,
		},
		"True": {
			`{"properties":{"path":{"type":"boolean"}}}`:            `true`,
			`{"properties":{"path":{"type":["boolean","null"]}}}`:   `true`,
			`{"properties":{"path":{"type":["boolean","string"]}}}`: `"True"`,
		},
		"null": {
			`{"properties":{"path":{"type":["string","null"]}}}`: `null`,
			`{"properties":{"path":{"type":"string"}}}`:          `"null"`,
		},
	} {
		h := serveParrot(t,
			parrot.Script{Text: "<tool_call>\n<function=put>\n<parameter=path>\n" + value + "\n</parameter>\n</function>\n</tool_call>"}, nil)
		for schema, want := range cases {
			if got := askChat(t, h, map[string]any{"tools": putTool(schema)}, false); got.calls != `put{"path": `+want+`}` {
				t.Errorf("%s under %s: %+v, want %s", value, schema, got, want)
			}
		}
	}
}

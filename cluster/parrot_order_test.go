package cluster

import (
	"encoding/json"
	"maps"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/parrot"
)

// spoken is the text of an answer, and its tool calls as names with compact arguments.
type spoken struct{ text, calls string }

func (s *spoken) call(t *testing.T, name, arguments string) {
	t.Helper()
	var v map[string]any
	if err := json.Unmarshal([]byte(arguments), &v); err != nil || name == "" {
		t.Errorf("a call of %q has the arguments %q: %v", name, arguments, err)
	}
	b, _ := json.Marshal(v)
	s.calls += name + string(b)
}

// objectsOf returns the objects of a stream, or the single object of a non-streaming answer.
func objectsOf(t *testing.T, text string) (list []map[string]any) {
	t.Helper()
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(strings.TrimPrefix(line, "data: "))
		if line == "" || line[0] != '{' {
			continue
		}
		var v map[string]any
		if err := json.Unmarshal([]byte(line), &v); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		list = append(list, v)
	}
	return list
}

func objects(v any) (list []map[string]any) {
	all, _ := v.([]any)
	for _, x := range all {
		m, _ := x.(map[string]any)
		list = append(list, m)
	}
	return list
}

func word(v any) string { s, _ := v.(string); return s }

// ofMessages parses an answer of /v1/messages. blocks lists the kinds of its content blocks in
// order.
func ofMessages(t *testing.T, text string) (s spoken, blocks string) {
	t.Helper()
	var open map[string]any
	partial := ""
	for _, e := range objectsOf(t, text) {
		for _, b := range objects(e["content"]) {
			blocks += word(b["type"]) + " "
			if s.text += word(b["text"]); b["type"] == "tool_use" {
				input, _ := json.Marshal(b["input"])
				s.call(t, word(b["name"]), string(input))
			}
		}
		switch d, _ := e["delta"].(map[string]any); e["type"] {
		case "content_block_start":
			open, _ = e["content_block"].(map[string]any)
			blocks, partial = blocks+word(open["type"])+" ", ""
		case "content_block_delta":
			s.text, partial = s.text+word(d["text"]), partial+word(d["partial_json"])
		case "content_block_stop":
			if open["type"] == "tool_use" {
				s.call(t, word(open["name"]), partial)
			}
		}
	}
	return s, blocks
}

// ofResponses does the same for /v1/responses.
func ofResponses(t *testing.T, text string) (s spoken, blocks string) {
	t.Helper()
	list := objectsOf(t, text)
	last := list[len(list)-1]
	if whole, streamed := last["response"].(map[string]any); streamed {
		last = whole
	}
	for _, x := range objects(last["output"]) {
		switch x["type"] {
		case "function_call":
			blocks += "tool_use "
			s.call(t, word(x["name"]), word(x["arguments"]))
		case "message":
			blocks += "text "
			for _, p := range objects(x["content"]) {
				s.text += word(p["text"])
			}
		}
	}
	deltas := ""
	for _, e := range list {
		if e["type"] == "response.output_text.delta" {
			deltas += word(e["delta"])
		}
	}
	if len(list) > 1 && deltas != s.text {
		t.Errorf("the deltas of the text are %q, its items %q", deltas, s.text)
	}
	return s, blocks
}

func ofOllama(t *testing.T, text string) (s spoken) {
	t.Helper()
	for _, e := range objectsOf(t, text) {
		m, _ := e["message"].(map[string]any)
		s.text += word(m["content"])
		for _, c := range objects(m["tool_calls"]) {
			f, _ := c["function"].(map[string]any)
			args, _ := json.Marshal(f["arguments"])
			s.call(t, word(f["name"]), string(args))
		}
	}
	return s
}

func ofChat(t *testing.T, h apiOf, more map[string]any, stream bool) (s spoken) {
	t.Helper()
	got := askChat(t, h, more, stream)
	s.text = got.content
	for call := range strings.SplitSeq(got.calls, " put") {
		name, args, _ := strings.Cut(call, "{")
		s.call(t, "put"+strings.TrimPrefix(name, "put"), "{"+args)
	}
	return s
}

// One delta may contain text and the end of a call. Every API keeps their order.
func TestParrotTextBesideCalls(t *testing.T) {
	type M = map[string]any
	const schema = `{"type":"object","properties":{"path":{"type":"string"}}}`
	const hermes = "<tool_call>\n{\"name\": \"put\", \"arguments\": {\"path\": \"a\"}}\n</tool_call>"
	for _, c := range []struct {
		text, stop string
		want       spoken
		blocks     string
	}{
		{"<function=put>\n<parameter=path>\nok\n</parameter>\n</function>trailing words", "", spoken{"trailing words", `put{"path":"ok"}`}, "tool_use text "},
		{"<function=put>\n<parameter=path>\nok\n</parameter>\n</function>trailing words", "words never said", spoken{"trailing words", `put{"path":"ok"}`}, "tool_use text "},
		{"<function=put>\n<parameter=path>\nok\n</parameter>\n</function>trailing words", "ng words", spoken{"traili", `put{"path":"ok"}`}, "tool_use text "},
		{"I go.\n<function=put>\n<parameter=path>\nfirst\n</parameter>\nmore\n</parameter>\n</function> then bye", "", spoken{"I go.\nmore then bye", `put{"path":"first"}`}, "text tool_use text "},
		{hermes + " and after", "", spoken{" and after", `put{"path":"a"}`}, "tool_use text "},
		{hermes + "then text <tool_call>{\"name\":\"put\",\"arguments\":{\"path\":\"second\"}}</tool_call> bye", "", spoken{"then text bye", `put{"path":"a"}put{"path":"second"}`}, "tool_use text tool_use text "},
		{"<function=put>\n<parameter=path>\nok\n</parameter>\n</function>then words <function=put>\n<parameter=path>second</parameter></function>bye", "", spoken{"then wordsbye", `put{"path":"ok"}put{"path":"second"}`}, "tool_use text tool_use text "},
	} {
		h := serveParrot(t, parrot.Script{Text: c.text}, nil)
		for _, stream := range []bool{false, true} {
			ask := func(path string, more M) string {
				body := M{"model": "parrot", "stream": stream}
				maps.Copy(body, more)
				code, text := h.ask(path, body)
				if code != 200 {
					t.Fatalf("%s: %d %s", path, code, text)
				}
				return text
			}
			check := func(path string, got spoken, blocks string) {
				if got != c.want || blocks != c.blocks {
					t.Errorf("%q, stop %q, %s, stream: %v:\n%q %q\nwant\n%q %q", c.text, c.stop, path, stream, got, blocks, c.want, c.blocks)
				}
			}
			turns, stop := []M{{"role": "user", "content": "x"}}, M{}
			if c.stop != "" {
				stop["stop"] = []string{c.stop}
			}
			more := M{"tools": putTool(schema)}
			maps.Copy(more, stop)
			check("chat", ofChat(t, h, more, stream), c.blocks)
			check("ollama", ofOllama(t, ask("/api/chat", M{"messages": turns, "tools": putTool(schema), "options": stop})), c.blocks)
			more = M{"max_tokens": 500, "messages": turns, "tools": []M{{"name": "put", "input_schema": json.RawMessage(schema)}}}
			if c.stop != "" {
				more["stop_sequences"] = []string{c.stop}
			}
			got, blocks := ofMessages(t, ask("/v1/messages", more))
			check("messages", got, blocks)
			more = M{"input": "x", "tools": []M{{"type": "function", "name": "put", "parameters": json.RawMessage(schema)}}}
			maps.Copy(more, stop)
			got, blocks = ofResponses(t, ask("/v1/responses", more))
			check("responses", got, blocks)
		}
	}
}

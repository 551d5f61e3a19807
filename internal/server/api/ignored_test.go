package api

import (
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/server/engine"
	"github.com/shoal-llm/shoal/internal/server/servertest"
)

// TestEffort: each client's parameter for how much a model thinks; the template's own parameter wins.
func TestEffort(t *testing.T) {
	url, seen := serveTools(t, hermesTemplate, &servertest.Engine{Script: writes("ok")})
	base := strings.TrimSuffix(url, "/v1/chat/completions")
	for _, c := range []struct {
		more   string
		think  any // nil: not set
		effort any
	}{
		{``, nil, nil},
		{`,"reasoning_effort":null`, nil, nil},
		{`,"reasoning_effort":"medium"`, true, "medium"},
		{`,"reasoning_effort":"low"`, true, "low"},
		{`,"reasoning_effort":"xhigh"`, true, "xhigh"},
		{`,"reasoning_effort":"none"`, false, "none"},
		{`,"reasoning_effort":"minimal"`, false, "minimal"},
		{`,"reasoning":{"effort":"high"}`, true, "high"},
		{`,"reasoning":{"enabled":false}`, false, "none"},
		{`,"reasoning_effort":"high","enable_thinking":false`, false, "high"},
		{`,"reasoning_effort":"none","chat_template_kwargs":{"enable_thinking":true,"reasoning_effort":"low"}`, true, "low"},
	} {
		for _, path := range []string{"/v1/chat/completions", "/tokenize"} {
			*seen = engine.Conversation{}
			a := post(t, base+path, `{"messages":[{"role":"user","content":"x"}]`+c.more+`}`)
			if a.status != 200 || a.header.Get("X-Ignored-Parameters") != "" || seen.Kwargs["enable_thinking"] != c.think ||
				seen.Kwargs["reasoning_effort"] != c.effort {
				t.Errorf("%s %s: %d, the template got %v: %s", path, c.more, a.status, seen.Kwargs, a.raw)
			}
		}
	}
	for effort, think := range map[string]bool{"high": true, "none": false} {
		if a := post(t, base+"/v1/responses", `{"input":"x","store":false,"reasoning":{"effort":"`+effort+`"}}`); a.status != 200 || seen.Kwargs["enable_thinking"] != think {
			t.Errorf("responses, %s: %v", effort, seen.Kwargs)
		}
	}
	for more, param := range map[string]string{`"reasoning_effort":3`: "reasoning_effort", `"reasoning":"low"`: "reasoning"} {
		checkParam(t, post(t, url, `{"messages":[{"role":"user","content":"x"}],`+more+`}`), param, more)
	}
}

// TestWithoutEffect: words that cannot change the text of an answer are named, not refused, and
// not named when they ask for nothing.
func TestWithoutEffect(t *testing.T) {
	e := &servertest.Engine{Script: servertest.Hello}
	for _, strict := range []bool{false, true} {
		url := serve(t, e, func(c *Config) { c.Strict = strict })
		for _, c := range []struct{ path, body, left string }{
			{"/v1/chat/completions", `"messages":[{"role":"user","content":"x"}],"store":true,"verbosity":"low","web_search_options":{},"prediction":{},"service_tier":"auto"`, "prediction, service_tier, store, verbosity, web_search_options"},
			{"/v1/chat/completions", `"messages":[{"role":"user","content":"x"}],"store":false,"verbosity":"medium","metadata":{}`, ""},
			{"/v1/completions", `"prompt":"x","store":true`, "store"},
			{"/v1/responses", `"input":"x","store":false,"context_management":[{"type":"compaction","compact_threshold":1000}]`, "context_management"},
			{"/v1/messages", `"max_tokens":9,"messages":[{"role":"user","content":"x"}],"context_management":{"edits":[{"type":"clear_tool_uses_20250919"}]},"container":"c","mcp_servers":[{"type":"url"}]`, "container, context_management, mcp_servers"},
			{"/v1/messages", `"max_tokens":9,"messages":[{"role":"user","content":"x"}],"tools":[{"type":"web_search_20250305","name":"web_search","max_uses":5},{"type":"bash_20250124","name":"bash"},{"name":"f","input_schema":{"type":"object"}},{"type":"mcp_toolset","mcp_server_name":"m","name":{}},{"type":"text_editor_20250728","name":"e"}]`, "tools[0], tools[1], tools[3], tools[4]"},
			{"/v1/messages", `"max_tokens":9,"messages":[{"role":"user","content":"x"}],"stop_sequences":["1","2","3","4","5","6"]`, ""},
		} {
			a := post(t, url+c.path, "{"+c.body+"}")
			switch {
			case strict && c.left != "":
				if first, _, _ := strings.Cut(c.left, ","); a.status != 400 || !strings.Contains(a.raw, first) {
					t.Errorf("strict: %s: %d %s", c.body, a.status, a.raw)
				}
			case a.status != 200 || a.header.Get("X-Ignored-Parameters") != c.left:
				t.Errorf("%s %s: %d %s, ignored %q, want %q", c.path, c.body, a.status, a.raw, a.header.Get("X-Ignored-Parameters"), c.left)
			}
		}
	}
	url := serve(t, e)
	if a := post(t, url+"/v1/messages", `{"max_tokens":9,"messages":[{"role":"user","content":"x"}],"tools":[{"type":"web_search_20250305","name":"web_search"}],"tool_choice":{"type":"any"}}`); a.status != 400 {
		t.Errorf("a call of a tool that was left out cannot be forced: %d %s", a.status, a.raw)
	}
	if a := get(t, url+"/v1/models?client_version=0.0.0"); len(at(t, a.body, "models").([]any)) != 0 ||
		at(t, a.body, "data", 0, "id") != "fake/model" {
		t.Error(a.raw)
	}
	if a := get(t, url+"/v1/models"); strings.Contains(a.raw, `"models"`) {
		t.Error(a.raw)
	}
}

// TestStopsInAnswer: Anthropic's stop sequences are of the text, OpenAI's of all that is generated.
func TestStopsInAnswer(t *testing.T) {
	for output, c := range map[string]struct{ stop, thought, text, reason string }{
		"<think>first:\n\nthen</think>\n\nanswer one\n\nmore": {`\n\n`, "first:\n\nthen", "answer one", "stop_sequence"},
		"<think>then</think>\n\nand then no":                  {`then`, "then", "and ", "stop_sequence"},
		"<think>then</think>and no":                           {`then`, "then", "and no", "end_turn"},
		"<think>a</think>bc</think>d":                         {`</think>`, "a", "bc", "stop_sequence"},
		"no thought then":                                     {`then`, "", "no thought ", "stop_sequence"},
		" <thin then":                                         {`<thin`, "", " ", "stop_sequence"},
		"<thi":                                                {`hi`, "", "<t", "stop_sequence"},
		"<thi ":                                               {`x`, "", "<thi ", "end_turn"},
	} {
		url, _, _ := serveMessages(t, hermesTemplate, output)
		for _, stream := range []string{"false", "true"} {
			a := post(t, url, `{"max_tokens":300,"stream":`+stream+`,"messages":[{"role":"user","content":"x"}],"stop_sequences":["`+c.stop+`"]}`)
			if stream == "true" {
				if !strings.Contains(a.raw, `"stop_reason":"`+c.reason+`"`) {
					t.Errorf("stream of %q: %s", output, a.raw)
				}
				continue
			}
			thought, text := "", ""
			for _, b := range at(t, a.body, "content").([]any) {
				switch b := b.(M); b["type"] {
				case "thinking":
					thought = b["thinking"].(string)
				case "text":
					text = b["text"].(string)
				}
			}
			if thought != c.thought || text != c.text || at(t, a.body, "stop_reason") != c.reason {
				t.Errorf("%q: thought %q, text %q, want %q: %s", output, thought, text, c.text, a.raw)
			}
		}
	}
	const all = "I look.\nHi the end" // in messages of their own: "ook.H" is in none
	for stop, want := range map[string]string{"hm": all, "end": "I look.\nHi the ", "final": all, "Hi": "I look.", "ook.H": all} {
		url, _, _ := serveMessages(t, ossTemplate, "<|channel|>analysis<|message|>hm, Hi end<|end|><|start|>assistant"+
			"<|channel|>commentary<|message|>I look.<|end|><|start|>assistant<|channel|>analysis<|message|>hm<|end|>"+
			"<|start|>assistant<|channel|>final<|message|>Hi the end<|return|>")
		a := post(t, url, M{"max_tokens": 300, "messages": []M{{"role": "user", "content": "x"}}, "stop_sequences": []string{stop}})
		text, reason := "", "end_turn"
		if want != all {
			reason = "stop_sequence"
		}
		for _, b := range at(t, a.body, "content").([]any) {
			if b := b.(M); b["type"] == "text" {
				text += b["text"].(string)
			}
		}
		if text != want || at(t, a.body, "stop_reason") != reason {
			t.Errorf("channels, stop %q: text %q, want %q: %v", stop, text, want, at(t, a.body, "stop_reason"))
		}
	}
	url, _ := serveTools(t, hermesTemplate, &servertest.Engine{Script: writes("<think>first:\n\nthen</think>\n\nanswer")})
	if a := post(t, url, chat(M{"stop": "\n\n"})); at(t, a.body, "choices", 0, "message", "reasoning_content") != "first:" ||
		at(t, a.body, "choices", 0, "finish_reason") != "stop" {
		t.Errorf("a chat's stop applies in the thought, against the documentation: %s", a.raw)
	}
}

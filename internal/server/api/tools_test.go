package api

import (
	"errors"
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/server/engine"
	"github.com/shoal-llm/shoal/internal/server/servertest"
	"github.com/shoal-llm/shoal/internal/text/grammar"
)

// toolTemplate is the fake one of a family.
type toolTemplate struct {
	servertest.Template
	source string
	seen   *engine.Conversation
}

func (t toolTemplate) Source() string { return t.source }

func (t toolTemplate) Render(c engine.Conversation) ([]engine.Segment, error) {
	*t.seen = c
	if strings.Contains(t.source, "raise_exception") && c.Kwargs["reasoning_effort"] == "high" {
		return nil, errors.New("unexpected reasoning effort high")
	}
	out, err := t.Template.Render(c)
	if strings.HasSuffix(t.source, "<think>") {
		out = append(out, engine.Segment{Text: "<think>\n"})
	}
	if strings.HasSuffix(t.source, "<|START_THINKING|>") {
		out = append(out, engine.Segment{Text: "<|START_THINKING|>"})
	}
	if strings.HasSuffix(t.source, "<|start|>assistant") {
		out = append(out, engine.Segment{Text: "<|start|>assistant"})
	}
	return out, err
}

// writes is the script of a model that writes a text.
func writes(text string) func(*engine.Request) []engine.Event {
	var ids []int32
	for _, b := range []byte(text) {
		ids = append(ids, int32(b))
	}
	return servertest.Tokens(engine.FinishStop, append(ids, servertest.TokEOS)...)
}

func serveTools(t *testing.T, source string, e *servertest.Engine) (string, *engine.Conversation) {
	t.Helper()
	cfg := testConfig()
	cfg.MaxModelLen = 8192
	seen := new(engine.Conversation)
	s, err := New(cfg, e, servertest.Tokenizer{}, toolTemplate{source: source, seen: seen})
	if err != nil {
		t.Fatal(err)
	}
	h := httptest.NewServer(s.Handler())
	t.Cleanup(func() { h.Close(); e.Live.Wait() })
	return h.URL + "/v1/chat/completions", seen
}

const (
	hermesTemplate = "{{ tools }} <tool_call> </think>"
	gemmaTemplate  = "{{ tools }} <|tool_call>call: <|channel>thought <channel|>"
	cohereTemplate = "{{ tools }} <|START_THINKING|> <|END_THINKING|> <|START_ACTION|>"
	ossTemplate    = "{{ tools }} <|start|>assistant<|channel|>"
)

func weather(more ...M) []M {
	return append([]M{{"type": "function", "function": M{"name": "get_weather", "description": "of a city", "strict": false,
		"parameters": M{"type": "object", "properties": M{"city": M{"type": "string"}}, "required": []string{"city"}}}}}, more...)
}

// joined puts the deltas of a stream together.
func joined(t *testing.T, ev []event) (content, thought, calls, finish string) {
	t.Helper()
	for _, e := range ev {
		if e.data == "[DONE]" {
			continue
		}
		for _, c := range at(t, e.json, "choices").([]any) {
			c := c.(M)
			d := c["delta"].(M)
			if s, ok := d["content"].(string); ok {
				content += s
			}
			if s, ok := d["reasoning_content"].(string); ok {
				thought += s
			}
			if list, ok := d["tool_calls"].([]any); ok {
				for _, x := range list {
					f, x := x.(M)["function"].(M), x.(M)
					if name, begins := f["name"].(string); begins {
						if x["index"] != float64(strings.Count(calls, ";")) || !strings.HasPrefix(x["id"].(string), "call_") || x["type"] != "function" {
							t.Errorf("a call begins with %v", x)
						}
						calls += name + ";"
					} else if x["id"] != nil || x["type"] != nil || x["index"] != float64(strings.Count(calls, ";")-1) {
						t.Errorf("a call continues with %v", x)
					}
					calls = strings.TrimSuffix(calls, ";") + f["arguments"].(string) + ";"
				}
			}
			if s, ok := c["finish_reason"].(string); ok {
				finish = s
			}
		}
	}
	return content, thought, calls, finish
}

// A stream has the same thoughts, text, calls, ids of calls and finish reason as the whole answer.
func TestToolCalls(t *testing.T) {
	for _, c := range []struct {
		text, content, thought, calls, finish string
	}{
		{"Just text.", "Just text.", "", "", "stop"},
		{"<think>\nhm\n</think>\n\nI look.\n<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Oslo\"}}\n</tool_call>", "I look.", "hm", `get_weather{"city": "Oslo"};`, "tool_calls"},
		{"<tool_call>{\"name\": \"get_weather\", \"arguments\": {}}</tool_call><tool_call>{\"name\": \"get_weather\", \"arguments\": {\"city\": \"日\"}}</tool_call>", "", "", `get_weather{};get_weather{"city": "日"};`, "tool_calls"},
		{"<tool_call>{\"name\": \"get_weather\", \"arguments\": {</tool_call>", "", "", `get_weather{};`, "tool_calls"},
		{"<tool_call>{\"name\": \"get_weather\", \"arguments\": {\"city\": {</tool_call> so", " so", "", `get_weather{"city": {}};`, "tool_calls"},
		{"<tool_call>{\"name\": \"unknown\", \"arguments\": {}}</tool_call>",
			"<tool_call>{\"name\": \"unknown\", \"arguments\": {}}</tool_call>", "", "", "stop"},
		{"<|channel>thought\nhm\n<channel|>I look.<|tool_call>call:get_weather{city:<|\"|>Os\"lo<|\"|>}<tool_call|>", "I look.", "hm", `get_weather{"city":"Os\"lo"};`, "tool_calls"},
		{"<|tool_call>call:get_weather{}<tool_call|><|tool_call>call:get_weather{city:<|\"|>日<|\"|>}<tool_call|><|tool_response>", "", "", `get_weather{};get_weather{"city":"日"};`, "tool_calls"},
		{"<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary<|message|>I look.<|end|><|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{\"city\":\"Oslo\"}", "I look.", "hm", `get_weather{"city":"Oslo"};`, "tool_calls"},
		{"<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>Hi.", "Hi.", "hm", "", "stop"},
	} {
		template := hermesTemplate
		if strings.HasPrefix(c.text, "<|channel|>") {
			template = ossTemplate
		} else if strings.HasPrefix(c.text, "<|") {
			template = gemmaTemplate
		}
		url, seen := serveTools(t, template, &servertest.Engine{Script: writes(c.text)})
		body := chat(M{"tools": weather(), "logprobs": true})
		a := post(t, url, body)
		if a.status != 200 {
			t.Fatal(a.raw)
		}
		if !strings.Contains(string(seen.Tools), "get_weather") {
			t.Error("the template did not get the tools")
		}
		m := at(t, a.body, "choices", 0, "message").(M)
		var calls string
		if list, ok := m["tool_calls"].([]any); ok {
			for _, x := range list {
				f := x.(M)["function"].(M)
				if id := x.(M)["id"].(string); !strings.HasPrefix(id, "call_") || len(id) != 29 {
					t.Errorf("id %q", id)
				}
				calls += fmt.Sprint(f["name"], f["arguments"], ";")
			}
		}
		content, _ := m["content"].(string)
		thought, _ := m["reasoning_content"].(string)
		if finish := at(t, a.body, "choices", 0, "finish_reason"); content != c.content || thought != c.thought ||
			calls != c.calls || finish != c.finish {
			t.Errorf("%q: content %q, thought %q, calls %q, finish %v", c.text, content, thought, calls, finish)
		}
		content, thought, calls, finish := joined(t, stream(t, url, body))
		if content != c.content || thought != c.thought || finish != c.finish || calls != c.calls {
			t.Errorf("%q streamed: content %q, thought %q, calls %q, finish %v", c.text, content, thought, calls, finish)
		}
	}
}

// Answers of gpt-oss have channels also without tools.
func TestChannelsWithoutTools(t *testing.T) {
	url, _ := serveTools(t, ossTemplate,
		&servertest.Engine{Script: writes("<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>Hi.")})
	a := post(t, url, chat(M{}))
	m := at(t, a.body, "choices", 0, "message").(M)
	if m["content"] != "Hi." || m["reasoning_content"] != "hm" || at(t, a.body, "choices", 0, "finish_reason") != "stop" {
		t.Error(a.raw)
	}
	if content, thought, _, finish := joined(t, stream(t, url, chat(M{}))); content != "Hi." || thought != "hm" || finish != "stop" {
		t.Errorf("streamed: content %q, thought %q, finish %v", content, thought, finish)
	}
}

// Output of gpt-oss under a grammar begins with the header of a message.
func TestForcedTextHasAHeader(t *testing.T) {
	for _, c := range []struct {
		ask  M
		want string
	}{
		{M{}, ""},
		{M{"structured_outputs": M{"choice": []string{"a", "b"}}}, "<|channel|>final<|message|>"},
		{M{"response_format": M{"type": "json_object"}}, "<|channel|>final <|constrain|>json<|message|>"},
		{M{"tools": weather(), "tool_choice": "required"}, "<|channel|>commentary to="},
	} {
		e := &servertest.Engine{Script: servertest.Hello}
		url, _ := serveTools(t, ossTemplate+" <|start|>assistant", e)
		if a := post(t, url, chat(c.ask)); a.status != 200 {
			t.Fatal(a.raw)
		}
		var text []byte
		for _, id := range e.Last(t).Prompt {
			if id < 256 {
				text = append(text, byte(id))
			}
		}
		if want := "<|start|>assistant" + c.want; !strings.HasSuffix(string(text), want) {
			t.Errorf("%v: the prompt is %q, want the end %q", c.ask, text, want)
		}
	}
}

// A call that must be made is enforced by a grammar, in the words of the family.
func TestForcedCalls(t *testing.T) {
	strict := M{"type": "function",
		"function": M{"name": "g", "strict": true, "parameters": M{"type": "object", "properties": M{"a": M{"type": "integer"}}}}}
	for _, c := range []struct {
		source   string
		ask      M
		fits, no []string
	}{
		{"{{ tools }} <tool_call>", M{"tools": weather(), "tool_choice": "required"}, []string{
			"<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Oslo\"}}\n</tool_call>",
			"<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"a\"}}\n</tool_call>\n" +
				"<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"b\"}}\n</tool_call>"},
			[]string{"text", "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {}}\n</tool_call>"}},
		{"{{ tools }} ipython", M{"tools": weather(strict), "tool_choice": M{"type": "function", "function": M{"name": "g"}}}, []string{`{"name": "g", "parameters": {"a": 1}}`},
			[]string{`{"name": "get_weather", "parameters": {"city": "a"}}`, `[{"name": "g", "parameters": {"a": 1}}]`}},
		{"{{ tools }} [TOOL_CALLS]", M{"tools": weather(), "tool_choice": "required", "parallel_tool_calls": true}, []string{`[{"name": "get_weather", "parameters": {"city": "a"}}, {"name": "get_weather", "parameters": {"city": "b"}}]`}, []string{"[]"}},
		{"{{ tools }} <tool_call> <think></think> <think>", M{"tools": weather(), "tool_choice": "required"},
			[]string{"hm</think>\n<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Oslo\"}}\n</tool_call>"},
			[]string{"hm</think>no"}},
		{ossTemplate + " <|start|>assistant", M{"tools": weather(strict), "tool_choice": "required"}, []string{`functions.get_weather <|constrain|>json<|message|>{"city": "a"}`, `functions.g <|constrain|>json<|message|>{"a": 1}`},
			[]string{`functions.g <|constrain|>json<|message|>{"a": "x"}`, `functions.h <|constrain|>json<|message|>{}`, `{"name": "g", "parameters": {"a": 1}}`}},
		{ossTemplate + " <|start|>assistant", M{"tools": weather(strict), "tool_choice": M{"type": "function", "function": M{"name": "g"}}}, []string{`functions.g <|constrain|>json<|message|>{"a": 1}`},
			[]string{`functions.get_weather <|constrain|>json<|message|>{"city": "a"}`}},
		{cohereTemplate, M{"tools": weather(strict), "tool_choice": "required"},
			[]string{"[\n    {\"tool_call_id\": \"0\", \"tool_name\": \"g\", \"parameters\": {\"a\": 1}},\n" +
				"    {\"tool_call_id\": \"1\", \"tool_name\": \"get_weather\", \"parameters\": {\"city\": \"a\"}}\n]<|END_ACTION|>"},
			[]string{"[\n\n]<|END_ACTION|>", "[\n    {\"tool_call_id\": \"0\", \"tool_name\": \"g\", \"parameters\": {\"a\": 1}}\n]"}},
		{cohereTemplate, M{"tools": weather(), "tool_choice": "required", "parallel_tool_calls": false},
			[]string{"[\n    {\"tool_call_id\": \"0\", \"tool_name\": \"get_weather\", \"parameters\": {\"city\": \"a\"}}\n]<|END_ACTION|>"},
			[]string{"[\n    {\"tool_call_id\": \"0\", \"tool_name\": \"get_weather\", \"parameters\": {\"city\": \"a\"}},\n" +
				"    {\"tool_call_id\": \"1\", \"tool_name\": \"get_weather\", \"parameters\": {\"city\": \"a\"}}\n]<|END_ACTION|>"}},
		{"{{ tools }} <tool_call>", M{"tools": weather(strict)},
			[]string{"free text", "a <tool_call>\n{\"name\": \"g\", \"arguments\": {\"a\": 1}}\n</tool_call> b"},
			[]string{"<tool_call>\n{\"name\": \"g\", \"arguments\": {\"a\": \"x\"}}\n</tool_call>", "<tool_call>x"}},
		{"{{ tools }} </think>", M{"response_format": M{"type": "json_object"}}, []string{"{}", "<think>x</think>\n{}"}, []string{"x</think>{}"}},
	} {
		e := &servertest.Engine{Script: servertest.Hello}
		url, _ := serveTools(t, c.source, e)
		if a := post(t, url, chat(c.ask)); a.status != 200 {
			t.Fatal(a.raw)
		}
		spec := e.Last(t).Sampling.Grammar
		if spec == nil {
			t.Fatalf("%v: no grammar", c.ask)
		}
		g, err := grammar.New(&grammar.Vocabulary{}, *spec)
		if err != nil {
			t.Fatal(err)
		}
		judge := func(s string) bool {
			at, err := g.Start().AdvanceBytes([]byte(s))
			return err == nil && at.Ends()
		}
		for _, s := range c.fits {
			if !judge(s) {
				t.Errorf("%v refuses %q: %s", c.ask, s, spec.Text)
			}
		}
		for _, s := range c.no {
			if judge(s) {
				t.Errorf("%v takes %q", c.ask, s)
			}
		}
	}
}

// A forced call of gpt-oss or Command A begins in the prompt. Every API returns it as a call.
func TestForcedCallsBeginInThePrompt(t *testing.T) {
	for _, c := range []struct{ template, answer, end string }{
		{ossTemplate + " <|start|>assistant", `functions.get_weather <|constrain|>json<|message|>{"city": "Oslo"}`, "<|start|>assistant<|channel|>commentary to="},
		{cohereTemplate, "[\n    {\"tool_call_id\": \"0\", \"tool_name\": \"get_weather\", \"parameters\": " +
			"{\"city\": \"Oslo\"}}\n]<|END_ACTION|>", "<|START_ACTION|>"},
		{cohereTemplate + "<|START_THINKING|>",
			"[\n    {\"tool_call_id\": \"0\", \"tool_name\": \"get_weather\", \"parameters\": {\"city\": \"Oslo\"}}\n]<|END_ACTION|>",
			"<|END_THINKING|><|START_ACTION|>"},
	} {
		e := &servertest.Engine{Script: writes(c.answer)}
		url, _ := serveTools(t, c.template, e)
		base := strings.TrimSuffix(url, "/v1/chat/completions")
		parameters := M{"type": "object", "properties": M{"city": M{"type": "string"}}, "required": []string{"city"}}
		for path, ask := range map[string]M{
			"/v1/chat/completions": chat(M{"tools": weather(), "tool_choice": "required"}),
			"/v1/messages": messages(M{
				"tools":       []M{{"name": "get_weather", "input_schema": parameters}},
				"tool_choice": M{"type": "tool", "name": "get_weather"},
			}),
			"/v1/responses": {"model": "fake/model", "input": "x", "tools": []M{{"type": "function",
				"name": "get_weather", "parameters": parameters}}, "tool_choice": M{"type": "function", "name": "get_weather"}},
		} {
			a := post(t, base+path, ask)
			if a.status != 200 || !strings.Contains(a.raw, `"get_weather"`) || !strings.Contains(strings.ReplaceAll(a.raw, `\`, ""), `{"city": "Oslo"}`) && !strings.Contains(a.raw, `{"city":"Oslo"}`) || strings.Contains(a.raw, "<|") {
				t.Errorf("%s: %d %s", path, a.status, a.raw)
			}
			var text []byte
			for _, id := range e.Last(t).Prompt {
				if id < 256 {
					text = append(text, byte(id))
				}
			}
			if !strings.HasSuffix(string(text), c.end) {
				t.Errorf("%s: the prompt is %q, want the end %q", path, text, c.end)
			}
		}
		content, thought, calls, finish := joined(t, stream(t, url, chat(M{"tools": weather(), "tool_choice": "required"})))
		if content != "" || thought != "" || calls != `get_weather{"city": "Oslo"};` || finish != "tool_calls" {
			t.Errorf("streamed: content %q, thought %q, calls %q, finish %v", content, thought, calls, finish)
		}
	}
}

// A template with tools gets calls and results unchanged, Mistral's with ids of nine letters. A
// template without tools gets them as plain text.
func TestToolTurns(t *testing.T) {
	messages := []M{{"role": "user", "content": "Weather?"},
		{"role": "assistant", "content": nil, "tool_calls": []M{{"id": "call_0123456789", "type": "function", "function": M{"name": "get_weather", "arguments": `{"city":"Oslo"}`}}}},
		{"role": "tool", "tool_call_id": "call_0123456789", "content": "rain"}}
	for source, want := range map[string]func(c *engine.Conversation) bool{
		hermesTemplate: func(c *engine.Conversation) bool {
			return c.Messages[1].Empty && strings.Contains(string(c.Messages[1].Calls), `"id":"call_0123456789"`) && c.Messages[2].Role == "tool" && c.Messages[2].CallID == "call_0123456789"
		},
		"{{ tools }} [TOOL_CALLS]": func(c *engine.Conversation) bool {
			return len(c.Messages[2].CallID) == 9 && strings.Contains(string(c.Messages[1].Calls), c.Messages[2].CallID)
		},
		"{{ messages }}": func(c *engine.Conversation) bool {
			return len(c.Messages) == 4 && c.Messages[0].Role == "system" && strings.Contains(c.Messages[0].Content, "get_weather") &&
				c.Messages[2].Content == `{"name": "get_weather", "parameters": {"city":"Oslo"}}` && c.Messages[3].Role == "user"
		},
	} {
		url, seen := serveTools(t, source, &servertest.Engine{Script: writes(`{"name": "get_weather", "parameters": {"city": "Rome"}}`)})
		if a := post(t, url, chat(M{"messages": messages, "tools": weather()})); a.status != 200 || !want(seen) {
			t.Errorf("%q: %d %s\n%+v", source, a.status, a.raw, seen.Messages)
		} else if source == "{{ messages }}" && at(t, a.body, "choices", 0, "finish_reason") != "tool_calls" {
			t.Errorf("the call was not found: %s", a.raw)
		}
	}
}

func TestToolsRefused(t *testing.T) {
	url, _ := serveTools(t, hermesTemplate, &servertest.Engine{Script: servertest.Hello})
	f := weather()
	for _, c := range []struct {
		ask   M
		param string
	}{
		{M{"tools": "x"}, "tools"},
		{M{"tools": []M{{"type": "function"}}}, "tools[0]"},
		{M{"tools": []M{{"type": "web_search", "function": M{"name": "x"}}}}, "tools[0].type"},
		{M{"tools": []M{{"type": "function", "function": M{"name": "a b"}}}}, "tools[0].function.name"},
		{M{"tools": append(weather(), weather()...)}, "tools[1].function.name"},
		{M{"tool_choice": "required"}, "tool_choice"},
		{M{"tools": f, "tool_choice": "sometimes"}, "tool_choice"},
		{M{"tools": f, "tool_choice": M{"type": "function", "function": M{"name": "h"}}}, "tool_choice"},
		{M{"tools": f, "tool_choice": "required", "guided_regex": "a"}, "tool_choice"},
		{M{"tools": []M{{"type": "function", "function": M{"name": "s", "strict": true,
			"parameters": M{"type": "object", "properties": M{"a": M{"uniqueItems": true}}}}}}}, "tools[0].function.parameters"},
	} {
		if a := post(t, url, chat(c.ask)); a.status != 400 || at(t, a.body, "error", "param") != c.param {
			t.Errorf("%v: %d %s, want param %s", c.ask, a.status, a.raw, c.param)
		}
	}
}

package api

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/server/servertest"
	"github.com/shoal-llm/shoal/internal/text/grammar"
)

// fits compiles the grammar of the last request and judges texts by it.
func fits(t *testing.T, e *servertest.Engine) func(text string) bool {
	t.Helper()
	spec := e.Last(t).Sampling.Grammar
	if spec == nil {
		t.Fatal("the request has no grammar")
	}
	g, err := grammar.New(&grammar.Vocabulary{}, *spec)
	if err != nil {
		t.Fatal(err)
	}
	return func(text string) bool {
		at, err := g.Start().AdvanceBytes([]byte(text))
		return err == nil && at.Ends()
	}
}

func function(strict bool, parameters string) []M {
	return []M{{"type": "function", "function": M{"name": "f", "strict": strict, "parameters": json.RawMessage(parameters)}}}
}

// A function that is not strict loses only the part of its schema that cannot be enforced. A strict one
// is refused, under every template and tool_choice.
func TestUnenforceableTools(t *testing.T) {
	for _, c := range []struct {
		parameters, named string
		yes, no           []string
	}{
		{`{"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"array","items":{"type":"integer"},"uniqueItems":true}},"required":["a","b"]}`, "tools[0].function.parameters#/properties/b/uniqueItems",
			[]string{`{"a": 1, "b": [1, 1]}`}, []string{`{"a": 1}`, `{"a": "x", "b": []}`, `{"a": 1, "b": ["x"]}`, `{"a": 1, "b": [], "c": 1}`}},
		{`{"type":"object","properties":{"a":{"type":"integer"}},"required":null}`, "tools[0].function.parameters#/required", []string{`{"a": 1}`, `{}`}, []string{`{"a": "x"}`, `{"b": 1}`}},
		{`{"type":"Object","properties":{"a":{"type":"Integer"}},"required":["a"]}`, "tools[0].function.parameters#/type, tools[0].function.parameters#/properties/a/type", []string{`{"a": 1}`}, []string{`{}`, `{"a": "x"}`, `3`}},
		{`{"properties":{"a":{"type":"integer","required":true},"b":{"type":"text"}}}`, "tools[0].function.parameters#/properties/a/required, tools[0].function.parameters#/properties/b/type", []string{`{"a": 1, "b": "x"}`}, []string{`{"a": "x"}`, `3`}},
		{`{"type":"object","properties":{"a":{"$ref":"http://x/y"},"b":{"type":"null"}}}`, "tools[0].function.parameters#/properties/a/$ref", []string{`{"a": "x", "b": null}`}, []string{`{"b": 1}`}},
		{`{"type":"object","properties":{"a":{"oneOf":[{"type":"integer"},{"type":"number"}]}}}`, "tools[0].function.parameters#/properties/a/oneOf", []string{`{"a": 1}`, `{"a": 0.5}`}, []string{`{"a": "x"}`}},
		{`{"type":"object","properties":{"a":5,"b":{"type":"null"}}}`, "tools[0].function.parameters#/properties/a", []string{`{"a": "x", "b": null}`}, []string{`{"b": 1}`}},
		{`{"type":"object","properties":{"a":{"type":"string","pattern":"(x)\\1"},"b":{"type":"null"}}}`, "tools[0].function.parameters#/properties/a/pattern", []string{`{"a": "x", "b": null}`}, []string{`{"a": 1}`}},
		{`{"type":null,"properties":{"a":{"type":"null"}}}`, "tools[0].function.parameters#/type", []string{`{"a": null}`}, []string{`3`, `{"a": 1}`}},
	} {
		for _, template := range []string{"{{ tools }} <tool_call>", "{{ messages }}"} {
			e := &servertest.Engine{Script: servertest.Hello}
			url, _ := serveTools(t, template, e)
			a := post(t, url, chat(M{"tools": function(false, c.parameters), "tool_choice": "required", "parallel_tool_calls": false}))
			if a.status != 200 || a.header.Get("X-Ignored-Parameters") != c.named {
				t.Errorf("%s: %d %s, ignored %q, want %q", c.parameters, a.status, a.raw, a.header.Get("X-Ignored-Parameters"), c.named)
				continue
			}
			judge := fits(t, e)
			for i, text := range append(c.yes, c.no...) {
				call := "<tool_call>\n{\"name\": \"f\", \"arguments\": " + text + "}\n</tool_call>"
				if template == "{{ messages }}" {
					call = `{"name": "f", "parameters": ` + text + "}"
				}
				if judge(call) != (i < len(c.yes)) {
					t.Errorf("%s: %s: %v", c.parameters, text, i >= len(c.yes))
				}
			}
			for _, choice := range []string{"auto", "required", "none"} {
				a := post(t, url, chat(M{"tools": function(true, c.parameters), "tool_choice": choice}))
				if a.status != 400 || at(t, a.body, "error", "param") != "tools[0].function.parameters" {
					t.Errorf("strict, %s, %q: %s: %d %s", choice, template, c.parameters, a.status, a.raw)
				}
			}
		}
	}
}

// With "none", nothing is shown to the model or held to a schema, and a strict function is
// checked all the same, in every API.
func TestToolChoiceNone(t *testing.T) {
	e := &servertest.Engine{Script: writes("ok")}
	url, seen := serveTools(t, hermesTemplate, e)
	base := strings.TrimSuffix(url, "/v1/chat/completions")
	for _, parameters := range []string{`{"type":"object"}`, `{"type":"object","uniqueItems":true,"properties":{"a":{"$ref":"http://x/y"}}}`} {
		schema, bad := json.RawMessage(parameters), strings.Contains(parameters, "$ref")
		for _, strict := range []bool{false, true} {
			for path, body := range map[string]M{
				"/v1/chat/completions": chat(M{"tools": function(strict, parameters), "tool_choice": "none"}),
				"/v1/messages": {"max_tokens": 9, "messages": []M{{"role": "user", "content": "x"}},
					"tools": []M{{"name": "f", "strict": strict, "input_schema": schema}}, "tool_choice": M{"type": "none"}},
				"/v1/responses": {"store": false, "input": "x",
					"tools": []M{{"type": "function", "name": "f", "strict": strict, "parameters": schema}}, "tool_choice": "none"},
			} {
				want := 200
				if bad && strict {
					want = 400
				}
				if a := post(t, base+path, body); a.status != want || a.status == 200 && (seen.Tools != nil || e.Last(t).Sampling.Grammar != nil) {
					t.Errorf("%s, strict %v, %s: %d %s, the template got %s", path, strict, parameters, a.status, a.raw, seen.Tools)
				}
			}
		}
	}
	if a := post(t, base+"/tokenize", chat(M{"tools": function(true, `{"type":"object"}`), "tool_choice": "none"})); a.status != 200 || seen.Tools != nil {
		t.Errorf("/tokenize: %d, the template got %s", a.status, seen.Tools)
	}
}

// Arguments are those that the schema declares, in its order, at every door.
func TestDeclaredMembers(t *testing.T) {
	schema := json.RawMessage(`{"type":"object","properties":{"name":{"type":"string"},"age":{"type":"integer"}},"required":["name","age"]}`)
	const good, more, turned = `{"name": "a", "age": 1}`, `{"name": "a", "age": 1, "x": 2}`, `{"age": 1, "name": "a"}`
	for _, ask := range []M{
		{"response_format": M{"type": "json_schema", "json_schema": M{"name": "p", "schema": schema}}},
		{"response_format": M{"type": "json_object", "schema": schema}},
		{"guided_json": schema}, {"json_schema": schema}, {"structured_outputs": M{"json": schema}},
		{"guided_grammar": "start: %json " + string(schema)},
	} {
		e := &servertest.Engine{Script: servertest.Hello}
		if a := post(t, serve(t, e)+"/v1/chat/completions", chat(ask)); a.status != 200 {
			t.Errorf("%v: %s", ask, a.raw)
			continue
		}
		if judge := fits(t, e); !judge(good) || judge(more) || judge(turned) || judge(strings.Replace(good, "}", `, "age": 1}`, 1)) {
			t.Errorf("%v: %v %v %v", ask, judge(good), judge(more), judge(turned))
		}
	}
	e := &servertest.Engine{Script: servertest.Hello}
	if a := post(t, serve(t, e)+"/v1/chat/completions", chat(M{"guided_json": json.RawMessage(`{"type":"string","format":"password"}`)})); a.status != 200 || a.header.Get("X-Ignored-Parameters") != "guided_json#/format" {
		t.Errorf("%d %s, ignored %q", a.status, a.raw, a.header.Get("X-Ignored-Parameters"))
	}
}

// Every kind of structure binds the text after a thought, and not the thought itself.
func TestThoughtBeforeEveryStructure(t *testing.T) {
	schema := M{"type": "boolean"}
	tags := M{"type": "structural_tag", "triggers": []string{"<f"},
		"structures": []M{{"begin": "<f>", "schema": M{"type": "integer"}, "end": "</f>"}}}
	for _, c := range []struct {
		ask     M
		yes, no string
	}{
		{M{"structured_outputs": M{"choice": []string{"yes", "no"}}}, "yes", "may be"},
		{M{"guided_choice": []string{"yes", "no"}}, "yes", "may be"},
		{M{"guided_regex": "[a-z]+"}, "yes", "7"},
		{M{"structured_outputs": M{"regex": "[a-z]+"}}, "yes", "7"},
		{M{"grammar": `root ::= "yes"`}, "yes", "no"},
		{M{"guided_grammar": `start: "yes"`}, "yes", "no"},
		{M{"structured_outputs": M{"grammar": `start: "yes"`}}, "yes", "no"},
		{M{"guided_json": schema}, "true", "3"},
		{M{"json_schema": schema}, "true", "3"},
		{M{"response_format": M{"type": "json_object"}}, "{}", "3"},
		{M{"response_format": M{"type": "json_schema", "json_schema": M{"schema": schema}}}, "true", "3"},
		{M{"response_format": tags}, "text <f>1</f>", "<f>x</f>"},
		{M{"structured_outputs": M{"structural_tag": tags}}, "text <f>1</f>", "<f>x</f>"},
		{M{"tools": weather(), "tool_choice": "required"},
			"<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"x\"}}\n</tool_call>", "x"},
		{M{"tools": function(true, `{"type":"object","properties":{"a":{"type":"integer"}}}`)}, "a <tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>", "<tool_call>x"},
	} {
		for template, thought := range map[string]string{hermesTemplate: "<think>", hermesTemplate + " <think>": ""} {
			e := &servertest.Engine{Script: servertest.Hello}
			url, _ := serveTools(t, template, e)
			if a := post(t, url, chat(c.ask)); a.status != 200 {
				t.Errorf("%v: %s", c.ask, a.raw)
				continue
			}
			judge := fits(t, e)
			thought += "hm <f>x</f> <tool_call>x</think>\n\n"
			if !judge(thought+c.yes) || judge(thought+c.no) || judge(thought) && c.ask["tools"] == nil && c.yes[0] != 't' {
				t.Errorf("%v with %q: %v %v", c.ask, template, judge(thought+c.yes), judge(thought+c.no))
			}
		}
	}
}

// A response_format is of text: a call that must be made goes before it.
func TestForcedCallWithFormat(t *testing.T) {
	e := &servertest.Engine{Script: servertest.Hello}
	url, _ := serveTools(t, "{{ tools }} <tool_call>", e)
	ask := M{"tools": weather(), "tool_choice": "required",
		"response_format": M{"type": "json_schema", "json_schema": M{"schema": M{"type": "boolean"}}}}
	if a := post(t, url, chat(ask)); a.status != 200 {
		t.Fatal(a.raw)
	}
	if judge := fits(t, e); !judge("<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"x\"}}\n</tool_call>") ||
		judge("true") {
		t.Error("the call is not enforced")
	}
}

package api

import (
	"cmp"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/server/engine"
	"github.com/shoal-llm/shoal/internal/server/generate"
	"github.com/shoal-llm/shoal/internal/server/jsonbody"
	"github.com/shoal-llm/shoal/internal/server/servertest"
)

// responseForms are the members of an answer of Responses, as OpenResponses and OpenAI define them: s
// is a string, i an integer, n a number, b a boolean, o an object, [x] a list of x, another name the
// form of that name; x? may be null, and "member ?" may be missing.
var responseForms = map[string]string{
	"response": `id s  object s  created_at i  completed_at i?  status s  background b  error error?  incomplete_details incomplete?  instructions s?
		max_output_tokens i?  max_tool_calls i?  model s  output [item]  parallel_tool_calls b  previous_response_id s?  prompt_cache_key s?
		reasoning reasoning  safety_identifier s?  service_tier s  store b  temperature n  presence_penalty n  frequency_penalty n  top_p n
		top_logprobs i  text text  tool_choice choice  tools [tool]  truncation s  usage usage?  user s?  metadata o`,
	"error": "code s  message s", "incomplete": "reason s", "reasoning": "effort s?  summary s?", "text": "format format  verbosity ?s",
	"format": "type s", "format json_schema": "type s  name s  description s?  schema o  strict b",
	"usage":  "input_tokens i  input_tokens_details cached  output_tokens i  output_tokens_details thought  total_tokens i",
	"cached": "cached_tokens i", "thought": "reasoning_tokens i",
	"choice function": "type s  name s", "choice allowed_tools": "type s  mode s  tools [choice]",
	"tool function": "type s  name s  description s?  parameters o?  strict b", "tool custom": "type s  name s",
	"item message":                        "id s  type s  status s  role s  content [part]",
	"item reasoning":                      "id s  type s  status ?s  summary [part]  content ?[part]  encrypted_content ?s",
	"item function_call":                  "id s  type s  status s  call_id s  name s  arguments s",
	"item function_call_output":           "id s  type s  status s  call_id s  output s",
	"item custom_tool_call":               "id s  type s  status s  call_id s  name s  input s",
	"part input_text":                     "type s  text s",
	"part output_text":                    "type s  text s  annotations [o]  logprobs ?[logprob]",
	"part summary_text":                   "type s  text s",
	"part reasoning_text":                 "type s  text s",
	"logprob":                             "token s  logprob n  bytes [i]  top_logprobs ?[toplogprob]",
	"toplogprob":                          "token s  logprob n  bytes [i]",
	"event created":                       "response response",
	"event in_progress":                   "response response",
	"event completed":                     "response response",
	"event incomplete":                    "response response",
	"event output_item.added":             "output_index i  item item",
	"event output_item.done":              "output_index i  item item",
	"event content_part.added":            "item_id s  output_index i  content_index i  part part",
	"event content_part.done":             "item_id s  output_index i  content_index i  part part",
	"event output_text.delta":             "item_id s  output_index i  content_index i  delta s  logprobs [logprob]",
	"event output_text.done":              "item_id s  output_index i  content_index i  text s  logprobs [logprob]",
	"event reasoning_text.delta":          "item_id s  output_index i  content_index i  delta s",
	"event reasoning_text.done":           "item_id s  output_index i  content_index i  text s",
	"event custom_tool_call_input.delta":  "item_id s  output_index i  delta s",
	"event custom_tool_call_input.done":   "item_id s  output_index i  input s",
	"event function_call_arguments.delta": "item_id s  output_index i  delta s",
	"event function_call_arguments.done":  "item_id s  output_index i  arguments s  name s",
}

// responseWords are the permitted values of members, by name.
var responseWords = map[string]string{
	"status": "queued in_progress completed incomplete failed cancelled",
	"role":   "user assistant system developer", "truncation": "auto disabled",
	"mode": "none auto required", "object": "response",
}

// formed fails the test at each place where a value does not have the form.
func formed(t *testing.T, at, form string, v any) {
	t.Helper()
	kind, nullable := strings.CutSuffix(form, "?")
	switch x := v.(type) {
	case nil:
		if !nullable {
			t.Errorf("%s is null", at)
		}
		return
	case string:
		if kind == "s" || kind == "choice" && slices.Contains([]string{"none", "auto", "required"}, x) {
			return
		}
	case bool:
		if kind == "b" {
			return
		}
	case float64:
		if kind == "n" || kind == "i" && x == float64(int64(x)) {
			return
		}
	case []any:
		if strings.HasPrefix(kind, "[") {
			for i, e := range x {
				formed(t, at+"."+strconv.Itoa(i), strings.Trim(kind, "[]"), e)
			}
			return
		}
	case M:
		if kind == "o" {
			return
		}
		typ, _ := x["type"].(string)
		members, ok := responseForms[kind+" "+typ]
		if !ok {
			members, ok = responseForms[kind]
		}
		if !ok {
			t.Errorf("%s: %q %q has no form", at, kind, typ)
			return
		}
		list, known := strings.Fields(members), map[string]bool{}
		for i := 0; i < len(list); i += 2 {
			known[list[i]] = true
			form, optional := strings.CutPrefix(list[i+1], "?")
			e, there := x[list[i]]
			if there {
				formed(t, at+"."+list[i], form, e)
			} else if !optional {
				t.Errorf("%s has no %s: %v", at, list[i], x)
			}
			if word, ok := e.(string); ok && responseWords[list[i]] != "" && !slices.Contains(strings.Fields(responseWords[list[i]]), word) {
				t.Errorf("%s.%s is %v", at, list[i], e)
			}
		}
		for name := range x {
			if !known[name] {
				t.Errorf("%s has %s, which its form lacks", at, name)
			}
		}
		return
	}
	t.Errorf("%s is %v, want %s", at, v, form)
}

// Every member of responses and of their events is there, and of its kind.
func TestResponsesForm(t *testing.T) {
	tools := []M{{"type": "function", "name": "shell"}, {"type": "custom", "name": "apply_patch"}}
	for name, more := range map[string]M{
		"plain": {},
		"nulls": {"instructions": nil, "metadata": nil, "tools": nil, "tool_choice": nil,
			"text": nil, "reasoning": nil, "max_output_tokens": nil},
		"cut off":  {"max_output_tokens": 2},
		"probable": {"top_logprobs": 2},
		"everything": {"instructions": "Be.", "metadata": M{"a": "b"}, "reasoning": M{"effort": "low"}, "max_tool_calls": 1,
			"safety_identifier": "s", "user": "u", "tools": tools, "include": []string{"reasoning.encrypted_content"}},
		"schema":     {"text": M{"format": M{"type": "json_schema", "name": "x", "schema": M{"type": "object"}}}},
		"one tool":   {"tools": tools, "tool_choice": M{"type": "function", "name": "shell"}},
		"some tools": {"tools": tools, "tool_choice": M{"type": "allowed_tools", "tools": []M{{"type": "function", "name": "shell"}}}},
		"without mode": {"tools": tools,
			"tool_choice": M{"type": "allowed_tools", "mode": nil, "tools": []M{{"type": "function", "name": "shell"}}}},
	} {
		t.Run(name, func(t *testing.T) {
			url, _, _ := serveResponses(t, hermesTemplate, codexAnswer)
			body := M{"model": "fake/model", "input": "Hi"}
			for k, v := range more {
				body[k] = v
			}
			a := post(t, url, body)
			if a.status != 200 {
				t.Fatal(a.raw)
			}
			formed(t, "response", "response", a.body)
			body["stream"] = true
			for _, e := range responseEvents(t, url, body) {
				typ := strings.TrimPrefix(e["type"].(string), "response.")
				delete(e, "type")
				delete(e, "sequence_number")
				formed(t, typ, "event "+typ, e)
			}
		})
	}
}

// Kept responses are shown in the same form, and their input in the form of items.
func TestResponsesKeptForm(t *testing.T) {
	s, err := New(testConfig(), &servertest.Engine{}, servertest.Tokenizer{},
		toolTemplate{source: hermesTemplate, seen: new(engine.Conversation)})
	if err != nil {
		t.Fatal(err)
	}
	body := jsonbody.MustJSON(M{"background": true, "input": []M{
		{"role": "user", "content": "Hi"},
		{"role": "assistant", "id": nil, "status": nil, "content": "Hello"},
		{"type": "message", "role": "assistant", "status": "incomplete", "content": []M{{"type": "output_text", "text": "I"}}},
		{"type": "reasoning", "summary": []M{{"type": "summary_text", "text": "hm"}}, "content": nil, "encrypted_content": nil},
		{"type": "function_call", "name": "f", "arguments": "{}", "call_id": "c"},
		{"type": "function_call_output", "id": "fco_1", "call_id": "c", "output": "x", "status": nil},
		{"type": "message", "role": "user", "content": []M{{"type": "input_text", "text": "And?"}}},
	}})
	for _, status := range []string{"queued", "in_progress", "failed", "cancelled"} {
		shown, err := s.ShowResponse(generate.StoredResponse{ID: "resp_a", Created: 5, Body: body,
			Status: status, Code: "server_error", Message: "broke"})
		if err != nil {
			t.Fatal(err)
		}
		var v M
		if err := json.Unmarshal(jsonbody.MustJSON(shown), &v); err != nil || v["status"] != status ||
			(v["error"] != nil) != (status == "failed") {
			t.Fatal(v, err)
		}
		formed(t, status, "response", v)
	}
	items, err := s.ResponseInput(generate.StoredResponse{ID: "resp_a", Body: body})
	if err != nil || len(items) != 7 {
		t.Fatal(items, err)
	}
	for i, raw := range items {
		var v M
		if err := json.Unmarshal(raw, &v); err != nil {
			t.Fatal(err)
		}
		formed(t, "input "+strconv.Itoa(i), "item", v)
		if want := map[int]string{2: "incomplete", 3: ""}; v["type"] != "reasoning" && v["status"] != cmp.Or(want[i], "completed") {
			t.Errorf("%s", raw)
		}
	}
}

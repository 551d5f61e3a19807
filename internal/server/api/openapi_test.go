package api

import (
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/server/servertest"
	"github.com/shoal-llm/shoal/internal/server/sessions"
)

// example is a value that a schema takes.
func example(schema any) any {
	m, _ := schema.(M)
	if list, ok := m["anyOf"].([]any); ok {
		return example(list[0])
	}
	if list, ok := m["enum"].([]any); ok {
		if last := list[len(list)-1]; last != nil {
			return last
		}
		return list[len(list)-2]
	}
	switch typeOf(m) {
	case "string":
		return "x"
	case "boolean":
		return false
	case "integer", "number":
		if lo, ok := m["minimum"].(float64); ok && lo > 0 {
			return lo
		}
		return 1
	case "array":
		return []any{}
	}
	return M{}
}

// typeOf is the type of a schema, besides null.
func typeOf(m M) any {
	if list, ok := m["type"].([]any); ok {
		return list[0]
	}
	return m["type"]
}

// The description of requests in /openapi.json agrees with their decoders: these read every
// member that it names. A value beyond a bound is a 400 that names the member, and a value at a
// bound is accepted.
func TestOpenAPI(t *testing.T) {
	e := &servertest.Engine{Script: servertest.Hello}
	url := serve(t, e, makesVectors)
	a := get(t, url+"/openapi.json")
	if a.status != 200 || a.body["openapi"] != "3.1.0" {
		t.Fatal(a.raw)
	}
	good := map[string]any{ // values by parameter, or by path and parameter ("/v1/tokens text"), where no example is valid
		"model": "fake/model", "base_model_name": "fake/model", "messages": []M{{"role": "user", "content": "x"}}, "prompt": "Hi",
		"input": "Hi", "tokens": []int{72}, "max_tokens": 2, "max_completion_tokens": 2, "max_output_tokens": 2, "min_tokens": 1,
		"stop_sequences": []string{"x"}, "tool_choice": nil, "response_format": M{"type": "text"},
		"output_format": M{"type": "text"}, "guided_grammar": nil, "grammar": nil, "guided_regex": nil,
		"guided_choice": nil, "guided_json": nil, "json_schema": nil, "format": "json",
		"structured_outputs": nil, "stream_options": nil, "previous_response_id": nil, "content": nil,
		"add_special": nil, "top_logprobs": nil, "repetition_penalty": 1, "text": M{}, "thinking": M{"type": "disabled"},
		"logprobs": nil, "continue_final_message": nil, "truncate_prompt_tokens": 100, "kv_policy": "full",
		"user": "u", "instruction": nil, "prompt_name": "query", "documents": []string{"x"}, "context": "auto",
		"session": nil, "session_ttl": nil, "session_turns": nil, "name": "x", "allowed_token_ids": []int{3},
	}
	// The engine of this test drops a context at once, but not always before the next request. So the
	// context of an earlier request is deleted first.
	send := func(path string, body M) answer {
		if name, ok := body["name"].(string); ok && path == "/v1/contexts" && sessions.ValidName(name) {
			ask(t, "DELETE", url+path+"/"+name, "", "")
		}
		return post(t, url+path, body)
	}
	accepted, refused := 0, 0
	for path, ops := range a.body["paths"].(M) {
		for method, op := range ops.(M) {
			body, ok := op.(M)["requestBody"]
			if !ok {
				continue
			}
			if method != "post" {
				t.Errorf("%s %s has a body", method, path)
			}
			schema := at(t, body, "content", "application/json", "schema").(M)
			properties := schema["properties"].(M)
			sample := M{}
			for name, s := range properties {
				sample[name] = example(s)
				for _, key := range []string{name, path + " " + name} {
					if v, ok := good[key]; ok {
						sample[name] = v
					}
				}
			}
			if sample["prompt"] != nil && sample["messages"] != nil {
				delete(sample, "messages")
			}
			r := send(path, sample)
			if r.status != 200 || r.header.Get("X-Ignored-Parameters") != "" {
				t.Fatalf("%s: %d %s, ignored %q", path, r.status, r.raw, r.header.Get("X-Ignored-Parameters"))
			}
			if required, ok := schema["required"].([]any); ok {
				for _, name := range required {
					less := maps.Clone(sample)
					delete(less, name.(string))
					if r := send(path, less); r.status != 400 {
						t.Errorf("%s without %s: %d", path, name, r.status)
					}
				}
			}
			for name, s := range properties {
				try := func(v any, status int) {
					more := maps.Clone(sample)
					if path == "/tokenize" && !slices.Contains([]string{"model", "prompt", "add_special_tokens", "return_token_strs"}, name) {
						delete(more, "prompt") // a text, or a chat
						delete(more, "add_special_tokens")
						if more["content"] = "x"; properties["add_generation_prompt"] != nil && name != "content" && name != "add_special" {
							delete(more, "content")
							more["messages"] = good["messages"]
						}
					}
					// of a chat
					if path == "/v1/contexts" && slices.Contains([]string{"chat_template_kwargs", "enable_thinking",
						"reasoning", "reasoning_effort", "continue_final_message"}, name) {
						delete(more, "prompt")
						more["messages"] = good["messages"]
					}
					if name == "tool_choice" {
						more["tools"] = []M{{"type": "function", "name": "f", "function": M{"name": "f"}}}
					}
					more[name] = v
					if r := send(path, more); r.status != status || status == 400 && !strings.Contains(r.raw, name) {
						t.Errorf("%s with %s %v: %d %s", path, name, v, r.status, r.raw)
					}
				}
				if required, _ := schema["required"].([]any); !slices.Contains(required, any(name)) {
					if why := misfit(schema, s, nil); why != "" {
						t.Errorf("%s: null for %s does not fit: %s", path, name, why)
					}
				}
				for _, v := range atBounds(s) {
					fits := misfit(schema, s, jsonValue(t, v)) == ""
					switch {
					case !fits:
						refused++
						try(v, 400)
					case !slices.Contains(crossed, name):
						accepted++
						try(v, 200)
					}
				}
				if asObject(s)["type"] != nil {
					try([]any{[]any{}}, 400)
				}
			}
		}
	}
	if accepted < 200 || refused < 200 { // 5 requests with some 45 parameters each
		t.Errorf("only %d values at their bounds were accepted, and %d beyond them refused", accepted, refused)
	}
	// An answer has the members that its schema requires, and none that the schema lacks.
	whole := post(t, url+"/v1/chat/completions", chat(nil))
	schema := at(t, a.body, "components", "schemas", "chatCompletion").(M)
	for _, name := range schema["required"].([]any) {
		at(t, whole.body, name)
	}
	for name := range whole.body {
		at(t, schema, "properties", name)
	}
}

func asObject(v any) M {
	m, _ := v.(M)
	return map[string]any(m)
}

// crossed are parameters whose valid values depend on others. Only invalid values of them are tried.
var crossed = []string{"model", "base_model_name", "context", "session", "session_ttl", "session_turns", "previous_response_id",
	"n", "best_of", "top_logprobs", "logprobs", "min_tokens", "allowed_token_ids", "add_generation_prompt", "input",
	"prompt", "tokens", "guided_grammar", "guided_regex", "grammar", "instruction", "prompt_name", "documents", "text_1", "text_2", "queries"}

// atBounds are values at the bounds of a schema and just beyond them: of numbers, lengths and
// counts; every word, and every text of a pattern.
func atBounds(schema any) (out []any) {
	m := asObject(schema)
	for _, of := range asList(m["anyOf"]) {
		out = append(out, atBounds(of)...)
	}
	for _, of := range asList(m["enum"]) {
		if word, ok := of.(string); ok {
			out = append(out, word, word+"x")
		}
	}
	if pattern, ok := m["pattern"].(string); ok {
		all := expand(strings.Trim(pattern, "^$"))
		last := all[len(all)-1]
		out = append(out, last+"0", "x"+last)
		for _, text := range all {
			out = append(out, text)
		}
	}
	for keyword, sign := range map[string]float64{"minimum": -1, "exclusiveMinimum": -1, "maximum": 1} {
		if bound, ok := m[keyword].(float64); ok {
			out = append(out, bound, bound+sign)
		}
	}
	if most, ok := m["maxLength"].(float64); ok && most < 1<<16 {
		out = append(out, strings.Repeat("x", int(most)), strings.Repeat("x", int(most)+1))
	}
	if most, ok := m["maxItems"].(float64); ok && most < 1<<13 {
		many := make([]any, int(most)+1)
		for i := range many {
			many[i] = example(m["items"])
		}
		out = append(out, many)
	}
	if _, ok := m["minItems"]; ok {
		out = append(out, []any{})
	}
	if most, ok := m["maxProperties"].(float64); ok {
		many := M{}
		for i := range int(most) + 1 {
			many[strconv.Itoa(i)] = 0
		}
		out = append(out, many)
	}
	if of := m["additionalProperties"]; of != nil {
		for _, v := range atBounds(of) {
			out = append(out, M{"65": v})
		}
	}
	return out
}

// expand lists the texts of a pattern that has only letters and groups of alternatives.
func expand(pattern string) []string {
	open := strings.Index(pattern, "(")
	if open < 0 {
		return []string{pattern}
	}
	end := open + strings.Index(pattern[open:], ")")
	var out []string
	for _, one := range strings.Split(pattern[open+1:end], "|") {
		for _, rest := range expand(pattern[end+1:]) {
			out = append(out, pattern[:open]+one+rest)
		}
	}
	return out
}

func asList(v any) []any {
	list, _ := v.([]any)
	return list
}

// jsonValue is v as it comes out of a decoder.
func jsonValue(t *testing.T, v any) (out any) {
	t.Helper()
	b, err := json.Marshal(v)
	if err == nil {
		err = json.Unmarshal(b, &out)
	}
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestEveryRouteIsDescribed: a route without a Doc would be missing from /openapi.json.
func TestEveryRouteIsDescribed(t *testing.T) {
	for _, r := range newServer(t, &servertest.Engine{}).Routes() {
		if r.Handler != nil && (len(r.Docs) == 0 || r.Docs[0].About == "") {
			t.Errorf("%s %s has no description", r.Method, r.Path)
		}
	}
}

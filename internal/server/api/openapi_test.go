package api

import (
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
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

// What /openapi.json says of requests is what their decoders do: they read every member
// that it names and it names every one that they read; what is out of its bounds is a 400
// that names the member, what is at them is not.
func TestOpenAPI(t *testing.T) {
	e := &fakeEngine{script: hello}
	url := serve(t, e)
	a := get(t, url+"/openapi.json")
	if a.status != 200 || a.body["openapi"] != "3.1.0" {
		t.Fatal(a.raw)
	}
	good := map[string]any{ // where no example serves
		"model": "fake/model", "messages": []M{{"role": "user", "content": "x"}}, "prompt": "Hi", "input": "Hi", "tokens": []int{72}, "max_tokens": 2, "max_completion_tokens": 2, "max_output_tokens": 2, "min_tokens": 1,
		"stop_sequences": []string{"x"}, "tool_choice": nil, "response_format": M{"type": "text"}, "output_format": M{"type": "text"}, "guided_grammar": nil, "grammar": nil, "guided_regex": nil, "guided_choice": nil, "guided_json": nil, "json_schema": nil, "format": "json",
		"structured_outputs": nil, "stream_options": nil, "previous_response_id": nil, "content": nil, "add_special": nil, "top_logprobs": nil, "repetition_penalty": 1, "text": M{}, "thinking": M{"type": "disabled"},
		"logprobs": nil, "continue_final_message": nil, "truncate_prompt_tokens": 100, "kv_policy": "full", "user": "u", "context": "auto", "name": "x", "allowed_token_ids": []int{3},
	}
	named := map[string]bool{}
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
			ask := M{}
			for name, s := range properties {
				named[name] = true
				for inner := range asObject(asObject(s)["properties"]) {
					named[inner] = true
				}
				ask[name] = example(s)
				if v, ok := good[name]; ok {
					ask[name] = v
				}
			}
			if ask["prompt"] != nil && ask["messages"] != nil {
				delete(ask, "messages")
			}
			r := post(t, url+path, ask)
			if r.status != 200 || r.header.Get("X-Ignored-Parameters") != "" {
				t.Fatalf("%s: %d %s, ignored %q", path, r.status, r.raw, r.header.Get("X-Ignored-Parameters"))
			}
			if required, ok := schema["required"].([]any); ok {
				for _, name := range required {
					less := maps.Clone(ask)
					delete(less, name.(string))
					if r := post(t, url+path, less); r.status != 400 {
						t.Errorf("%s without %s: %d", path, name, r.status)
					}
				}
			}
			for name, s := range properties {
				try := func(v any, status int) {
					more := maps.Clone(ask)
					if path == "/tokenize" && !slices.Contains([]string{"model", "prompt", "add_special_tokens", "return_token_strs"}, name) {
						delete(more, "prompt") // a text, or a chat
						delete(more, "add_special_tokens")
						if more["content"] = "x"; properties["add_generation_prompt"] != nil && name != "content" && name != "add_special" {
							delete(more, "content")
							more["messages"] = good["messages"]
						}
					}
					if path == "/v1/contexts" && slices.Contains([]string{"chat_template_kwargs", "enable_thinking"}, name) { // of a chat
						delete(more, "prompt")
						more["messages"] = good["messages"]
					}
					more[name] = v
					if r := post(t, url+path, more); r.status != status || status == 400 && !strings.Contains(r.raw, name) {
						t.Errorf("%s with %s %v: %d %s", path, name, v, r.status, r.raw)
					}
				}
				m := asObject(s)
				if required, _ := schema["required"].([]any); !slices.Contains(required, any(name)) {
					if why := misfit(schema, s, nil); why != "" {
						t.Errorf("%s: null for %s does not fit: %s", path, name, why)
					}
				}
				if lo, ok := m["minimum"].(float64); ok {
					try(lo-1, 400)
				}
				if hi, ok := m["maximum"].(float64); ok {
					try(hi+1, 400)
					if hi < 1000 && name != "top_logprobs" && name != "n" && name != "best_of" {
						try(hi, 200)
					}
				}
				if _, ok := m["enum"]; ok {
					try("nothing of the kind", 400)
				}
				if most, ok := m["maxLength"].(float64); ok && most < 1<<16 && typeOf(m) == "string" {
					try(strings.Repeat("x", int(most)+1), 400)
				}
				if most, ok := m["maxItems"].(float64); ok && most < 1<<13 {
					many := make([]any, int(most)+1)
					for i := range many {
						many[i] = example(m["items"])
					}
					try(many, 400)
				}
				if m["type"] != nil {
					try([]any{[]any{}}, 400)
				}
			}
		}
	}
	for name := range membersRead(t) {
		if !named[name] {
			t.Errorf("the decoders read %q, which /openapi.json does not name", name)
		}
	}
	// An answer has the members that its schema asks for, and no other.
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

// membersRead are the names of members that this package's source reads off requests, and
// does not refuse or keep for what is within them.
func membersRead(t *testing.T) map[string]bool {
	t.Helper()
	out := map[string]bool{}
	files, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	within := []string{"json", "json_object", "regex", "choice", "structural_tag", "disable_any_whitespace", "any_order", "whitespace_pattern", "disable_fallback", "disable_additional_properties", // of structured_outputs
		"function_call", "functions"}
	for _, f := range files {
		if !strings.HasSuffix(f.Name(), ".go") || strings.HasSuffix(f.Name(), "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), f.Name(), nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok || len(call.Args) == 0 {
				return true
			}
			sel, ok := call.Fun.(*ast.SelectorExpr)
			lit, isLit := call.Args[0].(*ast.BasicLit)
			if !ok || !isLit || lit.Kind != token.STRING || !slices.Contains([]string{"get", "has", "str", "integer", "number", "boolean"}, sel.Sel.Name) {
				return true
			}
			if x, ok := sel.X.(*ast.Ident); !ok || len(x.Name) > 1 { // f, o, t
				return true
			}
			if name, _ := strconv.Unquote(lit.Value); !slices.Contains(within, name) {
				out[name] = true
			}
			return true
		})
	}
	if len(out) < 40 {
		b, _ := json.Marshal(out)
		t.Fatalf("found only %s", b)
	}
	return out
}

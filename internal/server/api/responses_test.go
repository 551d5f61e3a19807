package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/server/engine"
	"github.com/shoal-llm/shoal/internal/server/servertest"
)

func serveResponses(t *testing.T, source, text string) (string, *engine.Conversation, *servertest.Engine) {
	t.Helper()
	e := &servertest.Engine{Script: writes(text)}
	url, seen := serveTools(t, source, e)
	return strings.TrimSuffix(url, "/chat/completions") + "/responses", seen, e
}

// codexTurn is a request of Codex in the middle of a session.
func codexTurn() M {
	return M{
		"model": "fake/model", "instructions": "You are a coding agent.", "store": false, "stream": true,
		"parallel_tool_calls": false, "tool_choice": "auto",
		"include": []string{"reasoning.encrypted_content"}, "prompt_cache_key": "01997a",
		"reasoning": M{"effort": "medium", "summary": "auto"}, "text": M{"verbosity": "low"},
		"client_metadata": M{"installation": "x"},
		"tools": []M{
			{"type": "function", "name": "shell", "description": "Runs a command.", "strict": false,
				"parameters": M{"type": "object", "properties": M{"command": M{"type": "array", "items": M{"type": "string"}}},
					"required": []string{"command"}, "additionalProperties": false}},
			{"type": "custom", "name": "apply_patch", "description": "Edits files.",
				"format": M{"type": "grammar", "syntax": "lark", "definition": "start: \"*** Begin Patch\" /.*/"}},
			{"type": "web_search", "external_web_access": false},
		},
		"input": []M{
			{"type": "message", "role": "developer", "content": []M{{"type": "input_text", "text": "Sandboxed."}}},
			{"type": "message", "role": "user", "content": []M{{"type": "input_text", "text": "List files."}}},
			{"type": "reasoning", "summary": []M{}, "content": nil, "encrypted_content": "shoal:aG0="},
			{"type": "message", "role": "assistant", "content": []M{{"type": "output_text", "text": "I look."}}},
			{"type": "function_call", "name": "shell", "arguments": `{"command":["ls"]}`, "call_id": "call_1"},
			{"type": "function_call_output", "call_id": "call_1", "output": `{"output":"a.go","metadata":{"exit_code":0}}`},
			{"type": "custom_tool_call", "status": "completed", "call_id": "call_2", "name": "apply_patch", "input": "*** Begin Patch"},
			{"type": "custom_tool_call_output", "call_id": "call_2", "output": []M{{"type": "input_text", "text": "Done!"}}},
			{"type": "message", "role": "user", "content": []M{{"type": "input_text", "text": "And now?"}}},
		},
	}
}

const codexAnswer = "<think>hm</think>I patch.\n<tool_call>\n{\"name\": \"apply_patch\", \"arguments\": {\"input\": " +
	"\"*** Begin\\nPatch\"}}\n</tool_call>\n<tool_call>\n{\"name\": \"shell\", \"arguments\": {\"command\": [\"ls\"]}}\n</tool_call>"

// responseEvents reads a stream of named events whose data have a type and follow each other.
func responseEvents(t *testing.T, url string, body M) (out []M) {
	t.Helper()
	resp := openStream(t, context.Background(), url, body)
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	for i, e := range strings.Split(strings.TrimSpace(string(raw)), "\n\n") {
		name, data, ok := strings.Cut(e, "\ndata: ")
		var v M
		if !ok || json.Unmarshal([]byte(data), &v) != nil || "event: "+v["type"].(string) != name || v["sequence_number"] != float64(i) {
			t.Fatalf("event %d: %s", i, e)
		}
		out = append(out, v)
	}
	return out
}

// story is the order of events with the types of their items. A run of equal deltas counts once.
func story(t *testing.T, list []M) string {
	var out []string
	for _, v := range list {
		s := strings.TrimPrefix(v["type"].(string), "response.")
		if item, ok := v["item"]; ok {
			s += "=" + at(t, item, "type").(string)
		}
		if len(out) == 0 || out[len(out)-1] != s || !strings.HasSuffix(s, ".delta") {
			out = append(out, s)
		}
	}
	return strings.Join(out, " ")
}

// A session of Codex: its fields are accepted, and its items become turns. The events of its stream are
// in OpenAI's order, and together equal the whole response.
func TestResponsesCodex(t *testing.T) {
	url, seen, e := serveResponses(t, hermesTemplate, codexAnswer)
	list := responseEvents(t, url, codexTurn())
	if got, want := story(t, list), "created in_progress "+
		"output_item.added=reasoning content_part.added reasoning_text.delta reasoning_text.done content_part.done output_item.done=reasoning "+
		"output_item.added=message content_part.added output_text.delta output_text.done content_part.done output_item.done=message "+
		"output_item.added=custom_tool_call custom_tool_call_input.delta custom_tool_call_input.done "+
		"output_item.done=custom_tool_call completed"; got != want {
		t.Errorf("events\n%s\nwant\n%s", got, want)
	}
	var turns []string
	for _, m := range seen.Messages {
		turns = append(turns, strings.TrimSpace(m.Role+" "+m.Thought+" "+m.Content+string(m.Calls)+m.CallID))
	}
	for i, want := range []string{"system  You are a coding agent.\n\nSandboxed.", "user  List files.", `assistant hm I look.[{"id":"call_1","type":"function","function":{"name":"shell","arguments":"{\"command\":[\"ls\"]}"}}]`,
		`tool  {"output":"a.go","metadata":{"exit_code":0}}call_1`, `assistant  [{"id":"call_2","type":"function","function":{"name":"apply_patch","arguments":"{\"input\":\"*** Begin Patch\"}"}}]`, "tool  Done!call_2", "user  And now?"} {
		if i >= len(turns) || turns[i] != want {
			t.Fatalf("turn %d of\n%s\nwant %s", i, strings.Join(turns, "\n"), want)
		}
	}
	if seen.Kwargs["enable_thinking"] != true || !strings.Contains(string(seen.Tools), "of this lark grammar") ||
		strings.Contains(string(seen.Tools), "web_search") {
		t.Errorf("the template got %v, %s", seen.Kwargs, seen.Tools)
	}
	last := list[len(list)-1]["response"].(M)
	for path, want := range map[string]any{"status": "completed", "object": "response", "store": false,
		"prompt_cache_key": "01997a", "parallel_tool_calls": false, "model": "fake/model"} {
		if last[path] != want {
			t.Errorf("%s is %v", path, last[path])
		}
	}
	if n := at(t, last, "usage", "input_tokens").(float64); int(n) != len(e.Last(t).Prompt) ||
		at(t, last, "usage", "output_tokens_details", "reasoning_tokens").(float64) < 3 {
		t.Errorf("usage %v", last["usage"])
	}
	out := last["output"].([]any)
	if len(out) != 3 || at(t, out, 0, "encrypted_content") != "shoal:aG0=" ||
		at(t, out, 1, "content", 0, "text") != "I patch." || at(t, out, 2, "input") != "*** Begin\nPatch" {
		t.Fatalf("output %v", out)
	}
	for i, n := 0, 0; i < len(list); i++ { // items are the same in events and at the end
		if list[i]["type"] == "response.output_item.done" {
			if !reflect.DeepEqual(list[i]["item"], out[n]) || list[i]["output_index"] != float64(n) {
				t.Errorf("item %d: %v at the end %v", n, list[i]["item"], out[n])
			}
			n++
		}
	}
	whole := codexTurn()
	whole["stream"], whole["parallel_tool_calls"] = false, true
	a := post(t, url, whole)
	if a.status != 200 || a.header.Get("X-Ignored-Parameters") != "tools[2]" {
		t.Fatalf("%d, ignored %q: %s", a.status, a.header.Get("X-Ignored-Parameters"), a.raw)
	}
	var kinds []string
	for _, x := range a.body["output"].([]any) {
		kinds = append(kinds, x.(M)["type"].(string))
	}
	if fmt.Sprint(kinds) != "[reasoning message custom_tool_call function_call]" || at(t, a.body, "output", 3, "arguments") != `{"command": ["ls"]}` || at(t, a.body, "output", 1, "content", 0, "text") != "I patch." {
		t.Errorf("whole: %s", a.raw)
	}
}

// The sampling parameters of a request reach the engine.
func TestResponsesParameters(t *testing.T) {
	url, seen, e := serveResponses(t, hermesTemplate, "Hello")
	call := func(more M) answer {
		body := M{"model": "fake/model", "input": "Hi"}
		for k, v := range more {
			body[k] = v
		}
		return post(t, url, body)
	}
	if a := call(M{"temperature": 0.25, "max_output_tokens": 1 << 20, "metadata": M{"a": "b"}, "previous_response_id": nil}); a.status !=
		200 || e.Last(t).Sampling.Temperature != 0.25 || at(t, a.body, "temperature") != 0.25 ||
		at(t, a.body, "metadata", "a") != "b" || at(t, a.body, "output", 0, "content", 0, "text") != "Hello" ||
		at(t, a.body, "store") != false || !strings.HasPrefix(a.body["id"].(string), "resp_") ||
		!strings.HasPrefix(at(t, a.body, "output", 0, "id").(string), "msg_") {
		t.Error(a.raw)
	}
	if a := call(M{"max_output_tokens": 2}); a.body["status"] != "incomplete" ||
		at(t, a.body, "incomplete_details", "reason") != "max_output_tokens" || at(t, a.body, "output", 0, "status") != "incomplete" {
		t.Error(a.raw)
	}
	if a := call(M{"top_logprobs": 2}); len(at(t, a.body, "output", 0, "content", 0, "logprobs").([]any)) != 6 {
		t.Error(a.raw)
	}
	schema := M{"type": "json_schema", "name": "x", "schema": M{"type": "object"}, "strict": true}
	if a := call(M{"text": M{"format": schema}}); a.status != 200 || e.Last(t).Sampling.Grammar == nil ||
		at(t, a.body, "text", "format", "name") != "x" {
		t.Error(a.raw)
	}
	tools := []M{{"type": "function", "name": "f"}, {"type": "function", "name": "g"}}
	for choice, want := range map[string]string{`"required"`: "f g", `{"type":"function","name":"g"}`: "g", `{"type":"allowed_tools","mode":"required","tools":[{"type":"function","name":"f"}]}`: "f", `{"type":"allowed_tools","mode":"auto","tools":[{"type":"function","name":"f"}]}`: ""} {
		if a := call(M{"tools": tools, "tool_choice": json.RawMessage(choice)}); a.status != 200 {
			t.Errorf("%s: %s", choice, a.raw)
		}
		got := ""
		if g := e.Last(t).Sampling.Grammar; g != nil {
			for _, name := range []string{"f", "g"} {
				if strings.Contains(g.Text, `\"`+name+`\"`) {
					got = strings.TrimSpace(got + " " + name)
				}
			}
		}
		if got != want || !strings.Contains(string(seen.Tools), `"g"`) {
			t.Errorf("%s: enforced %q, want %q", choice, got, want)
		}
	}
	if a := post(t, url+"/input_tokens", M{"input": "Hi"}); a.status != 200 || at(t, a.body, "input_tokens").(float64) < 3 {
		t.Error(a.raw)
	}
	for _, c := range []struct {
		more   M
		status int
		param  any
	}{
		{M{"input": nil}, 400, "input"},
		{M{"input": 5}, 400, "input"},
		{M{"input": []M{{"type": "message", "role": "user", "content": []M{{"type": "input_image", "image_url": "data:"}}}}},
			400, "input[0].content[0].type"},
		{M{"input": []M{{"type": "computer_call"}}}, 400, "input[0].type"},
		{M{"input": []M{{"type": "item_reference", "id": "msg_x_0"}}}, 400, "input[0].id"},
		{M{"temperature": 3}, 400, "temperature"},
		{M{"max_output_tokens": 0}, 400, "max_output_tokens"},
		{M{"text": M{"format": M{"type": "yaml"}}}, 400, "text.format.type"},
		{M{"text": M{"format": M{"type": "json_schema", "schema": M{"uniqueItems": true}}}}, 400, "text.format.json_schema.schema"},
		{M{"tools": []M{{"type": "function", "name": "a b"}}}, 400, "tools[0].name"},
		{M{"tool_choice": "required"}, 400, "tool_choice"},
		{M{"conversation": "conv_1"}, 400, "conversation"},
		{M{"background": true, "store": false}, 400, "background"},
		{M{"background": true}, 503, nil},
		{M{"store": true}, 503, nil},
		{M{"previous_response_id": "resp_x"}, 503, nil},
		{M{"model": "other"}, 404, "model"},
	} {
		if a := call(c.more); a.status != c.status || at(t, a.body, "error", "param") != c.param {
			t.Errorf("%v: %d %s", c.more, a.status, a.raw)
		}
	}
}

// A response that fails has in its last event the items that the stream has sent, each closed.
func TestFailedResponseHasItsText(t *testing.T) {
	script := func(*engine.Request) []engine.Event {
		return []engine.Event{{Token: servertest.TokHello}, {Token: servertest.TokWorld},
			{Token: engine.NoToken, Finish: engine.FinishError, Err: errors.New("cluster: node 3 died")}}
	}
	url := serve(t, &servertest.Engine{Script: script}) + "/v1/responses"
	list := responseEvents(t, url, M{"input": "Hi", "stream": true})
	last := list[len(list)-1]
	if last["type"] != "response.failed" || at(t, last, "response", "status") != "failed" {
		t.Fatalf("%v", last)
	}
	item := at(t, last, "response", "output", 0)
	parts, _ := at(t, item, "content").([]any)
	if len(parts) != 1 || at(t, parts[0], "text") != "Hello world" || at(t, item, "status") != "incomplete" {
		t.Errorf("item %v in %s", item, story(t, list))
	}
}

// Answers of gpt-oss have channels instead of tags around thoughts. Their tokens count as tokens of reasoning.
func TestResponsesCountThoughtsOfChannels(t *testing.T) {
	url, _ := serveTools(t, ossTemplate, &servertest.Engine{Script: writes("<|channel|>analysis<|message|>hm, so<|end|>" +
		"<|start|>assistant<|channel|>commentary<|message|>I look.<|end|>" +
		"<|start|>assistant<|channel|>analysis<|message|>ah<|end|><|start|>assistant<|channel|>final<|message|>Hi.")})
	url = strings.TrimSuffix(url, "/chat/completions") + "/responses"
	a := post(t, url, M{"input": "Hi"})
	// One token a byte: the thoughts with the last byte of their headers and the beginnings of their ends.
	if n := at(t, a.body, "usage", "output_tokens_details", "reasoning_tokens").(float64); n < 8 || n > 8+2*8 {
		t.Errorf("%v reasoning tokens: %s", n, a.raw)
	}
}

// A call whose arguments a stop string cut off is not completed, though the response is.
func TestResponseWithCutCall(t *testing.T) {
	for stop, want := range map[string]string{"slo": "incomplete", "</tool_call>": "completed"} {
		url, _, _ := serveResponses(t, hermesTemplate, "I look.<tool_call>{\"name\": \"f\", \"arguments\": {\"city\": \"Oslo\"}}</tool_call>")
		body := M{"input": "x", "stop": stop, "tools": []M{{"type": "function", "name": "f"}}}
		a := post(t, url, body)
		body["stream"] = true
		list := responseEvents(t, url, body)
		for _, output := range []any{at(t, a.body, "output"), at(t, list[len(list)-1], "response", "output")} {
			if at(t, output, 0, "status") != "completed" || at(t, output, 1, "type") != "function_call" || at(t, output, 1, "status") != want {
				t.Errorf("stop %q: %v", stop, output)
			}
		}
		if at(t, a.body, "status") != "completed" {
			t.Errorf("the response is %v", at(t, a.body, "status"))
		}
	}
}

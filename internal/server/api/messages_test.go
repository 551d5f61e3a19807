package api

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/server/engine"
	"github.com/shoal-llm/shoal/internal/server/httpserver"
	"github.com/shoal-llm/shoal/internal/server/servertest"
)

func messages(more M) M {
	body := M{"model": "fake/model", "max_tokens": 300, "messages": []M{{"role": "user", "content": "Hi"}}}
	for k, v := range more {
		body[k] = v
	}
	return body
}

func serveMessages(t *testing.T, source, text string) (string, *engine.Conversation, *servertest.Engine) {
	t.Helper()
	e := &servertest.Engine{Script: writes(text)}
	url, seen := serveTools(t, source, e)
	return strings.TrimSuffix(url, "/chat/completions") + "/messages", seen, e
}

func TestMessages(t *testing.T) {
	const call = "<think>hm</think>I look.<tool_call>{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Oslo\"}}</tool_call>"
	tools := []M{{"name": "get_weather", "description": "of a city",
		"input_schema": M{"type": "object", "properties": M{"city": M{"type": "string"}}}}}
	url, seen, e := serveMessages(t, hermesTemplate, call)
	a := post(t, url, messages(M{"tools": tools, "system": []M{
		{"type": "text", "text": "x-anthropic-billing-header: cch=1;"},
		{"type": "text", "text": "Be brief.", "cache_control": M{"type": "ephemeral"}},
	},
		"metadata": M{"user_id": "u"}, "thinking": M{"type": "enabled", "budget_tokens": 1024}, "messages": []M{
			{"role": "user", "content": "Weather?"},
			{"role": "assistant", "content": []M{
				{"type": "thinking", "thinking": "so", "signature": ""},
				{"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": M{"city": "Rome"}},
			}},
			{"role": "user", "content": []M{
				{"type": "tool_result", "tool_use_id": "toolu_1", "content": []M{{"type": "text", "text": "rain"}}},
				{"type": "text", "text": "And Oslo?"},
			}},
		}}))
	if a.status != 200 || a.header.Get("X-Ignored-Parameters") != "" {
		t.Fatalf("%d %s, ignored %q", a.status, a.raw, a.header.Get("X-Ignored-Parameters"))
	}
	if seen.Messages[0].Content != "Be brief." || seen.Messages[2].Thought != "so" || !strings.Contains(string(seen.Messages[2].Calls), `{\"city\":\"Rome\"}`) ||
		seen.Messages[3].Role != "tool" || seen.Messages[3].CallID != "toolu_1" || seen.Messages[3].Content != "rain" ||
		seen.Messages[4].Content != "And Oslo?" || seen.Kwargs["enable_thinking"] != true {
		t.Errorf("the template got %+v", seen)
	}
	if got := fmt.Sprint(at(t, a.body, "type"), at(t, a.body, "role"), at(t, a.body, "stop_reason"),
		at(t, a.body, "stop_sequence")); got != "message assistant tool_use <nil>" && got != "messageassistanttool_use<nil>" {
		t.Errorf("%q in %s", got, a.raw)
	}
	var types []string
	for _, b := range at(t, a.body, "content").([]any) {
		types = append(types, b.(M)["type"].(string))
	}
	if strings.Join(types, " ") != "thinking text tool_use" || at(t, a.body, "content", 2, "input", "city") != "Oslo" ||
		at(t, a.body, "content", 0, "thinking") != "hm" {
		t.Errorf("content %s", a.raw)
	}
	if in := at(t, a.body, "usage", "input_tokens").(float64); int(in) != len(e.Last(t).Prompt) ||
		at(t, a.body, "usage", "output_tokens").(float64) < 10 {
		t.Errorf("usage %s", a.raw)
	}
	if n := post(t, url+"/count_tokens", M{"model": "fake/model", "messages": []M{{"role": "user", "content": "Hi"}}}); n.status != 200 ||
		at(t, n.body, "input_tokens").(float64) < 3 {
		t.Error(n.raw)
	}
	for choice, forced := range map[string]bool{"any": true, "auto": false} {
		if a := post(t, url, messages(M{"tools": tools, "tool_choice": M{"type": choice}})); a.status != 200 ||
			(e.Last(t).Sampling.Grammar != nil) != forced {
			t.Errorf("tool_choice %s: %d, grammar %v", choice, a.status, e.Last(t).Sampling.Grammar)
		}
	}
	if a := post(t, url, messages(M{"max_tokens": 1 << 20, "stop_sequences": []string{"look"}})); a.status != 200 ||
		at(t, a.body, "stop_reason") != "stop_sequence" || at(t, a.body, "stop_sequence") != "look" {
		t.Error(a.raw)
	}
	for _, how := range []M{
		{"output_format": M{"type": "json_schema", "schema": M{"type": "object"}}},
		{"output_config": M{"effort": "low", "format": M{"type": "json_schema", "schema": M{"type": "object"}}}},
	} {
		if a := post(t, url, messages(how)); a.status != 200 || e.Last(t).Sampling.Grammar == nil || a.header.Get("X-Ignored-Parameters") != "" {
			t.Errorf("%v: %d, grammar %v", how, a.status, e.Last(t).Sampling.Grammar)
		}
	}
	if a := post(t, url, messages(M{"max_tokens": 3})); at(t, a.body, "stop_reason") != "max_tokens" {
		t.Error(a.raw)
	}
}

// The events of a stream are in the order that Anthropic's clients require. Together they equal the
// message of a request without a stream.
func TestMessagesStream(t *testing.T) {
	url, _, _ := serveMessages(t, hermesTemplate,
		"<think>hm</think>I look.<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}}</tool_call>")
	resp := openStream(t, context.Background(), url, messages(M{"tools": []M{{"name": "f"}}}))
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	var order []string
	text := map[string]string{}
	open, index := false, 0.0
	for _, e := range strings.Split(strings.TrimSpace(string(raw)), "\n\n") {
		name, data, ok := strings.Cut(e, "\ndata: ")
		var v M
		if name = strings.TrimPrefix(name, "event: "); !ok || json.Unmarshal([]byte(data), &v) != nil || v["type"] != name {
			t.Fatalf("event %q", e)
		}
		switch name {
		case "message_start":
			if at(t, v, "message", "usage", "input_tokens").(float64) < 3 || at(t, v, "message", "usage", "output_tokens").(float64) != 0 {
				t.Error(data)
			}
		case "content_block_start":
			if open || v["index"] != index {
				t.Errorf("%s while another is open, or out of order", data)
			}
			open, name = true, name+":"+at(t, v, "content_block", "type").(string)
		case "content_block_delta":
			d := v["delta"].(M)
			for k, x := range d {
				if k != "type" {
					text[d["type"].(string)] += x.(string)
				}
			}
			continue
		case "content_block_stop":
			open = false
			index++
		case "message_delta":
			name += ":" + at(t, v, "delta", "stop_reason").(string)
		}
		order = append(order, name)
	}
	want := "message_start content_block_start:thinking content_block_stop content_block_start:text " +
		"content_block_stop content_block_start:tool_use content_block_stop message_delta:tool_use message_stop"
	if got := strings.Join(order, " "); got != want {
		t.Errorf("events\n%s\nwant\n%s", got, want)
	}
	if text["thinking_delta"] != "hm" || text["text_delta"] != "I look." || text["input_json_delta"] != `{"a": 1}` {
		t.Errorf("deltas %v", text)
	}
}

func TestMessagesErrors(t *testing.T) {
	url, _, _ := serveMessages(t, hermesTemplate, "x")
	for _, c := range []struct {
		body    any
		status  int
		typ, in string
	}{
		{M{"messages": []M{{"role": "user", "content": "x"}}}, 400, "invalid_request_error", "max_tokens"},
		{messages(M{"model": "other"}), 404, "not_found_error", "other"},
		{messages(M{"messages": "x"}), 400, "invalid_request_error", "messages"},
		{messages(M{"messages": []M{{"role": "user", "content": []M{{"type": "image"}}}}}), 400, "invalid_request_error", "image"},
		{messages(M{"messages": []M{{"role": "robot", "content": "x"}}}), 400, "invalid_request_error", "robot"},
		{messages(M{"tool_choice": M{"type": "tool", "name": "x"}}), 400, "invalid_request_error", "tools"},
		{messages(M{"output_config": M{"format": M{"type": "x"}}}), 400, "invalid_request_error", "'output_config.format.type'"},
		{messages(M{"stop_sequences": 5}), 400, "invalid_request_error", "'stop_sequences'"},
		{messages(M{"temperature": 9}), 400, "invalid_request_error", "temperature"},
		{"{", 400, "invalid_request_error", "JSON"},
	} {
		a := post(t, url, c.body)
		if a.status != c.status || at(t, a.body, "type") != "error" || at(t, a.body, "error", "type") != c.typ ||
			!strings.Contains(at(t, a.body, "error", "message").(string), c.in) {
			t.Errorf("%v: %d %s", c.body, a.status, a.raw)
		}
	}
	key := serve(t, &servertest.Engine{Script: servertest.Hello},
		func(c *Config) { c.Keys = []httpserver.Key{{Name: "k", Secret: "secret-key-of-sixteen"}} }) + "/v1/messages"
	ask := func(header string) *http.Response {
		b, _ := json.Marshal(messages(nil))
		r, _ := http.NewRequest("POST", key, strings.NewReader(string(b)))
		r.Header.Set("Content-Type", "application/json")
		if header != "" {
			r.Header.Set("x-api-key", header)
		}
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { resp.Body.Close() })
		return resp
	}
	if r := ask("secret-key-of-sixteen"); r.StatusCode != 200 {
		t.Errorf("x-api-key: status %d", r.StatusCode)
	}
	var body M
	if r := ask("wrong"); r.StatusCode != 401 || json.NewDecoder(r.Body).Decode(&body) != nil ||
		at(t, body, "error", "type") != "authentication_error" {
		t.Errorf("a wrong key: %d %v", r.StatusCode, body)
	}
}

// An answer continues the text of the assistant that ends the messages, as Anthropic's do. A turn without text,
// or one that calls, is over.
func TestMessagesPrefill(t *testing.T) {
	for last, continues := range map[string]bool{
		`{"role":"assistant","content":"{"}`:                                                  true,
		`{"role":"assistant","content":[{"type":"text","text":"The answer is"}]}`:             true,
		`{"role":"assistant","content":""}`:                                                   false,
		`{"role":"assistant","content":[]}`:                                                   false,
		`{"role":"assistant","content":[{"type":"tool_use","id":"a","name":"f","input":{}}]}`: false,
		`{"role":"user","content":"y"}`:                                                       false,
	} {
		url, seen, _ := serveMessages(t, hermesTemplate, "Hi")
		for _, path := range []string{"", "/count_tokens"} {
			*seen = engine.Conversation{}
			a := post(t, url+path, `{"model":"fake/model","max_tokens":9,"messages":[{"role":"user","content":"x"},`+last+`]}`)
			if a.status != 200 || seen.ContinueFinal != continues || seen.AddGenerationPrompt == continues {
				t.Errorf("%s %s: %d, continues %v, begins a turn %v", path, last, a.status, seen.ContinueFinal, seen.AddGenerationPrompt)
			}
		}
	}
}

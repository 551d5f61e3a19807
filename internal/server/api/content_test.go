package api

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/server/engine"
	"github.com/shoal-llm/shoal/internal/server/generate"
	"github.com/shoal-llm/shoal/internal/server/openai"
	"github.com/shoal-llm/shoal/internal/server/servertest"
)

// turns writes the messages of a template: role, content, thought and calls of each.
func turns(c *engine.Conversation) string {
	var out []string
	for _, m := range c.Messages {
		text := m.Role + ":" + m.Content
		if m.Thought != "" {
			text += " (" + m.Thought + ")"
		}
		if m.Calls != nil {
			text += " " + callsAsText(m.Calls)
		}
		out = append(out, text)
	}
	return strings.Join(out, " | ")
}

// callsAsText writes calls by name and arguments, whichever form those have.
func callsAsText(raw json.RawMessage) string {
	var calls []struct {
		Function struct {
			Name      string
			Arguments any
		}
	}
	if err := json.Unmarshal(raw, &calls); err != nil {
		return err.Error()
	}
	var out []string
	for _, c := range calls {
		args, ok := c.Function.Arguments.(string)
		if !ok {
			b, _ := json.Marshal(c.Function.Arguments)
			args = string(b)
		}
		out = append(out, `{"name": "`+c.Function.Name+`", "parameters": `+args+`}`)
	}
	if len(out) == 1 {
		return out[0]
	}
	return "[" + strings.Join(out, ", ") + "]"
}

// image is the line of a prompt for an image that was left out.
const image = "[An image was left out: only text can be read here.]"

// TestHistory: no content of earlier turns makes any protocol refuse a request. Content that is null,
// missing or empty is empty. Content other than text is left out and named.
func TestHistory(t *testing.T) {
	base, seen, e := serveMessages(t, hermesTemplate, "ok")
	base = strings.TrimSuffix(base, "/v1/messages")
	const user, next = `{"role":"user","content":"a"},`, `,{"role":"user","content":"b"}`
	chats := func(middle string) string { return `{"max_tokens":2,"messages":[` + user + middle + next + `]}` }
	ollama := func(middle string) string {
		return `{"model":"fake/model","stream":false,"messages":[` + user + middle + next + `]}`
	}
	items := func(middle string) string { return `{"store":false,"input":[` + user + middle + next + `]}` }
	for _, c := range []struct{ path, body, want, left string }{
		// Chats.
		{"chat", chats(`{"role":"assistant","content":null}`), "assistant:", ""},
		{"chat", chats(`{"role":"assistant"}`), "assistant:", ""},
		{"chat", chats(`{"role":"assistant","content":[]}`), "assistant:", ""},
		{"chat", chats(`{"role":"assistant","content":""}`), "assistant:", ""},
		{"chat", chats(`{"role":"assistant","content":null,"tool_calls":[]}`), "assistant:", ""},
		{"chat", chats(`{"role":"assistant","content":null,"tool_calls":null,"function_call":null,"audio":null,"annotations":[]}`), "assistant:", ""},
		{"chat", chats(`{"role":"assistant","content":null,"refusal":"I will not."}`), "assistant:I will not.", ""},
		{"chat", chats(`{"role":"assistant","content":[{"type":"refusal","refusal":"No."}]}`), "assistant:No.", ""},
		{"chat", chats(`{"role":"assistant","content":"Hm.","refusal":"No."}`), "assistant:Hm.\nNo.", ""},
		{"chat", chats(`{"role":"assistant","content":null,"reasoning_content":"hm"}`), "assistant: (hm)", ""},
		{"chat", chats(`{"role":"assistant","content":"c","reasoning":"hm"}`), "assistant:c (hm)", ""},
		{"chat", chats(`{"role":"assistant","content":"c","thinking":"hm"}`), "assistant:c (hm)", ""},
		{"chat", chats(`{"role":"assistant","content":"c","reasoning_content":"1","reasoning":"2","thinking":"3"}`), "assistant:c (1)", ""},
		{"chat", chats(`{"role":"assistant","content":"c","reasoning_content":"","reasoning":"2","reasoning_details":[{"type":"reasoning.text","text":"3"}]}`), "assistant:c (2)", ""},
		{"chat", chats(`{"role":"assistant","content":"c","reasoning_details":[{"type":"reasoning.summary","summary":"1"},{"type":"reasoning.encrypted","data":"x"},{"type":"reasoning.text","text":"2"}]}`), "assistant:c (1\n2)", ""},
		{"chat", chats(`{"role":"assistant","content":[{"type":"thinking","thinking":[{"type":"text","text":"hm"}]},{"type":"text","text":"c"}]}`), "assistant:c (hm)", ""},
		{"chat", chats(`{"role":"assistant","content":"c","reasoning":{"effort":"low"},"provider_specific_fields":{"x":1}}`), "assistant:c", "messages[1].reasoning, messages[1].provider_specific_fields"},
		{"chat", chats(`{"role":"assistant","content":"c","audio":{"id":"audio_1"}}`), "assistant:c", "messages[1].audio"},
		{"chat", chats(`{"role":"tool","tool_call_id":"x","content":null}`), "tool:", ""},
		{"chat", chats(`{"role":"user","content":null}`), "user:", ""},
		{"chat", chats(`{"role":"user"}`), "user:", ""},
		{"chat", chats(`{"role":"user","content":[{"type":"text","text":"see"},{"type":"image_url","image_url":{"url":"data:,"}}]},{"role":"assistant","content":"c"}`), "user:see\n" + image + " | assistant:c", "messages[1].content[1]"},
		{"chat", chats(`{"role":"user","content":[{"type":"input_audio","input_audio":{}}]}`), "user:[A recording was left out: only text can be read here.]", "messages[1].content[0]"},
		{"chat", chats(`{"role":"user","content":[{"type":"hologram","x":1},{"type":"text","text":"see"}]}`), "user:see", "messages[1].content[0]"},
		{"chat", chats(`{"role":"tool","tool_call_id":"x","content":[{"type":"image_url"},{"type":"text","text":"see"}]}`), "tool:" + image + "\nsee", "messages[1].content[0]"},
		{"chat", chats(`{"role":"assistant","content":null,"function_call":{"name":"f","arguments":"{}"}},{"role":"function","name":"f","content":"7"}`), `assistant: {"name": "f", "parameters": {}} | tool:7`, ""},
		// Messages.
		{"messages", chats(`{"role":"assistant","content":null}`), "assistant:", ""},
		{"messages", chats(`{"role":"assistant"}`), "assistant:", ""},
		{"messages", chats(`{"role":"assistant","content":[]}`), "assistant:", ""},
		{"messages", chats(`{"role":"assistant","content":[{"type":"server_tool_use","id":"s","name":"web_search","input":{"query":"x"}},{"type":"web_search_tool_result","tool_use_id":"s","content":[{"type":"web_search_result","url":"u"}]},{"type":"text","text":"c"}]}`), "assistant:c", "messages[1].content[0], messages[1].content[1]"},
		{"messages", chats(`{"role":"assistant","content":[{"type":"mcp_tool_use","id":"s","name":{"x":1},"input":3},{"type":"mcp_tool_result","tool_use_id":"s","content":[]},{"type":"text","text":"c"}]}`), "assistant:c", "messages[1].content[0], messages[1].content[1]"},
		{"messages", chats(`{"role":"assistant","content":[{"type":"compaction","content":"so far"},{"type":"container_upload","file_id":"f"}]}`), "assistant:so far", "messages[1].content[1]"},
		{"messages", chats(`{"role":"user","content":[{"type":"document","title":"T","source":{"type":"text","media_type":"text/plain","data":"hello"}},{"type":"search_result","title":"R","source":"s","content":[{"type":"text","text":"found"}]}]}`), "user:T\nhello\nR\ns\nfound", ""},
		{"messages", chats(`{"role":"user","content":[{"type":"document","source":{"type":"content","content":[{"type":"text","text":"in"},{"type":"image"}]}},{"type":"document","source":{"type":"base64","data":"x"}}]}`), "user:in\n" + image + "\n[A document was left out: only text can be read here.]", "messages[1].content[0].source.content[1], messages[1].content[1]"},
		{"messages", chats(`{"role":"user","content":[{"type":"image","source":{}},{"type":"text","text":"see"}]},{"role":"assistant","content":"c"}`), "user:" + image + "\nsee | assistant:c", "messages[1].content[0]"},
		{"messages", chats(`{"role":"assistant","content":[{"type":"tool_use","id":"t","name":"f","input":{}}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"t","content":[{"type":"image","source":{}},{"type":"document","source":{"type":"text","data":"d"}},{"type":"tool_reference","tool_name":"g"}]}]}`),
			`assistant: {"name": "f", "parameters": {}} | tool:` + image + "\nd\ng", "messages[2].content[0].content[0]"},
		// Responses.
		{"responses", items(`{"type":"message","role":"assistant","content":null}`), "assistant:", ""},
		{"responses", items(`{"type":"message","role":"assistant"}`), "assistant:", ""},
		{"responses", items(`{"type":"message","role":"assistant","content":[{"type":"refusal","refusal":"No."}]}`), "assistant:No.", ""},
		{"responses", items(`{"type":"message","role":"user","content":[{"type":"input_image","image_url":"data:,"},{"type":"input_file","file_id":"f"}]},{"type":"message","role":"assistant","content":"c"}`), "user:" + image + "\n[A file was left out: only text can be read here.] | assistant:c", "input[1].content[0], input[1].content[1]"},
		{"responses", items(`{"type":"local_shell_call","call_id":"1","action":{"type":"exec","command":["ls"]}},{"type":"function_call_output","call_id":"1","output":"a.go"},{"type":"message","role":"assistant","content":"c"}`), "assistant:c", "input[1], input[2]"},
		{"responses", items(`{"type":"mcp_call","id":"m","name":"f","arguments":"{}","output":"x"},{"type":"compaction","encrypted_content":"x"},{"type":"message","role":"assistant","content":"c"}`), "assistant:c", "input[1], input[2]"},
		{"responses", items(`{"type":"apply_patch_call","call_id":"p","operation":{"type":"update_file"}},{"type":"apply_patch_call_output","call_id":"p","output":"ok"},{"type":"shell_call","call_id":"s","action":{}},{"type":"shell_call_output","call_id":"s","output":[{"stdout":"x"}]},{"type":"message","role":"assistant","content":"c"}`), "assistant:c", "input[1], input[2], input[3], input[4]"},
		{"responses", items(`{"type":"tool_search_call","call_id":null,"arguments":{"goal":"x"},"execution":"server"},{"type":"tool_search_output","tools":[]},{"type":"of_the_future","summary":"x","content":7},{"type":"message","role":"assistant","content":"c"}`), "assistant:c", "input[1], input[2], input[3]"},
		{"responses", items(`{"type":"web_search_call","id":"w","status":"completed","action":{}},{"type":"message","role":"assistant","content":"c"}`), "assistant:c", "input[1]"},
		{"responses", items(`{"type":"function_call","call_id":"1","name":"f","arguments":"{}"},{"type":"function_call_output","call_id":"1","output":[{"type":"input_image","image_url":"data:,"}]}`), `assistant: {"name": "f", "parameters": {}} | tool:` + image, "input[2].output[0]"},
		{"responses", items(`{"type":"function_call","call_id":"1","name":"f","arguments":"{}"},{"type":"function_call_output","call_id":"1","output":null}`), `assistant: {"name": "f", "parameters": {}} | tool:`, ""},
		// Ollama.
		{"ollama", ollama(`{"role":"assistant","content":null}`), "assistant:", ""},
		{"ollama", ollama(`{"role":"assistant"}`), "assistant:", ""},
		{"ollama", ollama(`{"role":"assistant","content":[]}`), "assistant:", ""},
		{"ollama", ollama(`{"role":"assistant","content":[{"type":"thinking","thinking":"hm"},{"type":"text","text":"c"}]}`), "assistant:c (hm)", ""},
		{"ollama", ollama(`{"role":"user","content":[{"type":"text","text":"see"},{"type":"image_url","image_url":{"url":"data:,"}}]},{"role":"assistant","content":"c"}`), "user:see\n" + image + " | assistant:c", "messages[1].content[1]"},
		{"ollama", ollama(`{"role":"user","content":[{"type":"text","text":"see"}],"images":["aGk="]},{"role":"assistant","content":"c"}`), "user:see\n" + image + " | assistant:c", "messages[1].images"},
		{"ollama", ollama(`{"role":"user","content":"see","images":["aGk="]},{"role":"assistant","content":"c"}`), "user:see\n" + image + " | assistant:c", "messages[1].images"},
		{"ollama", ollama(`{"role":"assistant","content":"","tool_calls":[{"function":{"name":"f","arguments":"{\"a\":1}"}}]},{"role":"tool","tool_name":"f","content":"7"}`), `assistant: {"name": "f", "parameters": {"a":1}} | tool:7`, ""},
	} {
		path := map[string]string{"chat": "/v1/chat/completions", "messages": "/v1/messages",
			"responses": "/v1/responses", "ollama": "/api/chat"}[c.path]
		a := post(t, base+path, c.body)
		if got := turns(seen); a.status != 200 || got != "user:a | "+c.want+" | user:b" || a.header.Get("X-Ignored-Parameters") != c.left {
			t.Errorf("%s %s\n%d: %s, left out %q\nwant %s, left out %q", path, c.body, a.status, got,
				a.header.Get("X-Ignored-Parameters"), c.want, c.left)
			if a.status != 200 {
				t.Error(a.raw)
			}
		}
		if c.path == "chat" {
			if n := post(t, base+"/tokenize", c.body); n.status != 200 || at(t, n.body, "count") != float64(len(e.Last(t).Prompt)) {
				t.Errorf("/tokenize of %s: %d %s", c.body, n.status, n.raw)
			}
		}
		if c.path == "messages" {
			if n := post(t, base+"/v1/messages/count_tokens", c.body); n.status != 200 ||
				at(t, n.body, "input_tokens") != float64(len(e.Last(t).Prompt)) {
				t.Errorf("count_tokens of %s: %d %s", c.body, n.status, n.raw)
			}
		}
	}
}

// TestNewestTurn: the newest message of the user must be text. The error has advice for the client.
func TestNewestTurn(t *testing.T) {
	base, _, e := serveMessages(t, hermesTemplate, "ok")
	base = strings.TrimSuffix(base, "/v1/messages")
	const old = `{"role":"user","content":"a"},{"role":"assistant","content":"b"},`
	for _, c := range []struct{ path, body, param string }{
		{"/v1/chat/completions", `{"messages":[` + old + `{"role":"user","content":[{"type":"text","text":"what is this?"},{"type":"image_url","image_url":{"url":"data:,"}}]}]}`, "messages[2].content[1].type"},
		{"/v1/chat/completions", `{"messages":[` + old + `{"role":"user","content":[{"type":"input_audio"}]},{"role":"system","content":"x"}]}`, "messages[2].content[0].type"},
		{"/v1/chat/completions", `{"continue_final_message":true,"messages":[` + old + `{"role":"user","content":[{"type":"image_url"}]},{"role":"assistant","content":"It is"}]}`, "messages[2].content[0].type"},
		{"/v1/messages", `{"max_tokens":9,"messages":[` + old + `{"role":"user","content":[{"type":"image"}]},{"role":"assistant","content":"It is"}]}`, "messages[2].content[0].type"},
		{"/tokenize", `{"messages":[` + old + `{"role":"user","content":[{"type":"image_url"}]}]}`, "messages[2].content[0].type"},
		{"/v1/messages", `{"max_tokens":9,"messages":[` + old + `{"role":"user","content":[{"type":"image","source":{}}]}]}`, "messages[2].content[0].type"},
		{"/v1/messages", `{"max_tokens":9,"messages":[` + old + `{"role":"user","content":[{"type":"document","source":{"type":"base64"}}]}]}`, "messages[2].content[0].type"},
		{"/v1/responses", `{"store":false,"input":[` + old + `{"role":"user","content":[{"type":"input_image"}]}]}`, "input[2].content[0].type"},
		{"/api/chat", `{"model":"fake/model","messages":[` + old + `{"role":"user","content":"a","images":["aGk="]}]}`, "messages[2].images"},
		{"/api/chat", `{"model":"fake/model","messages":[` + old + `{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:,"}}]}]}`, "messages[2].content[0].type"},
	} {
		a := post(t, base+c.path, c.body)
		if a.status != 400 || !strings.Contains(a.raw, "'"+c.param+"'") || !strings.Contains(a.raw, "only text is") ||
			!strings.Contains(a.raw, "Send the message without ") {
			t.Errorf("%s %s: %d %s", c.path, c.body, a.status, a.raw)
		}
	}
	if len(e.Requests) != 0 {
		t.Errorf("%d requests reached the engine", len(e.Requests))
	}
	// The newest result of a tool is no message of the user.
	for path, body := range map[string]string{
		"/v1/chat/completions": `{"max_tokens":2,"messages":[` + old + `{"role":"user","content":[{"type":"image_url"}]},{"role":"assistant","tool_calls":[{"id":"t","type":"function","function":{"name":"f","arguments":"{}"}}]},{"role":"tool","tool_call_id":"t","content":[{"type":"image_url"}]}]}`,
		"/tokenize":            `{"messages":[` + old + `{"role":"user","content":[{"type":"image_url"}]},{"role":"assistant","content":"answered"}]}`,
		"/v1/messages":         `{"max_tokens":2,"messages":[` + old + `{"role":"user","content":"c"},{"role":"assistant","content":[{"type":"tool_use","id":"t","name":"f","input":{}}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"t","content":[{"type":"image","source":{}}]},{"type":"text","text":"so?"}]}]}`,
		"/v1/responses":        `{"store":false,"input":[` + old + `{"role":"user","content":"c"},{"type":"function_call","call_id":"1","name":"f","arguments":"{}"},{"type":"function_call_output","call_id":"1","output":[{"type":"input_image"}]}]}`,
	} {
		if a := post(t, base+path, body); a.status != 200 ||
			path != "/tokenize" && !strings.Contains(a.header.Get("X-Ignored-Parameters"), "[0]") {
			t.Errorf("%s %s: %d %s", path, body, a.status, a.raw)
		}
	}
}

// TestJobHistory: the body of a job or of a line of a batch is read as its endpoint reads it.
func TestJobHistory(t *testing.T) {
	s := newServer(t, &servertest.Engine{Script: servertest.Hello})
	for endpoint, body := range map[string]string{
		openai.EndpointChat:      `{"messages":[{"role":"user","content":[{"type":"image_url"}]},{"role":"assistant","content":null,"refusal":"No."},{"role":"user","content":"b"}]}`,
		openai.EndpointResponses: `{"input":[{"type":"compaction","encrypted_content":"x"},{"role":"assistant","content":null},{"role":"user","content":"b"}]}`,
	} {
		task, err := s.NewTask(t.Context(), endpoint, json.RawMessage(body), generate.TaskOptions{ID: "x"})
		if err != nil {
			t.Fatalf("%s: %v", endpoint, err)
		}
		if left := task.Ignored(); len(left) != 1 || left[0] != "messages[0].content[0]" && left[0] != "input[0]" {
			t.Errorf("%s: left out %v", endpoint, left)
		}
	}
}

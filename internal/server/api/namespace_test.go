package api

import (
	"strings"
	"testing"
)

// TestNamespaces: the functions of a namespace reach the model under one name, and come back with
// their namespace, in wholes, streams and histories.
func TestNamespaces(t *testing.T) {
	const crm = `{"type":"namespace","name":"crm","description":"Customers.","tools":[{"type":"function","name":"find","parameters":{"type":"object","properties":{"id":{"type":"string"}}},"defer_loading":true},{"type":"custom","name":"note"},{"type":"web_search"}]},` +
		`{"type":"namespace","name":"mcp__git__","tools":[{"type":"function","name":"log"}]},{"type":"function","name":"find","parameters":{}}`
	for output, want := range map[string]string{
		"<tool_call>\n{\"name\": \"crm__find\", \"arguments\": {\"id\": \"7\"}}\n</tool_call>":     `function_call crm find`,
		"<tool_call>\n{\"name\": \"crm__note\", \"arguments\": {\"input\": \"hi\"}}\n</tool_call>": `custom_tool_call crm note`,
		"<tool_call>\n{\"name\": \"mcp__git__log\", \"arguments\": {}}\n</tool_call>":              `function_call mcp__git__ log`,
		"<tool_call>\n{\"name\": \"find\", \"arguments\": {}}\n</tool_call>":                       `function_call  find`,
	} {
		url, seen, _ := serveResponses(t, hermesTemplate, output)
		body := `{"store":false,"stream":STREAM,"tools":[` + crm + `],"input":[{"role":"user","content":"x"},{"type":"function_call","call_id":"1","namespace":"crm","name":"find","arguments":"{}"},{"type":"function_call_output","call_id":"1","output":"none"}]MORE}`
		ask := func(stream, more string) answer {
			return post(t, url, strings.NewReplacer("STREAM", stream, "MORE", more).Replace(body))
		}
		a := ask("false", "")
		if a.status != 200 || a.header.Get("X-Ignored-Parameters") != "tools[0].tools[2]" {
			t.Fatalf("%d %s, ignored %q", a.status, a.raw, a.header.Get("X-Ignored-Parameters"))
		}
		item := at(t, a.body, "output", 0).(M)
		space, _ := item["namespace"].(string)
		if got := item["type"].(string) + " " + space + " " + item["name"].(string); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
		if len(at(t, a.body, "tools").([]any)) != 3 || !strings.Contains(turns(seen), `{"name": "crm__find"`) || !strings.Contains(string(seen.Tools), `"name":"mcp__git__log"`) {
			t.Errorf("the prompt has %s and %s", turns(seen), seen.Tools)
		}
		kind, rest, _ := strings.Cut(want, " ")
		space, name, _ := strings.Cut(rest, " ")
		if s := ask("true", ""); !strings.Contains(s.raw, `"type":"`+kind+`"`) || !strings.Contains(s.raw, `"name":"`+name+`"`) || strings.Contains(s.raw, `"namespace":"`+space+`"`) != (space != "") {
			t.Errorf("the stream of %s: %s", want, s.raw)
		}
		for choice, status := range map[string]int{
			`{"type":"function","namespace":"crm","name":"find"}`: 200, `{"type":"function","namespace":"crm","name":"log"}`: 400,
			`{"type":"allowed_tools","mode":"auto","tools":[{"type":"function","namespace":"crm","name":"find"}]}`: 200, `{"type":"allowed_tools","mode":"auto","tools":[{"type":"function","namespace":"x","name":"find"}]}`: 400,
		} {
			if a := ask("false", `,"tool_choice":`+choice); a.status != status {
				t.Errorf("%s: %d %s", choice, a.status, a.raw)
			}
		}
	}
	url, _, _ := serveResponses(t, hermesTemplate, "x")
	for tools, param := range map[string]string{
		`{"type":"namespace","name":"crm"}`:                                                                          "tools[0]",
		`{"type":"namespace","tools":[]}`:                                                                            "tools[0]",
		`{"type":"namespace","name":"a","tools":[{"type":"function","name":"b c"}]}`:                                 "tools[0].tools[0].name",
		`{"type":"namespace","name":"a","tools":[{"type":"function","name":"b"}]},{"type":"function","name":"a__b"}`: "tools[1].name",
	} {
		checkParam(t, post(t, url, `{"store":false,"input":"x","tools":[`+tools+`]}`), param, tools)
	}
}

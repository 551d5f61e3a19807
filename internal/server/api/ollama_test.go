package api

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/internal/server/apierr"
	"github.com/shoal-llm/shoal/internal/server/engine"
	"github.com/shoal-llm/shoal/internal/server/servertest"
)

// readLines reads the lines of a stream, each a JSON object.
func readLines(t *testing.T, raw string) (out []M) {
	t.Helper()
	for line := range strings.Lines(raw) {
		var m M
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		out = append(out, m)
	}
	return out
}

// TestOllama: the example requests of Ollama's API documentation. Answers have the documented members.
func TestOllama(t *testing.T) {
	e := &servertest.Engine{Script: servertest.Hello}
	url := serve(t, e)
	for name, c := range map[string]struct {
		path, body, text string
		lines            int // 0: one object, not a stream
		count            float64
	}{
		"chat, streaming":       {"/api/chat", `{"model":"fake/model","messages":[{"role":"user","content":"why is the sky blue?"}]}`, "Hello world!", 4, 4},
		"chat, no streaming":    {"/api/chat", `{"model":"fake/model","messages":[{"role":"user","content":"why is the sky blue?"}],"stream":false}`, "Hello world!", 0, 4},
		"chat, history, latest": {"/api/chat", `{"model":"alias:latest","messages":[{"role":"user","content":"why is the sky blue?"},{"role":"assistant","content":"due to rayleigh scattering."},{"role":"user","content":"how is that different than mie scattering?"}]}`, "Hello world!", 4, 4},
		"chat, reproducible":    {"/api/chat", `{"model":"fake/model","messages":[{"role":"user","content":"Hello!"}],"stream":false,"options":{"seed":101,"temperature":0,"num_ctx":4096}}`, "Hello world!", 0, 4},
		"generate, streaming":   {"/api/generate", `{"model":"fake/model","prompt":"Why is the sky blue?"}`, "Hello world!", 4, 4},
		"generate, raw":         {"/api/generate", `{"model":"fake/model","prompt":"[INST] why is the sky blue? [/INST]","raw":true,"stream":false}`, "Hello world!", 0, 4},
		"generate, options":     {"/api/generate", `{"model":"fake/model","prompt":"Why is the sky blue?","stream":false,"keep_alive":"5m","options":{"num_predict":2,"stop":["\n","user:"],"top_k":20,"top_p":0.9,"min_p":0.0,"repeat_penalty":1.2,"presence_penalty":1.5,"frequency_penalty":1.0}}`, "Hello world", 0, 2},
	} {
		t.Run(name, func(t *testing.T) {
			a := ask(t, "POST", url+c.path, "", c.body)
			if a.status != 200 {
				t.Fatal(a.raw)
			}
			objects, kind := readLines(t, a.raw), "application/x-ndjson"
			if c.lines == 0 {
				c.lines, kind = 1, "application/json"
			}
			if len(objects) != c.lines || a.header.Get("Content-Type") != kind {
				t.Errorf("%d objects of type %s, want %d of %s: %s", len(objects), a.header.Get("Content-Type"), c.lines, kind, a.raw)
			}
			text := ""
			for i, o := range objects {
				piece, ok := o["response"].(string)
				if m, chat := o["message"].(M); chat {
					piece, ok = m["content"].(string)
					ok = ok && m["role"] == "assistant" && o["response"] == nil
				}
				_, err := time.Parse(time.RFC3339Nano, o["created_at"].(string))
				if !ok || err != nil || o["done"] != (i == len(objects)-1) || o["model"] == "" || strings.Contains(o["model"].(string), ":latest") {
					t.Errorf("object %d: %v", i, o)
				}
				text += piece
			}
			last := objects[len(objects)-1]
			if text != c.text || last["eval_count"] != c.count || last["prompt_eval_count"].(float64) < 2 ||
				last["prompt_eval_duration"].(float64) <= 0 || last["eval_duration"].(float64) <= 0 || last["total_duration"].(float64) <= 0 {
				t.Errorf("%q ends with %v", text, last)
			}
			if want := map[bool]string{true: "length", false: "stop"}[c.count == 2]; last["done_reason"] != want {
				t.Errorf("done_reason %v, want %s", last["done_reason"], want)
			}
		})
	}
	a := ask(t, "POST", url+"/api/chat", "", `{"model":"fake/model","stream":false,"options":{"seed":101,"temperature":0.5,"repeat_penalty":1.25,"num_ctx":4096},"messages":[{"role":"user","content":"Hello!"}],"fancy":1}`)
	if p := e.Last(t).Sampling; p.Seed != 101 || p.Temperature != 0.5 || p.RepetitionPenalty != 1.25 ||
		a.header.Get("X-Ignored-Parameters") != "fancy, options.num_ctx" {
		t.Errorf("options became %+v, ignored are %q", p, a.header.Get("X-Ignored-Parameters"))
	}
	for body, want := range map[string]string{
		`{"model":"fake/model"}`:                                                                            `"done_reason":"load"`,
		`{"model":"fake/model","messages":[]}`:                                                              `"done_reason":"load"`,
		`{"messages":[{"role":"user","content":"x"}]}`:                                                      `{"error":"'model' is required."}`,
		`{"model":"nobody","messages":[{"role":"user","content":"x"}]}`:                                     `{"error":"`,
		`{"model":"fake/model","messages":[{"role":"user","content":"x","images":["aGk="]}]}`:               `only text is`,
		`{"model":"fake/model","messages":[{"role":"user","content":"x"}],"options":7}`:                     `'options' must be an object`,
		`{"model":"fake/model","messages":[{"role":"user","content":"x"}],"options":{"temperature":"hot"}}`: `{"error":"'options.temperature'`,
	} {
		if a := ask(t, "POST", url+"/api/chat", "", body); !strings.Contains(a.raw, want) {
			t.Errorf("%s: %d %s, want %s", body, a.status, a.raw, want)
		}
	}
	if a := ask(t, "GET", url+"/api/tags", "", ""); at(t, a.body, "models", 0, "name") != "fake/model" ||
		at(t, a.body, "models", 1, "model") != "alias" {
		t.Error(a.raw)
	}
	e.Script = func(*engine.Request) []engine.Event {
		return []engine.Event{
			{Token: servertest.TokHello},
			{Token: engine.NoToken, Finish: engine.FinishError, Err: apierr.ErrFailed{Code: "x", Message: "broken"}},
		}
	}
	a = ask(t, "POST", url+"/api/chat", "", `{"model":"fake/model","messages":[{"role":"user","content":"x"}]}`)
	if o := readLines(t, a.raw); len(o) != 2 || !strings.Contains(o[1]["error"].(string), "broken") {
		t.Errorf("a stream that fails: %s", a.raw)
	}
}

// TestOllamaTools: calls and results of tools, thoughts and a schema, as Ollama writes them.
func TestOllamaTools(t *testing.T) {
	e := &servertest.Engine{
		Script: writes("<think>hm</think>I look.<tool_call>{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Oslo\"}}</tool_call>")}
	url, seen := serveTools(t, hermesTemplate, e)
	url = strings.TrimSuffix(url, "/v1/chat/completions") + "/api/chat"
	const body = `{"model":"fake/model","stream":STREAM,"think":true,"messages":[{"role":"user","content":"what is the weather in Tokyo?"},
		{"role":"assistant","content":"","tool_calls":[{"function":{"name":"get_weather","arguments":{"city":"Tokyo"}}}]},
		{"role":"tool","tool_name":"get_weather","content":"11 degrees celsius"},{"role":"user","content":"and in Oslo?"}],
		"tools":[{"type":"function","function":{"name":"get_weather","description":"Get the weather in a given city","parameters":{"type":"object","properties":{"city":{"type":"string"}},"required":["city"]}}}]}`
	for _, stream := range []string{"true", "false"} {
		a := ask(t, "POST", url, "", strings.Replace(body, "STREAM", stream, 1))
		if a.status != 200 {
			t.Fatal(a.raw)
		}
		if m := seen.Messages; !strings.Contains(string(m[1].Calls), `{\"city\":\"Tokyo\"}`) || m[2].Role != "tool" || m[2].Content != "11 degrees celsius" || seen.Kwargs["enable_thinking"] != true {
			t.Errorf("the template got %+v", seen)
		}
		text, thought, calls := "", "", []any{}
		for _, o := range readLines(t, a.raw) {
			m := o["message"].(M)
			text += m["content"].(string)
			if s, ok := m["thinking"].(string); ok {
				thought += s
			}
			if c, ok := m["tool_calls"].([]any); ok {
				calls = append(calls, c...)
			}
		}
		if text != "I look." || thought != "hm" || len(calls) != 1 || at(t, calls[0], "function", "name") != "get_weather" ||
			at(t, calls[0], "function", "arguments", "city") != "Oslo" {
			t.Errorf("stream %s: %q, thought %q, calls %v of %s", stream, text, thought, calls, a.raw)
		}
	}
	for format, want := range map[string]bool{`"json"`: true, `{"type":"object","properties":{"age":{"type":"integer"}},"required":["age"]}`: true, `""`: false} {
		a := ask(t, "POST", url, "", `{"model":"fake/model","messages":[{"role":"user","content":"x"}],"stream":false,"format":`+format+`}`)
		if (e.Last(t).Sampling.Grammar != nil) != want {
			t.Errorf("format %s: a grammar is %v: %s", format, !want, a.raw)
		}
	}
}

// TestOllamaCallIDs: a result has the id of the call that it is of, named or not.
func TestOllamaCallIDs(t *testing.T) {
	url, seen := serveTools(t, hermesTemplate, &servertest.Engine{Script: writes("ok")})
	url = strings.TrimSuffix(url, "/v1/chat/completions") + "/api/chat"
	const calls = `{"role":"user","content":"x"},{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":{}}},{"function":{"name":"g","arguments":{}}},{"id":"mine","function":{"name":"g","arguments":{}}}]},`
	for results, want := range map[string]string{
		`{"role":"tool","content":"1"},{"role":"tool","content":"2"},{"role":"tool","content":"3"},{"role":"tool","content":"4"}`:                                        "call-1-0 call-1-1 mine ",
		`{"role":"tool","tool_name":"g","content":"1"},{"role":"tool","tool_name":"f","content":"2"},{"role":"tool","tool_name":"g","content":"3"}`:                      "call-1-1 call-1-0 mine",
		`{"role":"tool","tool_call_id":"mine","content":"1"},{"role":"tool","tool_call_id":"strange","content":"2"},{"role":"tool","tool_name":"unknown","content":"3"}`: "mine strange call-1-0",
	} {
		a := post(t, url, `{"model":"fake/model","stream":false,"messages":[`+calls+results+`]}`)
		var got []string
		for _, m := range seen.Messages[2:] {
			got = append(got, m.CallID)
		}
		if a.status != 200 || strings.Join(got, " ") != want {
			t.Errorf("%s: %d, ids %q, want %q", results, a.status, strings.Join(got, " "), want)
		}
	}
}

// A level of thinking is the effort that the template reads, as with Ollama's gpt-oss.
func TestOllamaThinkingLevels(t *testing.T) {
	for think, want := range map[string]struct{ on, effort any }{
		`"low"`: {true, "low"}, `"high"`: {true, "high"}, `true`: {true, nil}, `false`: {false, nil}, `null`: {nil, nil},
	} {
		for path, rest := range map[string]string{"chat": `"messages":[{"role":"user","content":"x"}]`, "generate": `"prompt":"x"`} {
			url, seen := serveTools(t, ossTemplate, &servertest.Engine{Script: writes("<|channel|>final<|message|>Hi.")})
			url = strings.TrimSuffix(url, "/v1/chat/completions") + "/api/" + path
			a := post(t, url, `{"model":"fake/model","stream":false,"think":`+think+`,`+rest+`}`)
			if a.status != 200 || seen.Kwargs["enable_thinking"] != want.on || seen.Kwargs["reasoning_effort"] != want.effort {
				t.Errorf("%s of think %s: %d, the template got %v", path, think, a.status, seen.Kwargs)
			}
		}
	}
	url, _ := serveTools(t, ossTemplate, &servertest.Engine{})
	url = strings.TrimSuffix(url, "/v1/chat/completions") + "/api/chat"
	a := post(t, url, `{"model":"fake/model","think":5,"messages":[{"role":"user","content":"x"}]}`)
	if a.status != 400 || !strings.Contains(a.raw, "'think' must be true or false") {
		t.Errorf("%d %s", a.status, a.raw)
	}
}

// Options move to the nearest bound, also from beyond the numbers that a machine has.
func TestOllamaHugeOptions(t *testing.T) {
	for options, want := range map[string]uint64{`{"seed":1e30}`: math.MaxInt64, `{"seed":9223372036854775808}`: math.MaxInt64,
		`{"seed":1e400}`: math.MaxInt64, `{"seed":9223372036854775807}`: math.MaxInt64, `{"seed":5.9}`: 5, `{"seed":7,"temperature":1e400}`: 7,
		`{"seed":8,"top_k":-1e400,"num_predict":1e400}`: 8} {
		e := &servertest.Engine{Script: servertest.Hello}
		a := post(t, serve(t, e)+"/api/generate", `{"model":"fake/model","prompt":"x","raw":true,"stream":false,"options":`+options+`}`)
		if a.status != 200 || e.Last(t).Sampling.Seed != want {
			t.Errorf("%s: %d %s", options, a.status, a.raw)
		}
	}
}

// Ollama's clients decode the arguments of a call as an object, and run every call. A call that was cut off is
// therefore none: what is known of its arguments is content.
func TestOllamaCutCalls(t *testing.T) {
	const whole = "<tool_call>{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Oslo\"}}</tool_call>"
	glm := "{{ tools }} <tool_call> <arg_key> </think>"
	for _, c := range []struct{ template, answer, options, content, calls, reason string }{
		{hermesTemplate, "I look." + whole + whole, `{"stop":["slo\"}}</tool_call><tool_call>"]}`, `I look.{"city": "O`, "", "stop"},
		{hermesTemplate, "I look." + whole + whole, `{"num_predict":141}`, `I look.{"city":`, `[map[city:Oslo]]`, "length"},
		{glm, "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Oslo</arg_value></tool_call>", `{"num_predict":60}`, "", "", "length"},
		{glm, "<tool_call>get_weather\n</tool_call>", `{}`, "", `[map[]]`, "stop"},
	} {
		url, _ := serveTools(t, c.template, &servertest.Engine{Script: writes(c.answer)})
		url = strings.TrimSuffix(url, "/v1/chat/completions") + "/api/chat"
		for _, stream := range []string{"true", "false"} {
			tools, _ := json.Marshal(weather())
			a := post(t, url, `{"model":"fake/model","stream":`+stream+`,"messages":[{"role":"user","content":"x"}],"options":`+c.options+`,"tools":`+string(tools)+`}`)
			content, calls, reason := "", "", any(nil)
			for _, o := range readLines(t, a.raw) {
				content += at(t, o, "message", "content").(string)
				if list, ok := o["message"].(M)["tool_calls"].([]any); ok {
					var args []any
					for _, x := range list {
						args = append(args, at(t, x, "function", "arguments"))
					}
					calls += fmt.Sprint(args)
				}
				reason = o["done_reason"]
			}
			if content != c.content || calls != c.calls || reason != c.reason {
				t.Errorf("%s, stream %s: content %q, calls %s, %v; want %q, %s, %s", c.options, stream,
					content, calls, reason, c.content, c.calls, c.reason)
			}
		}
	}
}

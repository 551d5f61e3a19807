package api

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/pooling/recipe"
	"github.com/shoal-llm/shoal/internal/server/servertest"
)

// The effort of Messages reaches the template as that of chats does. It does not turn on thoughts that the
// request has not enabled. Other members of output_config are named.
func TestMessagesEffort(t *testing.T) {
	url, seen, e := serveMessages(t, hermesTemplate, "ok")
	for more, want := range map[string]string{
		`"output_config":{"effort":"low"}`:                                             "false low ",
		`"output_config":{"effort":"max"},"thinking":{"type":"adaptive"}`:              "true max ",
		`"output_config":{"effort":"low"},"thinking":{"type":"disabled"}`:              "false low ",
		`"output_config":{"effort":null}`:                                              "false <nil> ",
		`"output_config":{"task_budget":{"total":1},"effort":"high","format":null}`:    "false high output_config.task_budget",
		`"output_config":{"effort":"low"},"thinking":{"type":"enabled"},"betas":["x"]`: "true low betas",
	} {
		body := `{"max_tokens":4,"messages":[{"role":"user","content":"x"}],` + more + `}`
		a := post(t, url, body)
		if got := fmt.Sprint(seen.Kwargs["enable_thinking"], " ", seen.Kwargs["reasoning_effort"], " ",
			a.header.Get("X-Ignored-Parameters")); a.status != 200 || got != want {
			t.Errorf("%s: %d, %q, want %q", more, a.status, got, want)
		}
		seen.Kwargs = nil
		if n := post(t, url+"/count_tokens", body); n.status != 200 || at(t, n.body, "input_tokens") != float64(len(e.Last(t).Prompt)) ||
			!strings.HasPrefix(want, fmt.Sprint(seen.Kwargs["enable_thinking"], " ", seen.Kwargs["reasoning_effort"], " ")) {
			t.Errorf("count_tokens of %s: %d, %v", more, n.status, seen.Kwargs)
		}
	}
	checkParam(t, post(t, strings.Replace(url, "/v1/messages", "/v1/chat/completions", 1),
		`{"messages":[{"role":"user","content":"x"}],"reasoning_effort":5}`), "reasoning_effort", "5")
	if a := post(t, url, `{"max_tokens":4,"messages":[{"role":"user","content":"x"}],"output_config":{"effort":5}}`); a.status != 400 ||
		!strings.Contains(a.raw, "'output_config.effort' must be a string") {
		t.Error(a.raw)
	}
}

// Claude Code and Codex send an effort with every request. One that the template refuses, as that of Qwen 3.8 does with
// high, is left out and named.
func TestMessagesEffortThatTheTemplateRefuses(t *testing.T) {
	url, seen, e := serveMessages(t, hermesTemplate+" raise_exception", "ok")
	for effort, ignored := range map[string]string{"low": "", "high": "output_config.effort"} {
		body := `{"max_tokens":4,"messages":[{"role":"user","content":"x"}],"thinking":{"type":"adaptive"},"output_config":{"effort":"` +
			effort + `"}}`
		a := post(t, url, body)
		if a.status != 200 || a.header.Get("X-Ignored-Parameters") != ignored || seen.Kwargs["enable_thinking"] != true {
			t.Errorf("%s: %d %s, ignored %q", effort, a.status, a.raw, a.header.Get("X-Ignored-Parameters"))
		}
		if n := post(t, url+"/count_tokens", body); n.status != 200 || at(t, n.body, "input_tokens") != float64(len(e.Last(t).Prompt)) {
			t.Errorf("count_tokens of %s: %d %s", effort, n.status, n.raw)
		}
	}
	for effort, ignored := range map[string]string{"low": "", "high": "reasoning.effort"} { // as Codex does
		a := post(t, strings.Replace(url, "/v1/messages", "/v1/responses", 1), `{"input":"x","max_output_tokens":4,"reasoning":{"effort":"`+effort+`"}}`)
		if a.status != 200 || a.header.Get("X-Ignored-Parameters") != ignored || at(t, a.body, "reasoning", "effort") != effort {
			t.Errorf("responses, %s: %d %s, ignored %q", effort, a.status, a.raw, a.header.Get("X-Ignored-Parameters"))
		}
	}
	if a := post(t, strings.Replace(url, "/v1/messages", "/v1/chat/completions", 1),
		`{"messages":[{"role":"user","content":"x"}],"reasoning_effort":"high"}`); a.status != 400 {
		t.Errorf("a chat: %d %s", a.status, a.raw)
	}
}

// Completions take the form of chats for log-probabilities, as their description says: true is those of the
// generated tokens alone.
func TestCompletionsLogprobsTrue(t *testing.T) {
	e := &servertest.Engine{Script: servertest.Hello}
	url := serve(t, e) + "/v1/completions"
	for value, want := range map[string]int{`true`: 0, `false`: -1, `0`: 0, `2`: 2, `null`: -1} {
		a := post(t, url, `{"prompt":"x","max_tokens":2,"logprobs":`+value+`}`)
		if a.status != 200 || e.Last(t).Sampling.Logprobs != want {
			t.Errorf("%s: %d %s, the engine got %d", value, a.status, a.raw, e.Last(t).Sampling.Logprobs)
		}
	}
	checkParam(t, post(t, url, `{"prompt":"x","logprobs":"true"}`), "logprobs", "text")
}

// To count tokens, nothing is stored: there need be no store.
func TestInputTokensWithoutAStore(t *testing.T) {
	url := serve(t, &servertest.Engine{Script: servertest.Hello}) + "/v1/responses"
	for _, more := range []string{`"store":true`, `"background":true`, `"store":false`} {
		if a := post(t, url+"/input_tokens", `{"input":"x",`+more+`}`); a.status != 200 {
			t.Errorf("%s: %d %s", more, a.status, a.raw)
		}
	}
	if a := post(t, url, `{"input":"x","store":true}`); a.status != 503 {
		t.Errorf("%d %s", a.status, a.raw)
	}
}

// A choice among allowed tools does not change the prompt, and only they can be called.
func TestChatAllowedTools(t *testing.T) {
	const call = "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call><tool_call>{\"name\": \"g\", \"arguments\": {}}</tool_call>"
	url, seen := serveTools(t, hermesTemplate, &servertest.Engine{Script: writes(call)})
	const tools = `"messages":[{"role":"user","content":"x"}],"tools":[{"type":"function","function":{"name":"f"}},{"type":"function","function":{"name":"g"}}]`
	ask := func(choice string) answer { return post(t, url, `{`+tools+`,"tool_choice":`+choice+`}`) }
	allowed := func(mode, names string) string {
		return `{"type":"allowed_tools","allowed_tools":{"mode":"` + mode + `","tools":[` + names + `]}}`
	}
	const g = `{"type":"function","function":{"name":"g"}}`
	a := ask(allowed("auto", g))
	if calls, _ := at(t, a.body, "choices", 0, "message", "tool_calls").([]any); a.status != 200 || len(calls) != 1 ||
		at(t, a.body, "choices", 0, "message", "tool_calls", 0, "function", "name") != "g" {
		t.Errorf("%d %s", a.status, a.raw)
	}
	if !strings.Contains(string(seen.Tools), `"f"`) {
		t.Errorf("the prompt has %s", seen.Tools)
	}
	if a := post(t, strings.Replace(url, "/v1/chat/completions", "/tokenize", 1), `{`+tools+`,"tool_choice":`+allowed("auto", g)+`}`); a.status != 200 {
		t.Errorf("/tokenize: %s", a.raw)
	}
	if a := ask(allowed("auto", "")); a.status != 200 || at(t, a.body, "choices", 0, "finish_reason") != "stop" {
		t.Errorf("none is allowed: %d %s", a.status, a.raw)
	}
	for _, bad := range []string{allowed("auto", `{"type":"function","function":{"name":"h"}}`), allowed("sometimes", g), allowed("required", ""),
		`{"type":"allowed_tools"}`, `{"type":"allowed_tools","allowed_tools":5}`} {
		if a := ask(bad); a.status != 400 || !strings.Contains(a.raw, `"param":"tool_choice`) {
			t.Errorf("%s: %d %s", bad, a.status, a.raw)
		}
	}
}

// Variables of the template are those of the request, with the form of numbers and the order of members.
func TestTemplateVariablesStayAsSent(t *testing.T) {
	url, seen := serveTools(t, hermesTemplate, &servertest.Engine{Script: writes("ok")})
	const values = `{"a":1.0,"b":12345678901234567890,"c":{"z":1,"y":[2.0,{"x":1e2}]},"d":"<s>","e":true,"f":null}`
	if a := post(t, url, `{"messages":[{"role":"user","content":"x"}],"chat_template_kwargs":`+values+`}`); a.status != 200 {
		t.Fatal(a.raw)
	}
	for name, want := range map[string]string{"a": "1.0", "b": "12345678901234567890", "c": `{"z":1,"y":[2.0,{"x":1e2}]}`, "d": `"\u003cs\u003e"`,
		"e": "true", "f": "null"} {
		if got, err := json.Marshal(seen.Kwargs[name]); err != nil || string(got) != want {
			t.Errorf("%s is %s, want %s", name, got, want)
		}
	}
}

// A request without a prompt loads the model with Ollama, and with a keep_alive of 0 unloads it.
func TestOllamaLoadAndUnload(t *testing.T) {
	url := serve(t, &servertest.Engine{Script: servertest.Hello})
	for keep, want := range map[string]string{`"5m"`: "load", `0`: "unload", `"0"`: "unload", `"0s"`: "unload", `0.0`: "unload", `-1`: "load",
		`null`: "load", `300`: "load", `{}`: "load"} {
		for _, path := range []string{"/api/generate", "/api/chat"} {
			a := post(t, url+path, `{"model":"fake/model","keep_alive":`+keep+`}`)
			if a.status != 200 || at(t, a.body, "done_reason") != want {
				t.Errorf("%s with %s: %d %s", path, keep, a.status, a.raw)
			}
		}
	}
	for _, path := range []string{"/api/generate", "/api/chat"} {
		if a := post(t, url+path, `{"model":"another"}`); a.status != 404 {
			t.Errorf("%s of a model that is not here: %d %s", path, a.status, a.raw)
		}
	}
}

// The older route for vectors names its own parameter in errors.
func TestOllamaEmbeddingsErrors(t *testing.T) {
	url := serve(t, &servertest.Engine{}, func(c *Config) { c.Recipe = &recipe.Recipe{Width: 4} })
	for _, prompt := range []string{`""`, `5`, `["a"]`} {
		a := post(t, url+"/api/embeddings", `{"model":"fake/model","prompt":`+prompt+`}`)
		if a.status != 400 || strings.Contains(a.raw, "input") || !strings.Contains(a.raw, "'prompt'") {
			t.Errorf("%s: %d %s", prompt, a.status, a.raw)
		}
	}
	if a := post(t, url+"/api/embed", `{"model":"fake/model","input":""}`); a.status != 400 || !strings.Contains(a.raw, "'input'") {
		t.Error(a.raw)
	}
}

// Errors of scores name the list that the client sent.
func TestScoreErrors(t *testing.T) {
	url := serve(t, &servertest.Engine{}, func(c *Config) { c.Recipe = &recipe.Recipe{Width: 4} })
	for body, param := range map[string]string{`{"text_1":"","text_2":"x"}`: "text_1", `{"queries":["a",""],"documents":["x","y"]}`: "queries",
		`{"text_1":"x","text_2":""}`: "text_2", `{"text_1":"x","documents":["a",""]}`: "documents"} {
		checkParam(t, post(t, url+"/v1/score", body), param, body)
	}
	checkParam(t, post(t, url+"/v1/rerank", `{"query":"","documents":["x"]}`), "query", "")
}

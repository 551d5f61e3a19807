package api

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/server/generate"
	"github.com/shoal-llm/shoal/internal/server/openai"
	"github.com/shoal-llm/shoal/internal/server/servertest"
)

// ways are the routes that generate, with the least that each needs; %s is one more member.
var ways = map[string]string{
	"/v1/completions":      `{"prompt":"Hi"%s}`,
	"/v1/chat/completions": `{"messages":[{"role":"user","content":"Hi"}]%s}`,
	"/v1/messages":         `{"max_tokens":4,"messages":[{"role":"user","content":"Hi"}]%s}`,
	"/v1/responses":        `{"input":"Hi","store":false%s}`,
	"/api/chat":            `{"model":"alias","stream":false,"messages":[{"role":"user","content":"Hi"}]%s}`,
	"/api/generate":        `{"model":"alias","stream":false,"prompt":"Hi"%s}`,
}

// Names match exactly at every depth: a member of another case is an unknown one.
func TestNamesMatchExactly(t *testing.T) {
	url := serve(t, &servertest.Engine{Script: servertest.Hello})
	for _, c := range []struct{ path, body, want string }{
		{"/v1/chat/completions", `{"messages":[{"roLe":"user","content":"a"}]}`, "messages[0].role"},
		{"/v1/chat/completions", `{"messages":[{"role":"user","content":[{"type":"text","TEXT":"z"}]}]}`, "messages[0].content[0].text"},
		{"/v1/chat/completions", `{"messages":[{"role":"assistant","tool_calls":[{"Function":{"name":"f","arguments":"{}"}}]},{"role":"user","content":"a"}]}`, "messages[0].tool_calls[0]"},
		{"/v1/chat/completions", `{"messages":[{"role":"assistant","tool_calls":[{"function":{"NAME":"f","arguments":"{}"}}]},{"role":"user","content":"a"}]}`, "messages[0].tool_calls[0]"},
		{"/v1/chat/completions", `{"messages":[{"role":"user","content":"a"}],"tools":[{"type":"function","Function":{"name":"f"}}]}`, "tools[0]"},
		{"/v1/chat/completions", `{"messages":[{"role":"user","content":"a"}],"response_format":{"TYPE":"json_object"}}`, "response_format.type"},
		{"/v1/messages", `{"max_tokens":4,"messages":[{"role":"user","content":[{"type":"text","Text":"z"}]}]}`, "messages[0].content[0]"},
		{"/v1/messages", `{"max_tokens":4,"messages":[{"Role":"user","content":"a"}]}`, "messages[0].role"},
	} {
		a := post(t, url+c.path, c.body)
		if a.status != 400 || !strings.Contains(a.raw, c.want) {
			t.Errorf("%s %s: %d %s, want a 400 at %s", c.path, c.body, a.status, a.raw, c.want)
		}
	}
	same := post(t, url+"/tokenize", `{"messages":[{"role":"user","content":"a"}]}`)
	if got := post(t, url+"/tokenize", `{"messages":[{"role":"user","content":"a","Content":"b","ROLE":"system"}]}`); got.status != 200 || got.raw != same.raw {
		t.Errorf("a member of another case is read: %s, not %s", got.raw, same.raw)
	}
	empty := post(t, url+"/tokenize", `{"messages":[{"role":"user","content":""}]}`) // a missing content is an empty one
	if got := post(t, url+"/tokenize", `{"messages":[{"role":"user","Content":"a"}]}`); got.status != 200 || got.raw != empty.raw {
		t.Errorf("a content of another case is read: %s, not %s", got.raw, empty.raw)
	}
}

// An object with two members of one name is refused, at every depth and on every route.
func TestNamesAreThereOnce(t *testing.T) {
	url := serve(t, &servertest.Engine{Script: servertest.Hello})
	for path, body := range ways {
		for more, place := range map[string]string{
			`,"temperature":0,"temperature":1`:                             `The JSON body has the member \"temperature\" twice`,
			`,"metadata":{"a":{"b":1,"\u0062":2}}`:                         `'metadata.a' has the member \"b\" twice`,
			`,"x":[{"a":1},{"a":1,"b":[],"a":{}}]`:                         `'x[1]' has the member \"a\" twice`,
			`,"tools":[{"function":{"parameters":{"type":"a","type":1}}}]`: `'tools[0].function.parameters' has the member \"type\" twice`,
		} {
			a := post(t, url+path, fmt.Sprintf(body, more))
			if a.status != 400 || !strings.Contains(a.raw, place) {
				t.Errorf("%s %s: %d %s", path, more, a.status, a.raw)
			}
		}
	}
	for _, path := range []string{"/tokenize", "/detokenize", "/v1/messages/count_tokens", "/v1/responses/input_tokens", "/v1/contexts"} {
		if a := post(t, url+path, `{"model":"alias","model":"alias"}`); a.status != 400 || !strings.Contains(a.raw, "twice") {
			t.Errorf("%s: %d %s", path, a.status, a.raw)
		}
	}
}

// 5.0 and 5e0 are integers wherever one is expected.
func TestIntegersInAnySpelling(t *testing.T) {
	e := &servertest.Engine{Script: servertest.Hello}
	url := serve(t, e)
	for path, members := range map[string][]string{
		"/v1/completions":      {`"max_tokens":5.0`, `"stop_token_ids":[5.0,6e0]`, `"allowed_token_ids":[72.0,257]`, `"n":1.0`, `"seed":7.0`, `"logprobs":1.0`, `"top_k":5e0`, `"priority":-0.0`},
		"/v1/chat/completions": {`"max_tokens":50e-1`, `"logprobs":true,"top_logprobs":2.0`, `"guided_json":{"type":"string","maxLength":5.0}`, `"guided_json":{"type":"array","items":{},"minItems":1.0,"maxItems":2e0}`},
		"/v1/messages":         {`"top_k":5.0`, `"thinking":{"type":"enabled","budget_tokens":1024.0}`},
		"/v1/responses":        {`"max_output_tokens":5.0`, `"top_logprobs":1.0`},
		"/api/chat":            {`"options":{"num_predict":5.0,"top_k":40.0,"seed":3e0}`},
		"/api/generate":        {`"options":{"num_predict":5.0}`},
	} {
		for _, m := range members {
			if a := post(t, url+path, fmt.Sprintf(ways[path], ","+m)); a.status != 200 {
				t.Errorf("%s %s: %d %s", path, m, a.status, a.raw)
			}
		}
	}
	if a := post(t, url+"/v1/completions", `{"prompt":[72.0, 1.05e2],"max_tokens":1.0}`); a.status != 200 || fmt.Sprint(e.Last(t).Prompt) != "[72 105]" {
		t.Errorf("%d %s %v", a.status, a.raw, e.Last(t).Prompt)
	}
	for path, m := range map[string]string{"/v1/completions": `"max_tokens":5.5`, "/v1/responses": `"max_output_tokens":"5"`} {
		if a := post(t, url+path, fmt.Sprintf(ways[path], ","+m)); a.status != 400 {
			t.Errorf("%s %s: %d", path, m, a.status)
		}
	}
}

// A seed of -1 gives another answer each time; every other seed is used unchanged.
func TestSeedOfMinusOne(t *testing.T) {
	e := &servertest.Engine{Script: servertest.Hello}
	url := serve(t, e)
	for path, body := range ways {
		member := func(seed string) string {
			if strings.HasPrefix(path, "/api/") {
				return fmt.Sprintf(body, `,"options":{"seed":`+seed+`}`)
			}
			return fmt.Sprintf(body, `,"seed":`+seed)
		}
		seen := map[uint64]bool{}
		for _, seed := range []string{"-1", "-1", "-1.0", "-1e0"} {
			if a := post(t, url+path, member(seed)); a.status != 200 {
				t.Fatalf("%s: %s", path, a.raw)
			}
			seen[e.Last(t).Sampling.Seed] = true
		}
		if len(seen) != 4 || seen[1<<64-1] {
			t.Errorf("%s: seed -1 gives %v", path, seen)
		}
		if strings.HasPrefix(path, "/api/") {
			continue // every negative seed of Ollama is drawn
		}
		for seed, want := range map[string]uint64{"-2": 1<<64 - 2, "0": 0, "7": 7} {
			if post(t, url+path, member(seed)); e.Last(t).Sampling.Seed != want {
				t.Errorf("%s: seed %s gives %d", path, seed, e.Last(t).Sampling.Seed)
			}
		}
	}
}

// A task that an older build accepted runs to its end by the rules of that build.
func TestTasksOfOlderBuilds(t *testing.T) {
	s := newServer(t, &servertest.Engine{Script: servertest.Hello})
	seed := func(body string, o generate.TaskOptions) uint64 {
		t.Helper()
		task, err := s.NewTask(t.Context(), openai.EndpointCompletions, []byte(body), o)
		if err != nil {
			t.Fatal(err)
		}
		return task.Request(0).Sampling.Seed
	}
	for _, c := range []struct {
		body  string
		drawn bool
		want  uint64
	}{{`{"prompt":"a","seed":-1}`, false, 1<<64 - 1}, {`{"prompt":"a","seed":-1}`, true, 77}, {`{"prompt":"a"}`, false, 77}, {`{"prompt":"a","seed":null}`, true, 77}, {`{"prompt":"a","seed":5.0}`, true, 5},
		{`{"prompt":"a","seed":4,"seed":6}`, false, 6}} {
		if got := seed(c.body, generate.TaskOptions{Seed: 77, Drawn: c.drawn}); got != c.want {
			t.Errorf("%s, drawn %v: %d, want %d", c.body, c.drawn, got, c.want)
		}
	}
}

// Requests are decoded by jsonbody alone. The files below decode other JSON than requests, or schemas,
// whose keywords package grammar checks.
func TestOneDecoder(t *testing.T) {
	other := []string{"object.go", "json.go", "fakes.go", "keys.go", "responseencoder.go", "tokenize.go", "tools.go", "toolgrammar.go"}
	files, err := filepath.Glob("../*/*.go")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasSuffix(name, "_test.go") && strings.Contains(string(text), "json.Unmarshal(") &&
			!slices.Contains(other, filepath.Base(name)) {
			t.Errorf("%s calls json.Unmarshal, which ignores the case of names; call jsonbody.Unmarshal", name)
		}
	}
}

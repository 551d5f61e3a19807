package api

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/shoal-llm/shoal/internal/server/generate"
	"github.com/shoal-llm/shoal/internal/server/httpserver"
	"github.com/shoal-llm/shoal/internal/server/openai"
	"github.com/shoal-llm/shoal/internal/server/servertest"
)

func TestParseKeys(t *testing.T) {
	good := `{"keys": [{"name": "a", "key": "one", "requests": 2, "tokens_per_minute": 60, "priority": 3},
		{"name": "b", "sha256": "` + strings.Repeat("0a", 32) + `", "role": "operator"}]}`
	keys, err := httpserver.ParseKeys([]byte(good))
	if err != nil || len(keys) != 2 || keys[0].TokensPerMinute != 60 {
		t.Fatal(keys, err)
	}
	for text, want := range map[string]string{
		``:                                      "EOF",
		`{}`:                                    "the list is empty",
		`{"keys": []} {}`:                       "follows",
		`{"keys": [{"Name2": "a"}]}`:            "unknown field",
		`{"keys": [{"key": "a"}]}`:              "name",
		`{"keys": [{"name": "a"}]}`:             "either key or sha256",
		`{"keys": [{"name": "a", "key": " "}]}`: "space",
		`{"keys": [{"name": "a", "sha256": "00"}]}`:                        "hexadecimal",
		`{"keys": [{"name": "a", "key": "x", "role": "root"}]}`:            "known are",
		`{"keys": [{"name": "a", "key": "x", "requests": -1}]}`:            "requests is -1",
		`{"keys": [{"name": "a", "key": "x", "priority": 501}]}`:           "priority",
		`{"keys": [{"name": "a", "key": "x"}, {"name": "a", "key": "y"}]}`: "this name",
		`{"keys": [{"name": "a", "key": "x"}, {"name": "b", "key": "x"}]}`: "same",
	} {
		if _, err := httpserver.ParseKeys([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

// ask posts with a key.
func ask(t testing.TB, method, url, key, body string) answer {
	t.Helper()
	req, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+key)
	resp, err := http.DefaultClient.Do(req)
	return read(t, resp, err)
}

// lines is a log.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

// Roles, limits and priorities of keys hold, also after a reload, and all of it is
// written down by name.
func TestKeysRolesAndAudit(t *testing.T) {
	e := &servertest.Engine{Script: servertest.Hello}
	log := &lines{}
	s := newServer(t, e, func(c *Config) {
		c.Audit = slog.New(slog.NewJSONHandler(log, nil))
		c.Keys = []httpserver.Key{
			{Name: "ann", Secret: "a", TokensPerMinute: 1, Priority: 5},
			{Name: "op", Secret: "o", Role: httpserver.RoleOperator},
		}
	})
	if err := s.Handle(httpserver.Route{Method: "POST", Path: "/v1/nodes/*", Operator: true,
		Handler: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(202) }}); err != nil {
		t.Fatal(err)
	}
	if err := s.Handle(httpserver.Route{Method: "POST", Path: "/v1/batches", Uncounted: true, Handler: http.NotFound}); err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(s.Handler())
	defer srv.Close()
	const body = `{"prompt":"x","priority":-7}`
	if a := ask(t, "POST", srv.URL+"/v1/completions", "a", body); a.status != 200 {
		t.Fatal(a.raw)
	}
	if p := e.Last(t).Priority; p != 5 {
		t.Errorf("a user's request has priority %d", p)
	}
	a := ask(t, "POST", srv.URL+"/v1/completions", "a", body)
	checkError(t, a, 429, "rate_limit_error", "", "rate_limit_exceeded")
	checkError(t, ask(t, "POST", srv.URL+"/v1/nodes/n/drain", "a", ""), 403, "permission_error", "", "permission_denied")
	checkError(t, ask(t, "POST", srv.URL+"/v1/nodes/n/undrain", "a", ""), 403, "permission_error", "", "permission_denied")
	if err := s.Handle(httpserver.Route{Method: "DELETE", Path: "/v1/store/members/*", Operator: true, Handler: http.NotFound}); err != nil {
		t.Fatal(err)
	}
	inner := httptest.NewServer(s.Handler())
	defer inner.Close()
	checkError(t, ask(t, "DELETE", inner.URL+"/v1/store/members/n", "a", ""), 403, "permission_error", "", "permission_denied")
	checkError(t, ask(t, "POST", srv.URL+"/v1/batches", "a", "{}"), 403, "permission_error", "", "permission_denied")
	if a := ask(t, "POST", srv.URL+"/v1/nodes/n/drain", "o", ""); a.status != 202 {
		t.Error(a.status)
	}
	if a := ask(t, "POST", srv.URL+"/v1/completions", "o", body); a.status != 200 || e.Last(t).Priority != -7 {
		t.Errorf("%d, priority %d", a.status, e.Last(t).Priority)
	}
	if err := s.SetKeys(nil); err == nil {
		t.Error("all keys can be taken away")
	}
	if err := s.SetKeys([]httpserver.Key{{Name: "ann", Secret: "new"}}); err != nil {
		t.Fatal(err)
	}
	checkError(t, ask(t, "POST", srv.URL+"/v1/completions", "o", body), 401, "authentication_error", "", "invalid_api_key")
	if a := ask(t, "POST", srv.URL+"/v1/completions", "new", body); a.status != 200 {
		t.Error(a.raw)
	}
	var got []string
	log.mu.Lock()
	defer log.mu.Unlock()
	for line := range strings.Lines(log.b.String()) {
		var r struct {
			Key, Role, Method, Path string
			Status                  int
			Prompt                  int `json:"prompt_tokens"`
		}
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatal(err)
		}
		got = append(got, strings.TrimSpace(r.Key+" "+r.Role+" "+r.Path+" "+strconv.Itoa(r.Status)+" "+strconv.Itoa(r.Prompt)))
	}
	want := []string{"ann user /v1/completions 200 2", "ann user /v1/completions 429 0", "ann user /v1/nodes/n/drain 403 0",
		"ann user /v1/nodes/n/undrain 403 0", "ann user /v1/store/members/n 403 0", "ann user /v1/batches 403 0",
		"op operator /v1/nodes/n/drain 202 0", "op operator /v1/completions 200 2", "/v1/completions 401 0", "ann user /v1/completions 200 2"}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("written down:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// A task pays when it is brought, with all it may generate.
func TestTasksAreCharged(t *testing.T) {
	s := newServer(t, &servertest.Engine{}, func(c *Config) { c.Keys = []httpserver.Key{{Name: "ann", Secret: "a", TokensPerMinute: 60}} })
	err := s.Handle(httpserver.Route{Method: "POST", Path: "/v1/jobs", Handler: func(w http.ResponseWriter, r *http.Request) {
		task, err := s.NewTask(t.Context(), openai.EndpointCompletions, []byte(`{"prompt":"x","n":2,"max_tokens":50}`), generate.TaskOptions{})
		if err == nil {
			err = s.Charge(r, task)
		}
		if err != nil {
			s.WriteError(w, err)
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(s.Handler())
	defer srv.Close()
	if a := ask(t, "POST", srv.URL+"/v1/jobs", "a", "{}"); a.status != 200 {
		t.Fatal(a.raw)
	}
	a := ask(t, "POST", srv.URL+"/v1/jobs", "a", "{}")
	checkError(t, a, 429, "rate_limit_error", "", "rate_limit_exceeded")
	if after, err := strconv.Atoi(a.header.Get("Retry-After")); err != nil || after < 30 {
		t.Errorf("Retry-After %q: the task may take 102 tokens of the 60", a.header.Get("Retry-After"))
	}
}

// Parameters without effect are named; a strict server refuses them.
func TestIgnoredParametersAreNamed(t *testing.T) {
	url := serve(t, &servertest.Engine{Script: servertest.Hello})
	a := post(t, url+"/v1/completions", completion(M{"temprature": 0, "usr\n": 1, "metadata": M{}, "user": "me", "off": nil, "priority": 1}))
	if got := a.header.Get("X-Ignored-Parameters"); a.status != 200 || got != `temprature, usr\n` {
		t.Errorf("%d, %q", a.status, got)
	}
	for name, body := range map[string]M{"/v1/completions": completion(M{"seed": 1, "echo": true, "logprobs": 1}),
		"/v1/chat/completions": chat(M{"logprobs": true, "top_logprobs": 1})} {
		if a := post(t, url+name, body); a.status != 200 || a.header.Get("X-Ignored-Parameters") != "" {
			t.Errorf("%s: %d %s names %q", name, a.status, a.raw, a.header.Get("X-Ignored-Parameters"))
		}
	}
	strict := serve(t, &servertest.Engine{Script: servertest.Hello}, func(c *Config) { c.Strict = true })
	checkError(t, post(t, strict+"/v1/completions", completion(M{"temprature": 0})), 400, "invalid_request_error",
		"temprature", "unsupported_parameter")
	if a := post(t, strict+"/v1/chat/completions", chat(M{"temperature": 0})); a.status != 200 {
		t.Error(a.raw)
	}
}

// Tools that must not be called change nothing.
func TestToolsThatAreNotCalled(t *testing.T) {
	url := serve(t, &servertest.Engine{Script: servertest.Hello}) + "/v1/chat/completions"
	tools := []M{{"type": "function", "function": M{"name": "f"}}}
	if a := post(t, url, chat(M{"tools": tools, "tool_choice": "none"})); a.status != 200 {
		t.Error(a.raw)
	}
	if a := post(t, url, chat(M{"functions": tools, "function_call": "none"})); a.status != 200 {
		t.Error(a.raw)
	}
	checkError(t, post(t, url, chat(M{"functions": tools})), 400, "invalid_request_error", "functions", "unsupported_parameter")
}

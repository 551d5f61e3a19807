package api

import (
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/internal/server/engine"
	"github.com/shoal-llm/shoal/internal/server/ollama"
	"github.com/shoal-llm/shoal/internal/server/servertest"
)

// requestAs sends a request with headers.
func requestAs(t testing.TB, method, url, body string, headers map[string]string) answer {
	t.Helper()
	req, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for k, v := range headers {
		req.Header.Set(k, v)
	}
	resp, err := http.DefaultClient.Do(req)
	return read(t, resp, err)
}

// TestOllamaModels: the requests that Ollama's clients send before they chat.
func TestOllamaModels(t *testing.T) {
	changed := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	url := serve(t, &servertest.Engine{Script: servertest.Hello}, func(c *Config) {
		c.Card = ollama.ModelCard{Architecture: "llama", Format: "gguf", Quantization: "Q4_0",
			Digest: strings.Repeat("ab", 32), Parameters: 7_615_616_512, Bytes: 4_431_400_262, Modified: changed,
			Layers: 28, Hidden: 3584, Heads: 28, KVHeads: 4, FFN: 18944}
		zero := 0.0
		c.DefaultTemperature = &zero
	})
	for _, path := range []string{"/api/tags", "/api/ps"} {
		a := get(t, url+path)
		for field, want := range map[string]any{"name": "fake/model", "model": "fake/model", "size": 4_431_400_262.0,
			"digest": strings.Repeat("ab", 32)} {
			if got := at(t, a.body, "models", 0, field); got != want {
				t.Errorf("%s: %s is %v, want %v", path, field, got, want)
			}
		}
		for field, want := range map[string]any{"format": "gguf", "family": "llama", "parameter_size": "7.6B", "quantization_level": "Q4_0"} {
			if got := at(t, a.body, "models", 0, "details", field); got != want {
				t.Errorf("%s: %s is %v, want %v", path, field, got, want)
			}
		}
	}
	if a := get(t, url+"/api/tags"); at(t, a.body, "models", 0, "modified_at") != "2026-01-02T03:04:05Z" ||
		at(t, a.body, "models", 1, "name") != "alias" {
		t.Error(a.raw)
	}
	ps := get(t, url+"/api/ps")
	if until, err := time.Parse(time.RFC3339Nano, at(t, ps.body, "models", 0, "expires_at").(string)); err != nil ||
		until.Before(time.Now()) || at(t, ps.body, "models", 0, "context_length") != 512.0 {
		t.Error(ps.raw)
	}
	if a := get(t, url+"/api/version"); a.status != 200 || at(t, a.body, "version") != "0.13.5" {
		t.Error(a.raw)
	}
	for _, body := range []string{`{"model":"fake/model"}`, `{"name":"alias:latest","verbose":true}`} {
		a := requestAs(t, "POST", url+"/api/show", body, nil)
		if a.status != 200 || at(t, a.body, "model_info", "llama.context_length") != 512.0 ||
			at(t, a.body, "model_info", "general.architecture") != "llama" ||
			at(t, a.body, "model_info", "llama.attention.head_count_kv") != 4.0 ||
			at(t, a.body, "capabilities", 1) != "tools" || at(t, a.body, "parameters") != "temperature 0" {
			t.Error(a.raw)
		}
	}
	for _, path := range []string{"/api/show", "/api/pull"} {
		if a := requestAs(t, "POST", url+path, `{"model":"llama3.2"}`, nil); a.status != 404 || !strings.Contains(a.raw, `{"error":"The model `) {
			t.Errorf("%s of a model that is not served: %d %s", path, a.status, a.raw)
		}
		if a := requestAs(t, "POST", url+path, `{}`, nil); a.status != 400 {
			t.Errorf("%s of none: %d %s", path, a.status, a.raw)
		}
	}
	a := requestAs(t, "POST", url+"/api/pull", `{"model":"fake/model:latest"}`, nil)
	if lines := readLines(t, a.raw); a.header.Get("Content-Type") != "application/x-ndjson" ||
		len(lines) != 2 || lines[1]["status"] != "success" {
		t.Error(a.raw)
	}
	if a := requestAs(t, "POST", url+"/api/pull", `{"name":"alias","stream":false}`, nil); a.raw != "{\"status\":\"success\"}\n" {
		t.Error(a.raw)
	}
	for _, path := range []string{"/api/create"} {
		if a := requestAs(t, "POST", url+path, `{"model":"fake/model","input":"x"}`, nil); a.status != 404 || !strings.Contains(a.raw, `{"error":"There is no POST `+path) {
			t.Errorf("%s: %d %s", path, a.status, a.raw)
		}
	}
	for accept, want := range map[string]string{"": "Ollama is running", "*/*": "Ollama is running",
		"application/json": "Ollama is running", "text/html,*/*;q=0.8": "<!doctype html>"} {
		a := requestAs(t, "GET", url+"/", "", map[string]string{"Accept": accept})
		if a.status != 200 || !strings.HasPrefix(strings.ToLower(a.raw), strings.ToLower(want)) || a.header.Get("Vary") != "Accept" {
			t.Errorf("Accept %q: %d %.60s", accept, a.status, a.raw)
		}
		if a := requestAs(t, "HEAD", url+"/", "", map[string]string{"Accept": accept}); a.status != 200 || a.raw != "" {
			t.Errorf("HEAD with Accept %q: %d %q", accept, a.status, a.raw)
		}
	}
}

// TestOllamaOptions: numbers as Ollama takes them, moved into its bounds and never refused.
func TestOllamaOptions(t *testing.T) {
	e := &servertest.Engine{Script: servertest.Hello}
	url := serve(t, e)
	for options, ok := range map[string]func(*engine.Request) bool{
		`"temperature":3`:                  func(r *engine.Request) bool { return r.Sampling.Temperature == 3 },
		`"temperature":-1`:                 func(r *engine.Request) bool { return r.Sampling.Temperature == 0 },
		`"top_p":1.5,"min_p":-1`:           func(r *engine.Request) bool { return r.Sampling.TopP == 1 && r.Sampling.MinP == 0 },
		`"top_k":40.0`:                     func(r *engine.Request) bool { return r.Sampling.TopK == 40 },
		`"top_k":-1`:                       func(r *engine.Request) bool { return r.Sampling.TopK == 0 },
		`"num_predict":5.0`:                func(r *engine.Request) bool { return r.MaxTokens == 5 },
		`"num_predict":-1`:                 func(r *engine.Request) bool { return r.MaxTokens == 507 },
		`"num_predict":-2`:                 func(r *engine.Request) bool { return r.MaxTokens == 507 },
		`"num_predict":0`:                  func(r *engine.Request) bool { return r.MaxTokens == 507 },
		`"repeat_penalty":0`:               func(r *engine.Request) bool { return r.Sampling.RepetitionPenalty == 1 },
		`"presence_penalty":3`:             func(r *engine.Request) bool { return r.Sampling.PresencePenalty == 2 },
		`"seed":7.0`:                       func(r *engine.Request) bool { return r.Sampling.Seed == 7 },
		`"seed":9007199254740993`:          func(r *engine.Request) bool { return r.Sampling.Seed == 9007199254740993 },
		`"seed":-1`:                        func(r *engine.Request) bool { return r.Sampling.Seed < 1<<63 },
		`"stop":""`:                        func(r *engine.Request) bool { return true },
		`"stop":["a","b","c","d","e","f"]`: func(r *engine.Request) bool { return true },
		`"temperature":null`:               func(r *engine.Request) bool { return r.Sampling.Temperature == 1 },
	} {
		for _, stream := range []string{"true", "false"} {
			a := requestAs(t, "POST", url+"/api/chat", `{"model":"fake/model","stream":`+stream+`,"messages":[{"role":"user","content":"x"}],"options":{`+options+`}}`, nil)
			if a.status != 200 || !ok(e.Last(t)) || !strings.Contains(a.raw, `"done":true`) || a.header.Get("X-Ignored-Parameters") != "" {
				t.Errorf("%s: %d %s, %+v", options, a.status, a.raw, e.Last(t))
			}
		}
	}
	for _, path := range []string{"/api/chat", "/api/generate"} {
		if a := requestAs(t, "POST", url+path, `{"model":"fake/model","prompt":"x","messages":[{"role":"user","content":"x"}],"options":{"temperature":"3"}}`, nil); a.status != 400 || !strings.Contains(a.raw, "'options.temperature' must be a number") {
			t.Errorf("%s: %s", path, a.raw)
		}
	}
}

// TestKeepAlive: while a prompt is read, each stream sends a keep-alive of its protocol.
func TestKeepAlive(t *testing.T) {
	for path, c := range map[string]struct{ body, first, again string }{
		"/v1/chat/completions": {`{"stream":true,"messages":[{"role":"user","content":"x"}]}`, ": keep-alive\n\n: keep-alive\n\n", ""},
		"/v1/responses":        {`{"stream":true,"input":"x"}`, ": keep-alive\n\n: keep-alive\n\n", ""},
		"/v1/messages":         {`{"stream":true,"max_tokens":9,"messages":[{"role":"user","content":"x"}]}`, "event: message_start\n", "event: ping\ndata: {\"type\":\"ping\"}\n\nevent: ping\n"},
		"/api/chat":            {`{"model":"fake/model","messages":[{"role":"user","content":"x"}]}`, `{"model":"fake/model","created_at":"`, `"message":{"role":"assistant","content":""},"done":false}`},
		"/api/generate":        {`{"model":"fake/model","prompt":"x"}`, `{"model":"fake/model","created_at":"`, `"response":"","done":false}`},
	} {
		e := &servertest.Engine{Script: servertest.Hello, Gate: make(chan struct{})}
		url := serve(t, e, func(c *Config) { c.KeepAlive = 5 * time.Millisecond })
		resp, err := http.Post(url+path, "application/json", strings.NewReader(c.body))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		// The prompt is read until the keep-alives have come.
		var raw []byte
		read := sync.OnceFunc(func() { close(e.Gate) })
		defer time.AfterFunc(10*time.Second, read).Stop()
		for buf := make([]byte, 4096); err == nil; {
			var n int
			n, err = resp.Body.Read(buf)
			if raw = append(raw, buf[:n]...); strings.HasPrefix(string(raw), c.first) && strings.Contains(string(raw), c.again) {
				read()
			}
		}
		if text := string(raw); !strings.HasPrefix(text, c.first) || !strings.Contains(text, c.again) ||
			strings.Count(text, "message_start\n") > 1 || !strings.Contains(text, "Hello") {
			t.Errorf("%s: %s", path, text)
		}
	}
}

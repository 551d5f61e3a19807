package api

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/server/anthropic"
	"github.com/shoal-llm/shoal/internal/server/httpserver"
	"github.com/shoal-llm/shoal/internal/server/servertest"
)

func request(t *testing.T, method, url string, header ...string) answer {
	t.Helper()
	req, err := http.NewRequest(method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	return read(t, resp, err)
}

// Every route of the table, also one added later, needs a key, except /health
// and /ready; so does every path that is not there.
func TestEveryRouteNeedsAKey(t *testing.T) {
	s := newServer(t, &servertest.Engine{Script: servertest.Hello}, func(c *Config) { c.Keys = httpserver.OperatorKeys("key-one", "key-two") })
	if err := s.Handle(httpserver.Route{Method: "POST", Path: "/v1/jobs",
		Handler: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(204) }}); err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(s.Handler())
	defer srv.Close()
	public := map[string]bool{"/health": true, "/ready": true}
	paths := []httpserver.Route{
		{Method: "GET", Path: "/nothing"},
		{Method: "POST", Path: "/v1/health"},
		{Method: "GET", Path: "/v1/models/../../version"},
		{Method: "DELETE", Path: "/v1/models"},
		{Method: "GET", Path: "/api/nothing"},
		{Method: "GET", Path: "/v1/messages/nothing"},
	}
	seen := 0
	for _, r := range append(paths, s.Routes()...) {
		if r.Method == "" { // it only words errors
			continue
		}
		path := strings.NewReplacer("*", "x", "{$}", "").Replace(r.Path)
		for _, h := range [][]string{
			{}, {"Authorization", "Bearer key-three"}, {"Authorization", "Bearer "}, {"Authorization", "key-one"},
			{"Authorization", "Bearer key-on"},
			{"Authorization", "Basic !!"}, {"Authorization", "Basic Og=="}, {"X-Api-Key", "key-three"},
			{"X-Api-Key", "key-one", "Authorization", "Bearer key-three"},
		} {
			a := request(t, r.Method, srv.URL+path, h...)
			if public[path] {
				seen++
				if a.status != 200 {
					t.Errorf("%s: %d", path, a.status)
				}
				continue
			}
			if strings.HasPrefix(path, "/v1/messages") { // in Anthropic's words
				if a.status != 401 || at(t, a.body, "error", "type") != "authentication_error" {
					t.Errorf("%s: %d %s", path, a.status, a.raw)
				}
				continue
			}
			if strings.HasPrefix(path, "/api/") { // in Ollama's
				if text, _ := a.body["error"].(string); a.status != 401 || !strings.Contains(text, "API key") {
					t.Errorf("%s: %d %s", path, a.status, a.raw)
				}
				continue
			}
			checkError(t, a, 401, "authentication_error", "", "invalid_api_key")
			if a.header.Get("WWW-Authenticate") == "" {
				t.Errorf("%s: no challenge", path)
			}
		}
		for _, h := range []string{"Bearer key-one", "bearer key-two", "Basic YW55OmtleS1vbmU="} {
			if a := request(t, r.Method, srv.URL+path, "Authorization", h); a.status == 401 {
				t.Errorf("%s %s: refused with %q", r.Method, path, h)
			}
		}
	}
	if a := request(t, "GET", srv.URL+"/v1/models", "X-Api-Key", "key-one"); a.status != 200 {
		t.Errorf("x-api-key: %d %s", a.status, a.raw)
	}
	if seen != 18 {
		t.Errorf("%d public answers", seen)
	}
}

func TestKeysAreNotKept(t *testing.T) {
	s := newServer(t, &servertest.Engine{}, func(c *Config) { c.Keys = httpserver.OperatorKeys("secret") })
	if text := fmt.Sprintf("%+v", s); !s.HasKeys() || strings.Contains(text, "secret") {
		t.Error("the server keeps the keys themselves")
	}
	for _, keys := range [][]string{{""}, {"a", " "}} {
		cfg := testConfig()
		cfg.Keys = httpserver.OperatorKeys(keys...)
		if _, err := New(cfg, &servertest.Engine{}, servertest.Tokenizer{}, nil); err == nil {
			t.Errorf("keys %q accepted", keys)
		}
	}
}

func TestRequestsPerKey(t *testing.T) {
	e := &servertest.Engine{Script: servertest.Hello, Gate: make(chan struct{})}
	url := serve(t, e, func(c *Config) {
		c.Keys = []httpserver.Key{{Name: "one", Secret: "a", Requests: 1}, {Name: "two", Secret: "b", Requests: 1}}
	})
	do := func(key string) answer {
		req, _ := http.NewRequest("POST", url+"/v1/completions", strings.NewReader(`{"prompt":"x"}`))
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Authorization", "Bearer "+key)
		resp, err := http.DefaultClient.Do(req)
		return read(t, resp, err)
	}
	first := make(chan answer, 2)
	go func() { first <- do("a") }()
	servertest.Eventually(t, "the first runs", func() bool { e.Mu.Lock(); defer e.Mu.Unlock(); return len(e.Requests) == 1 })
	a := do("a")
	checkError(t, a, 429, "rate_limit_error", "", "rate_limit_exceeded")
	if a.header.Get("Retry-After") == "" {
		t.Error("no Retry-After")
	}
	go func() { first <- do("b") }()
	servertest.Eventually(t, "another key has its own", func() bool { e.Mu.Lock(); defer e.Mu.Unlock(); return len(e.Requests) == 2 })
	close(e.Gate)
	for range 2 {
		if a := <-first; a.status != 200 {
			t.Error(a.raw)
		}
	}
	if a := do("a"); a.status != 200 {
		t.Errorf("after the first: %s", a.raw)
	}
}

func TestWrongPathsAndMethods(t *testing.T) {
	url := serve(t, &servertest.Engine{Script: servertest.Hello})
	checkError(t, get(t, url+"/v1/engines"), 404, "invalid_request_error", "", "unknown_url")
	checkError(t, get(t, url+"/v1/models/"), 404, "invalid_request_error", "", "unknown_url")
	a := get(t, url+"/v1/chat/completions")
	checkError(t, a, 405, "invalid_request_error", "", "method_not_allowed")
	if a.header.Get("Allow") != "POST" {
		t.Errorf("Allow %q", a.header.Get("Allow"))
	}
	checkError(t, request(t, "OPTIONS", url+"/v1/completions"), 405, "invalid_request_error", "", "method_not_allowed")
	if a := request(t, "HEAD", url+"/v1/models"); a.status != 200 || a.raw != "" {
		t.Errorf("HEAD: %d %q", a.status, a.raw)
	}
}

func TestAddedRoutes(t *testing.T) {
	s := newServer(t, &servertest.Engine{})
	h := func(name string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) { _, _ = w.Write([]byte(name + " " + r.URL.Path)) }
	}
	for _, r := range [][2]string{{"GET", "/v1/jobs"}, {"GET", "/v1/jobs/*"}, {"DELETE", "/v1/jobs/*"}, {"GET", "/v1/jobs/events/*"}} {
		if err := s.Handle(httpserver.Route{Method: r[0], Path: r[1], Handler: h(r[0] + r[1])}); err != nil {
			t.Fatal(err)
		}
	}
	if s.Handle(httpserver.Route{Method: "GET", Path: "/v1/jobs", Handler: h("")}) == nil {
		t.Error("a route was taken over")
	}
	srv := httptest.NewServer(s.Handler())
	defer srv.Close()
	for path, want := range map[string]string{"GET /v1/jobs": "GET/v1/jobs /v1/jobs", "DELETE /v1/jobs/1": "DELETE/v1/jobs/* /v1/jobs/1",
		"GET /v1/jobs/1": "GET/v1/jobs/* /v1/jobs/1", "GET /v1/jobs/events/2": "GET/v1/jobs/events/* /v1/jobs/events/2"} {
		method, path, _ := strings.Cut(path, " ")
		if a := request(t, method, srv.URL+path); a.raw != want {
			t.Errorf("%s %s: %q", method, path, a.raw)
		}
	}
	if a := request(t, "PUT", srv.URL+"/v1/jobs/1"); a.status != 405 || a.header.Get("Allow") != "GET, DELETE" {
		t.Errorf("%d %q", a.status, a.header.Get("Allow"))
	}
}

func TestRequestIDs(t *testing.T) {
	e := &servertest.Engine{Script: servertest.Hello}
	url := serve(t, e)
	if a := request(t, "GET", url+"/version", "X-Request-Id", "trace-1"); a.header.Get("X-Request-Id") != "trace-1" {
		t.Error(a.header)
	}
	for _, bad := range []string{"", "a b", "<x>", strings.Repeat("a", 129)} {
		if got := request(t, "GET", url+"/version", "X-Request-Id", bad).header.Get("X-Request-Id"); !strings.HasPrefix(got, "req-") ||
			len(got) < 20 {
			t.Errorf("%q became %q", bad, got)
		}
	}
	req, _ := http.NewRequest("POST", url+"/v1/completions", strings.NewReader(`{"prompt":"x","n":2}`))
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Request-Id", "trace-2")
	req.Header.Set("Idempotency-Key", "once")
	resp, err := http.DefaultClient.Do(req)
	a := read(t, resp, err)
	r := e.Last(t)
	if r.ClientID != "trace-2" || r.IdempotencyKey != "once" ||
		!strings.HasPrefix(r.ID, at(t, a.body, "id").(string)+"-") || e.Requests[0].ID == r.ID {
		t.Errorf("%+v", r)
	}
}

func TestPanics(t *testing.T) {
	var log bytes.Buffer
	s := newServer(t, &servertest.Engine{}, func(c *Config) { c.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
	add := func(path string, h http.HandlerFunc) {
		if err := s.Handle(httpserver.Route{Method: "GET", Path: path, Handler: h}); err != nil {
			t.Fatal(err)
		}
	}
	add("/early", func(http.ResponseWriter, *http.Request) { panic("secret detail") })
	add("/accepted", func(_ http.ResponseWriter, r *http.Request) {
		httpserver.ScopeOf(r).Accepted = true
		panic("secret detail")
	})
	add("/streaming", func(w http.ResponseWriter, _ *http.Request) {
		out := httpserver.NewSSE(httpserver.NewStream(w, s.Limits().WriteTimeout))
		out.Data(M{})
		panic("secret detail")
	})
	add("/half", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "100")
		_, _ = w.Write([]byte("half"))
		panic("secret detail")
	})
	messages := func(w http.ResponseWriter, _ *http.Request) {
		httpserver.NewSSE(httpserver.NewStream(w, s.Limits().WriteTimeout)).Named("message_start", M{"type": "message_start"})
		panic("secret detail")
	}
	if err := s.Handle(httpserver.Route{Method: "GET", Path: "/messages", Format: anthropic.Error, Handler: messages}); err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(s.Handler())
	srv.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0)
	defer srv.Close()
	a := request(t, "GET", srv.URL+"/early", "X-Request-Id", "the-id")
	checkError(t, a, 500, "server_error", "", "internal")
	if !strings.Contains(a.raw, "the-id") || strings.Contains(a.raw, "secret") {
		t.Error(a.raw)
	}
	if l := log.String(); !strings.Contains(l, "the-id") || !strings.Contains(l, "secret detail") || !strings.Contains(l, "router_test.go") {
		t.Errorf("log: %s", l)
	}
	if a := request(t, "GET", srv.URL+"/accepted"); a.header.Get("X-Should-Retry") != "false" {
		t.Error("retry of accepted work")
	}
	ev := parseEvents(t, request(t, "GET", srv.URL+"/streaming").raw)
	if len(ev) != 2 || !strings.Contains(ev[1].data, `"error"`) {
		t.Errorf("%v", ev)
	}
	const begins = "\n\nevent: error\ndata: {\"error\":{\"message\":\"An internal"
	if a := request(t, "GET", srv.URL+"/messages"); !strings.Contains(a.raw, begins) || !strings.HasSuffix(a.raw, "\"type\":\"error\"}\n\n") {
		t.Errorf("not in the form of Messages: %s", a.raw)
	}
	if resp, err := http.Get(srv.URL + "/half"); err == nil {
		var b bytes.Buffer
		if _, err := b.ReadFrom(resp.Body); err == nil {
			t.Error("half a body looks whole")
		}
		resp.Body.Close()
	}
}

func TestPage(t *testing.T) {
	base := serve(t, &servertest.Engine{})
	for path, kind := range map[string]string{"/": "text/html", "/web/js/main.js": "text/javascript",
		"/web/css/base.css": "text/css", "/web/vendor/marked.LICENSE": "text/plain"} {
		browse, err := http.NewRequest(http.MethodGet, base+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		browse.Header.Set("Accept", "text/html,application/xhtml+xml,*/*;q=0.8")
		found, err := http.DefaultClient.Do(browse)
		a := read(t, found, err)
		if a.status != 200 || !strings.HasPrefix(a.header.Get("Content-Type"), kind) || a.header.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s: %d %s", path, a.status, a.header)
		}
		csp := a.header.Get("Content-Security-Policy")
		if !strings.Contains(csp, "default-src 'none'") || strings.Contains(csp, "unsafe") || !strings.Contains(csp, "trusted-types 'none'") {
			t.Errorf("%s: %s", path, csp)
		}
		browse.Header.Set("If-None-Match", a.header.Get("Etag"))
		resp, err := http.DefaultClient.Do(browse)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusNotModified {
			t.Errorf("%s: %d for the browser's copy", path, resp.StatusCode)
		}
	}
	for _, path := range []string{"/web/", "/web/js", "/web/js/none.js", "/web/../page.go", "/web/js/../../page.go"} {
		if a := get(t, base+path); a.status != 404 {
			t.Errorf("%s: %d", path, a.status)
		}
	}
}

package api

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/server/httpserver"
	"github.com/shoal-llm/shoal/internal/server/servertest"
)

// TestForeignPages: a browser's request from a page of another origin is refused, changes
// nothing and discloses nothing. Programs and the server's own page are answered.
func TestForeignPages(t *testing.T) {
	started := 0
	open := newServer(t, &servertest.Engine{Script: servertest.Hello})
	keyed := newServer(t, &servertest.Engine{Script: servertest.Hello}, func(c *Config) { c.Keys = httpserver.OperatorKeys("k") })
	allowing := newServer(t, &servertest.Engine{Script: servertest.Hello},
		func(c *Config) { c.AllowOrigins = []string{"https://chat.example.com"} })
	for _, s := range []*Server{open, keyed, allowing} {
		for _, path := range []string{"/v1/nodes/*", "/v1/files"} {
			if err := s.Handle(httpserver.Route{Method: "POST", Path: path, Uploads: path == "/v1/files",
				Handler: func(w http.ResponseWriter, _ *http.Request) { started++ }}); err != nil {
				t.Fatal(err)
			}
		}
	}
	const drain, evil = "/v1/nodes/n/drain", "http://evil.example.com"
	for _, c := range []struct {
		what                             string
		s                                *Server
		method, path, host, origin, kind string
		want                             int
	}{
		{"curl", open, "POST", drain, "127.0.0.1:8080", "", "", 200},
		{"curl by name", open, "POST", drain, "localhost:8080", "", "application/json", 200},
		{"curl by IPv6", open, "GET", "/v1/cluster", "[::1]:8080", "", "", 200},
		{"own page", open, "POST", drain, "127.0.0.1:8080", "http://127.0.0.1:8080", "application/json", 200},
		{"upload", open, "POST", "/v1/files", "127.0.0.1:8080", "", "multipart/form-data; boundary=x", 200},
		{"a page that posts", open, "POST", drain, "127.0.0.1:8080", evil, "text/plain", 403},
		{"a page without a type", open, "POST", drain, "127.0.0.1:8080", evil, "", 403},
		{"a page in a frame", open, "POST", drain, "127.0.0.1:8080", "null", "text/plain", 403},
		{"a page of another port", open, "POST", drain, "127.0.0.1:8080", "http://127.0.0.1:3000", "", 403},
		{"a page that uploads", open, "POST", "/v1/files", "127.0.0.1:8080", evil, "multipart/form-data; boundary=x", 403},
		{"a page with a preflight", open, "OPTIONS", drain, "127.0.0.1:8080", evil, "", 403},
		{"curl -d", open, "POST", drain, "127.0.0.1:8080", "", "application/x-www-form-urlencoded", 200},
		{"a program that sends text", open, "POST", drain, "127.0.0.1:8080", "", "text/plain;charset=UTF-8", 200},
		{"own page, a form", open, "POST", drain, "127.0.0.1:8080", "http://127.0.0.1:8080", "application/x-www-form-urlencoded", 415},
		{"own page, text, and no origin", open, "POST", drain, "127.0.0.1:8080", "same-origin", "text/plain", 415},
		{"own page, no type, and no origin", open, "POST", drain, "127.0.0.1:8080", "same-origin", "", 200},
		{"a page of another site, and no origin", open, "POST", drain, "127.0.0.1:8080", "cross-site", "application/json", 403},
		{"a page of another port, and no origin", open, "POST", drain, "127.0.0.1:8080", "same-site", "", 403},
		{"a form where files do not go", open, "POST", drain, "127.0.0.1:8080", "http://127.0.0.1:8080", "multipart/form-data; boundary=x", 415},
		{"rebinding", open, "GET", "/v1/cluster", "evil.example.com", "", "", 403},
		{"rebinding, own origin", open, "POST", drain, "evil.example.com:8080", "http://evil.example.com:8080", "application/json", 403},
		{"a name like an address", open, "GET", "/v1/cluster", "127.0.0.1.example.com", "", "", 403},
		{"a probe by any name", open, "GET", "/health", "lb.example.com", "", "", 200},
		{"a name, with a key", keyed, "GET", "/v1/cluster", "shoal.example.com", "", "", 200},
		{"a page, with a key", keyed, "GET", "/v1/cluster", "shoal.example.com", evil, "", 403},
		{"an allowed page", allowing, "POST", drain, "127.0.0.1:8080", "https://chat.example.com", "application/json", 200},
		{"an allowed page with a preflight", allowing, "OPTIONS", "/v1/chat/completions", "127.0.0.1:8080", "https://chat.example.com", "", 204},
		{"its name", allowing, "GET", "/v1/cluster", "chat.example.com", "", "", 200},
		{"another page", allowing, "POST", drain, "127.0.0.1:8080", "https://chat.example.com.evil.org", "", 403},
	} {
		r := httptest.NewRequest(c.method, c.path, strings.NewReader(""))
		r.Host = c.host
		if strings.HasSuffix(c.origin, "-site") || c.origin == "same-origin" {
			r.Header.Set("Sec-Fetch-Site", c.origin)
		} else if c.origin != "" {
			r.Header.Set("Origin", c.origin)
		}
		if c.kind != "" {
			r.Header.Set("Content-Type", c.kind)
		}
		if c.method == "OPTIONS" {
			r.Header.Set("Access-Control-Request-Method", "POST")
		}
		if c.s == keyed {
			r.Header.Set("Authorization", "Bearer k")
		}
		w, before := httptest.NewRecorder(), started
		c.s.Handler().ServeHTTP(w, r)
		if w.Code != c.want || c.want >= 400 && started != before {
			t.Errorf("%s: status %d, want %d, %d calls: %s", c.what, w.Code, c.want, started-before, w.Body)
		}
		if granted := w.Header().Get("Access-Control-Allow-Origin") != ""; granted != strings.HasPrefix(c.what, "an allowed page") {
			t.Errorf("%s: granted: %v", c.what, granted)
		}
	}
	for _, bad := range []string{"example.com", "https://example.com/", "https://", "null"} {
		if _, ok := httpserver.CheckOrigins([]string{"*", bad}); ok {
			t.Errorf("%q is taken for an origin", bad)
		}
	}
}

// TestPreflight: a page of an allowed origin may send all headers that its preflight names, as the SDKs
// of OpenAI and Anthropic do. A page of any other origin gets no such permission.
func TestPreflight(t *testing.T) {
	e := &servertest.Engine{Script: servertest.Hello}
	one := newServer(t, e, func(c *Config) { c.AllowOrigins = []string{"http://localhost:5173"} })
	keyed := newServer(t, e, func(c *Config) {
		c.AllowOrigins, c.Keys = []string{"http://localhost:5173"}, httpserver.OperatorKeys("k")
	})
	anyone := newServer(t, e, func(c *Config) { c.AllowOrigins = []string{"*"} })
	ask := func(s *Server, path, origin, method, headers string, private bool) *httptest.ResponseRecorder {
		r := httptest.NewRequest("OPTIONS", path, nil)
		r.Host = "127.0.0.1:8080"
		r.Header.Set("Origin", origin)
		r.Header.Set("Access-Control-Request-Method", method)
		if headers != "" {
			r.Header.Set("Access-Control-Request-Headers", headers)
		}
		if private {
			r.Header.Set("Access-Control-Request-Private-Network", "true")
		}
		w := httptest.NewRecorder()
		s.Handler().ServeHTTP(w, r)
		return w
	}
	for name, s := range map[string]*Server{"one": one, "keyed": keyed, "any": anyone} {
		for _, path := range []string{"/v1/chat/completions", "/v1/messages", "/api/chat", "/v1/models", "/v1/jobs/x"} {
			for _, headers := range []string{"", "authorization,content-type,x-stainless-arch,x-stainless-lang,x-stainless-os",
				"anthropic-dangerous-direct-browser-access", "http-referer,x-title", "x-a"} {
				for _, private := range []bool{false, true} {
					w := ask(s, path, "http://localhost:5173", "POST", headers, private)
					h := w.Header()
					if w.Code != 204 || h.Get("Access-Control-Allow-Origin") != "http://localhost:5173" ||
						h.Get("Access-Control-Allow-Headers") != headers || !strings.Contains(h.Get("Access-Control-Allow-Methods"), "POST") {
						t.Errorf("%s, %s asking for %q: %d %v", name, path, headers, w.Code, h)
					}
					if (h.Get("Access-Control-Allow-Private-Network") == "true") != private {
						t.Errorf("%s, %s, a private network asked for: %v: %v", name, path, private, h)
					}
					if vary := strings.Join(h.Values("Vary"), ", "); !strings.Contains(vary, "Origin") ||
						!strings.Contains(vary, "Access-Control-Request-Headers") {
						t.Errorf("%s: Vary is %q", path, vary)
					}
				}
			}
		}
	}
	for _, s := range []*Server{one, keyed, newServer(t, e)} {
		for _, origin := range []string{"http://localhost:5174", "https://localhost:5173", "http://evil.example.com", "null"} {
			w := ask(s, "/v1/chat/completions", origin, "POST", "x-a", true)
			for name := range w.Header() {
				if strings.HasPrefix(name, "Access-Control-") {
					t.Errorf("%s is answered %s", origin, name)
				}
			}
			if w.Code != 403 {
				t.Errorf("%s: %d", origin, w.Code)
			}
		}
	}
	// The answer that follows, an error too, may be read with its headers.
	for path, status := range map[string]int{"/v1/models": 200, "/v1/models/none": 404} {
		r := httptest.NewRequest("GET", path, nil)
		r.Host = "127.0.0.1:8080"
		r.Header.Set("Origin", "http://localhost:5173")
		w := httptest.NewRecorder()
		one.Handler().ServeHTTP(w, r)
		if h := w.Header(); w.Code != status || h.Get("Access-Control-Allow-Origin") != "http://localhost:5173" ||
			!strings.Contains(h.Get("Access-Control-Expose-Headers"), "X-Ignored-Parameters") {
			t.Errorf("%s: %d %v", path, w.Code, h)
		}
	}
	r := httptest.NewRequest("GET", "/v1/models", nil)
	w := httptest.NewRecorder()
	r.Host = "127.0.0.1"
	if one.Handler().ServeHTTP(w, r); w.Header().Get("Vary") != "Origin" {
		t.Errorf("a cache may give the answer without an origin to a page: Vary %q", w.Header().Get("Vary"))
	}
}

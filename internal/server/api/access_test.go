package api

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/server/httpserver"
	"github.com/shoal-llm/shoal/internal/server/servertest"
)

// TestAccessLog: each request has one line at info, with its key, route and status. Requests of
// monitors have none. The lines of refused keys are rate-limited.
func TestAccessLog(t *testing.T) {
	log := &lines{}
	url := serve(t, &servertest.Engine{Script: servertest.Hello}, func(c *Config) {
		c.Logger = slog.New(slog.NewJSONHandler(log, nil))
		c.Keys = []httpserver.Key{{Name: "ann", Secret: "a"}}
	})
	if a := ask(t, "GET", url+"/health", "", ""); a.status != 200 {
		t.Fatal(a.raw)
	}
	if a := ask(t, "POST", url+"/v1/completions", "a", `{"prompt":"x"}`); a.status != 200 {
		t.Fatal(a.raw)
	}
	for range 50 {
		if a := ask(t, "POST", url+"/v1/completions", "guess", `{"prompt":"x"}`); a.status != 401 {
			t.Fatal(a.raw)
		}
	}
	if a := ask(t, "POST", url+"/v1/completions", "a", `{"prompt":"y"}`); a.status != 200 {
		t.Fatal(a.raw)
	}
	text := ""
	servertest.Eventually(t, "two requests and the refusals in the log", func() bool {
		log.mu.Lock()
		defer log.mu.Unlock()
		text = log.b.String()
		return strings.Count(text, `"status":200`) == 2
	})
	if n := strings.Count(text, `"status":401`); n < 1 || n > 20 {
		t.Errorf("%d lines of 50 refusals", n)
	}
	line, _, _ := strings.Cut(text, "\n")
	for _, want := range []string{`"level":"INFO","msg":"request"`, `"method":"POST","path":"/v1/completions"`, `"key":"ann"`, `"prompt_tokens":2,"completion_tokens":4`, `"client":"127.0.0.1:`, `"id":"req-`, `"seconds":`} {
		if !strings.Contains(line, want) {
			t.Errorf("no %s in %s", want, line)
		}
	}
}

package api

import (
	"net/http"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/server/engine"
	"github.com/shoal-llm/shoal/internal/server/httpserver"
	"github.com/shoal-llm/shoal/internal/server/servertest"
)

// Cache parameters of a request reach the engine with the name of its key. Cached tokens come back
// in usage, once for each prompt.
func TestPrefixFields(t *testing.T) {
	e := &servertest.Engine{Script: func(*engine.Request) []engine.Event {
		return []engine.Event{{Token: 1, Cached: 64}, {Token: 2, Cached: 64, Finish: engine.FinishLength}}
	}}
	url := serve(t, e, func(c *Config) {
		c.Keys = []httpserver.Key{{Name: "ann", Secret: "a"}, {Name: "ops", Secret: "o", Role: httpserver.RoleOperator}}
	})
	a := ask(t, "POST", url+"/v1/completions", "a", `{"prompt": "x", "max_tokens": 2, "n": 2, "cache": false, "cache_salt": "s"}`)
	if at(t, a.body, "usage", "prompt_tokens_details", "cached_tokens") != 64.0 {
		t.Error(a.raw)
	}
	if r := e.Last(t); !r.NoCache || r.Salt != "s" || r.Tenant != "ann" {
		t.Errorf("%+v", r)
	}
	e.Script = servertest.Hello
	if a := ask(t, "POST", url+"/v1/completions", "o", `{"prompt": "x"}`); strings.Contains(a.raw, "prompt_tokens_details") {
		t.Error(a.raw)
	}
	if r := e.Last(t); r.NoCache || r.Salt != "" || r.Tenant != "ops" {
		t.Errorf("%+v", r)
	}
	for _, field := range []string{`"cache": 1`, `"cache_salt": 5`} {
		if a := ask(t, "POST", url+"/v1/completions", "a", `{"prompt": "x", `+field+`}`); a.status != http.StatusBadRequest || !strings.Contains(a.raw, `"param":"cache`) {
			t.Error(a.raw)
		}
	}
}

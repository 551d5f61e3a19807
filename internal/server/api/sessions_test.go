package api

import (
	"bufio"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/server/servertest"
)

// All requests of SDKs and agents (openai, anthropic, pydantic-ai, LangChain, instructor, litellm,
// recorded in November 2026) are accepted, with and without streams.
func TestSessionsOfClients(t *testing.T) {
	f, err := os.Open("testdata/sessions.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	n := 0
	for ; lines.Scan(); n++ {
		var s struct {
			Agent, Path string
			Body        M
		}
		if err := json.Unmarshal(lines.Bytes(), &s); err != nil {
			t.Fatal(err)
		}
		url, _ := serveTools(t, hermesTemplate, &servertest.Engine{Script: writes(`<tool_call>{"name": "get_weather", "arguments": {"city": "Oslo"}}</tool_call>`)})
		for _, stream := range []bool{false, true} {
			if s.Body["stream"] = stream; strings.HasSuffix(s.Path, "tokens") {
				delete(s.Body, "stream")
			}
			a := post(t, strings.TrimSuffix(url, "/v1/chat/completions")+s.Path, s.Body)
			if a.status != 200 || a.header.Get("X-Ignored-Parameters") != "" || strings.Contains(a.raw, `"error":{`) {
				t.Errorf("%s %s: %d, ignored %q: %.300s", s.Agent, s.Path, a.status, a.header.Get("X-Ignored-Parameters"), a.raw)
			}
		}
	}
	if n < 15 {
		t.Errorf("only %d requests", n)
	}
}

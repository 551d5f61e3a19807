package api

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/server/servertest"
	"github.com/shoal-llm/shoal/internal/server/sessions"
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

// fullDisk is a store that records nothing.
type fullDisk struct{}

var errFull = errors.New("no space left")

func (fullDisk) Record(context.Context, string, int, []byte) error { return errFull }
func (fullDisk) Settle(context.Context, string) error              { return errFull }
func (fullDisk) End(context.Context, string, int) error            { return errFull }

// SDKs repeat a 503 on their own. A turn that was computed, and is perhaps recorded, must not be sent again
// before the client has read the session.
func TestUnrecordedTurnIsNotRetried(t *testing.T) {
	e := &servertest.Engine{Script: servertest.Hello}
	t.Cleanup(e.Live.Wait)
	s := newServer(t, e)
	s.SetSessionBook(sessions.NewBook(fullDisk{}, nil))
	a := post(t, serveIt(t, s)+"/v1/chat/completions", chat(M{"session": "s"}))
	checkError(t, a, 503, "server_error", "", "session_not_recorded")
	if a.header.Get("X-Should-Retry") != "false" {
		t.Errorf("X-Should-Retry %q", a.header.Get("X-Should-Retry"))
	}
}

package cluster

import (
	"cmp"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/internal/engine/sampler"
	"github.com/shoal-llm/shoal/internal/server/engine"
)

// TestEndless: under a policy with positions in the cache, a conversation is four times as long as the
// served context. Each turn of a session reads only new tokens. Its answers equal, bit for bit, those of
// requests that read all turns again, on any number of sockets. Other policies refuse such a prompt.
func TestEndless(t *testing.T) {
	const limit, first, turns, policy = 100, 60, 12, "streaming:sink=4,recent=44,positions=cache"
	talk := func(t *testing.T, e engine.Engine, session string) (answers []string) {
		t.Helper()
		prompt := text(3, first)
		for i := range turns {
			a := complete(t, e,
				&engine.Request{ID: fmt.Sprint("turn ", i), Prompt: prompt, Policy: policy, Context: first, Session: session, SessionTTL: time.Hour})
			if want := len(prompt) - 18; session != "" && i > 0 && a.cached != want {
				t.Errorf("turn %d: %d tokens of %d were in the cache", i, a.cached, want)
			}
			answers = append(answers, a.bits)
			for line := range strings.Lines(a.bits) {
				var token int32
				if _, err := fmt.Sscan(line, &token); err != nil {
					t.Fatal(err)
				}
				prompt = append(prompt, token)
			}
			prompt = append(prompt, text(50+i, 17)...)
		}
		if len(prompt) < 4*limit {
			t.Errorf("only %d tokens", len(prompt))
		}
		return answers
	}
	var want []string
	for _, sockets := range []int{1, 3} {
		e := startLocal(t, LocalConfig{Sockets: sockets, Threads: 1,
			Serve: ServeConfig{Model: goldenDir, MaxContext: limit, Chunk: 30, Mapping: []string{"gather", "reduce"}[sockets%2]}})
		for _, session := range []string{"", "chat"} {
			got := talk(t, e, session)
			if want == nil {
				want = got
			}
			for i := range got {
				if got[i] != want[i] {
					t.Errorf("%d sockets, session %s: turn %d has another answer", sockets, cmp.Or(session, "none"), i)
				}
			}
		}
		if _, err := e.Submit(t.Context(),
			&engine.Request{ID: "long", Prompt: text(3, limit), MaxTokens: 1, Sampling: sampler.Default(), PromptLogprobs: -1}); err == nil {
			t.Error("a prompt beyond the context is taken under full")
		}
	}
	if want[1] == want[2] {
		t.Error("two turns have the same answer: the test shows nothing")
	}
}

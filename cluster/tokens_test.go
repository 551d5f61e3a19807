package cluster

import (
	"fmt"
	"testing"

	"github.com/shoal-llm/shoal/client/wire"
	"github.com/shoal-llm/shoal/internal/engine/sampler"
	"github.com/shoal-llm/shoal/internal/server/engine"
	"github.com/shoal-llm/shoal/internal/testutil"
)

// TestTokensOfSteps: events mark the tokens of one step. The token rate and the step time are
// positive after work, and 0 after a short idle time.
func TestTokensOfSteps(t *testing.T) {
	c := startLocal(t, LocalConfig{Sockets: 1, Threads: 1, Serve: ServeConfig{Model: "../models/fry"}})
	p := sampler.Default()
	p.Temperature = 0
	r := &engine.Request{ID: "loop", MaxTokens: 200, Sampling: p, IgnoreEOS: true, PromptLogprobs: -1, Speculate: "suffix:8"}
	for range 20 {
		r.Prompt = append(r.Prompt, 70, 300, 71)
	}
	events, err := c.Submit(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	several, follow := 0, 0
	for ev := range events {
		if ev.Err != nil {
			t.Fatal(ev.Err)
		}
		if ev.Token == engine.NoToken {
			continue
		}
		if follow > 0 && ev.More != follow-1 {
			t.Fatalf("%d tokens of the step follow, want %d", ev.More, follow-1)
		}
		if follow == 0 && ev.More > 0 {
			several++
		}
		follow = ev.More
	}
	if several == 0 || follow != 0 {
		t.Errorf("%d steps had several tokens, at the end %d were to follow", several, follow)
	}
	await := func(what string, ok func(s wire.ClusterState) bool) {
		t.Helper()
		testutil.Eventually(t, patience, what, func() (bool, string) {
			s := c.Cluster()
			return ok(s), fmt.Sprintf("%v tokens a second, %v ms a step", s.TokensPerSecond, s.StepMillis)
		})
	}
	await("rates after work", func(s wire.ClusterState) bool { return s.TokensPerSecond > 0 && s.StepMillis > 0 })
	await("no rates when idle", func(s wire.ClusterState) bool { return s.TokensPerSecond == 0 && s.StepMillis == 0 })
}

package cluster

import (
	"slices"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/sampler"
	"github.com/shoal-llm/shoal/internal/server/engine"
)

// TestRejectedDraftsLeaveNoPrefix: after an answer with mostly wrong drafts, the prefix cache holds
// the same as after a prompt of the same tokens. The next turn uses it and has the same
// log-probabilities as without drafts and cache.
func TestRejectedDraftsLeaveNoPrefix(t *testing.T) {
	wrong := func(_ string, at int) []int32 {
		drafts := make([]int32, at%8)
		for i := range drafts {
			drafts[i] = int32(5 + (at*31+i*17)%290)
		}
		return drafts
	}
	ask := func(e engine.Engine, name string, prompt []int32, tokens int, mode string) outcome {
		p := sampler.Default()
		p.Temperature, p.Logprobs = 0, 2
		return speak(t, e, name,
			[]*engine.Request{{Prompt: prompt, MaxTokens: tokens, Sampling: p, IgnoreEOS: true, PromptLogprobs: -1, Speculate: mode}})[0]
	}
	config := func(prefix string) LocalConfig {
		c := LocalConfig{Sockets: 1, Threads: 1,
			Serve: ServeConfig{Model: "../internal/engine/model/testdata/llama", Chunk: 48, PrefixCache: prefix}}
		if prefix == PrefixOn {
			c.Serve.guess = wrong
		}
		return c
	}
	drafted, plain := startLocal(t, config(PrefixOn)), startLocal(t, config(PrefixOff))
	for i, tokens := range []int{122, 129, 185, 186, 187, 250} {
		var prompt []int32
		for k := range 70 {
			prompt = append(prompt, int32(5+(k*k+i*13)%290))
		}
		first := ask(drafted, "first", prompt, tokens, "")
		if want := ask(plain, "first", prompt, tokens, "off"); first.events != want.events || first.drafted == 0 {
			t.Fatalf("%d tokens, %d drafts:\n%s\nwithout\n%s", tokens, first.drafted, first.events, want.events)
		}
		before := drafted.Cluster().PrefixCache.Hits
		next := slices.Concat(prompt, first.tokens[:tokens], []int32{7, 8, 9})
		second := ask(drafted, "second", next, 20, "off")
		if hits := drafted.Cluster().PrefixCache.Hits - before; hits < 128 {
			t.Errorf("%d of %d tokens of the next turn were found", hits, len(next))
		}
		if want := ask(plain, "second", next, 20, "off"); second.events != want.events {
			t.Errorf("the turn after %d tokens:\n%s\nwithout drafts\n%s", tokens, second.events, want.events)
		}
	}
	if n := drafted.Cluster().Recoveries; n > 0 {
		t.Errorf("%d steps failed: a block was missed", n)
	}
	waitIdle(t, drafted)
}

package cluster

import (
	"slices"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/sampler"
	"github.com/shoal-llm/shoal/internal/server/engine"
)

// TestTraceReplay: the tokens of a trace replace the drawn ones, with and without drafts, greedy
// and sampled. After the trace, tokens are drawn again.
func TestTraceReplay(t *testing.T) {
	e := startLocal(t, LocalConfig{Sockets: 3, Threads: 1, Serve: ServeConfig{Model: "../internal/engine/model/testdata/llama", Chunk: 20}})
	var trace, prompt []int32
	for i := range 48 {
		prompt = append(prompt, int32(5+i*i%250))
		trace = append(trace, int32(9+i%12*(1+i/24)))
	}
	var list []*engine.Request
	for i, temperature := range []float32{0, 0.9} {
		p := sampler.Default()
		p.Temperature, p.Seed, p.Trace = temperature, uint64(i), trace
		list = append(list, &engine.Request{Prompt: prompt, MaxTokens: 60, Sampling: p, IgnoreEOS: true, PromptLogprobs: -1})
	}
	ask := func(mode string) []outcome {
		for _, r := range list {
			r.Speculate = mode
		}
		return speak(t, e, mode, list)
	}
	want := ask("off")
	for i, o := range want {
		if len(o.tokens) < 60 || !slices.Equal(o.tokens[:48], trace) {
			t.Errorf("request %d has the tokens %v, its trace is %v", i, o.tokens, trace)
		}
	}
	for i, o := range ask("suffix:7") {
		if o.events != want[i].events || o.right == 0 {
			t.Errorf("request %d, %d drafts right:\n%s\nwithout drafts\n%s", i, o.right, o.events, want[i].events)
		}
	}
	waitIdle(t, e)
}

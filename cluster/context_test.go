package cluster

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/sampler"
	"github.com/shoal-llm/shoal/internal/server/engine"
)

// TestContexts: many requests may start with a text that was read once and is held. Their answers
// equal, bit for bit, those of requests that read the text themselves, on any number of sockets,
// concurrently too. Its rows are counted once. It is read again after memory was short or the
// placement changed. Releasing it does not affect running requests.
func TestContexts(t *testing.T) { contexts(t, goldenDir) }

// TestContextsWithStates repeats that for a model with recurrent states, which forks copy.
func TestContextsWithStates(t *testing.T) {
	contexts(t, filepath.Join("../internal/engine/model/testdata", "qwen3_5"))
}

// TestInputsInChunks: an input after a held context gives the same bits in chunks of any size as with one
// token per step, on any number of sockets, and together with another input.
func TestInputsInChunks(t *testing.T) {
	const length = 203
	for _, c := range []struct{ model, policy string }{
		{goldenDir, "squeezed:clusters=0.2,sparsity=0.7,tail=12,obs=16"},
		{goldenDir, "squeezed:clusters=0.2,levels=2,sparsity=0.6,tail=12,obs=16"},
		{filepath.Join("../internal/engine/model/testdata", "gemma3"), "squeezed:clusters=0.2,sparsity=0.7,tail=12,obs=16"},
		{filepath.Join("../internal/engine/model/testdata", "deepseek_v2"), "squeezed:clusters=0.2,sparsity=0.7,tail=12,obs=16"},
		{filepath.Join("../internal/engine/model/testdata", "qwen3_5"), "squeezed:clusters=0.2,sparsity=0.7,tail=12,obs=16"},
	} {
		t.Run(filepath.Base(c.model)+" "+c.policy, func(t *testing.T) {
			start := func(sockets, chunk int) engine.Engine {
				return startLocal(t, LocalConfig{Sockets: sockets, Threads: 3,
					Serve: ServeConfig{Model: c.model, Mapping: []string{"gather", "reduce"}[sockets%2], Chunk: chunk, PrefixCache: PrefixOff}})
			}
			ask := func(e engine.Engine, input int, policy string) replied {
				prompt := append(text(7, length), text(input, 40+193*input)...)
				return complete(t, e, &engine.Request{ID: fmt.Sprint(input, policy), Prompt: prompt, Policy: policy, Context: length})
			}
			alone := start(1, 1) // one token per step
			want := []string{ask(alone, 0, c.policy).bits, ask(alone, 1, c.policy).bits}
			if ask(alone, 1, c.policy+",segment=64").bits == want[1] {
				t.Error("segment=64 gives the same answer: the test cannot detect another selection")
			}
			for i, chunk := range []int{7, 31, 200} {
				e := start([]int{3, 4, 1}[i], chunk)
				other := make(chan replied)
				go func() { other <- ask(e, 0, c.policy) }()
				if got := ask(e, 1, c.policy); got.bits != want[1] {
					t.Errorf("chunks of %d: another answer than with one token per step", chunk)
				}
				if got := <-other; got.bits != want[0] {
					t.Errorf("chunks of %d: another answer to the other input", chunk)
				}
			}
		})
	}
}

func contexts(t *testing.T, model string) {
	const policy, length = "squeezed:clusters=0.2,levels=2,sparsity=0.6,tail=12,obs=16", 203
	ask := func(e engine.Engine, id string, question int, policy string) replied {
		prompt := append(text(7, length), text(question, 9+question)...)
		return complete(t, e, &engine.Request{ID: id, Prompt: prompt, Policy: policy, Context: length})
	}
	alone := startLocal(t, LocalConfig{Sockets: 1, Threads: 1, Serve: ServeConfig{Model: model, PrefixCache: PrefixOff}})
	var want []string
	for i := range 4 {
		want = append(want, ask(alone, fmt.Sprint(i), i, policy).bits)
	}
	if slices.Contains(want[1:], want[0]) || ask(alone, "other", 1, policy+",segment=64").bits == want[1] {
		t.Error("different prompts or policies give the same answer: the test shows nothing")
	}
	for _, sockets := range []int{1, 3, 4} {
		t.Run(fmt.Sprint(sockets, " sockets"), func(t *testing.T) {
			e := startLocal(t, LocalConfig{Sockets: sockets, Threads: 1,
				Serve: ServeConfig{Model: model, Mapping: []string{"gather", "reduce"}[sockets%2], Chunk: 50, PrefixCache: PrefixOff}})
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			p := sampler.Default()
			p.Temperature = 0
			events, err := e.Submit(ctx, &engine.Request{ID: "the context", Prompt: text(7, length),
				MaxTokens: 1, Sampling: p, IgnoreEOS: true, PromptLogprobs: -1, Policy: policy, Context: length, Hold: true})
			if err != nil {
				t.Fatal(err)
			}
			if first := <-events; first.Finish != "" || first.Token < 0 {
				t.Fatalf("%+v", first)
			}
			if state := e.Contexts(); len(state) != 1 || state["the context"] != engine.ContextReady {
				t.Errorf("the context is %v", state)
			}
			done := make(chan replied)
			for i := range 4 {
				go func() { done <- ask(e, fmt.Sprint(i), i, policy) }()
			}
			got := map[string]bool{}
			for range 4 {
				a := <-done
				got[a.bits] = true
				if a.cached != length {
					t.Errorf("%d tokens of %d were there", a.cached, length)
				}
			}
			for i := range want {
				if !got[want[i]] {
					t.Errorf("question %d: another answer after a held context", i)
				}
			}
			cancel()
			for range events {
			}
			if a := ask(e, "afterwards", 2, policy); a.bits != want[2] || a.cached != 0 {
				t.Errorf("after the context was given up: %d tokens were there, the same answer: %v", a.cached, a.bits == want[2])
			}
			waitIdle(t, e)
		})
	}
	if _, err := alone.Submit(t.Context(), &engine.Request{ID: "full", Prompt: text(7, 20), MaxTokens: 1,
		Sampling: sampler.Default(), PromptLogprobs: -1, Context: 10}); err == nil {
		t.Error("a context under a policy that has none is taken")
	}
}

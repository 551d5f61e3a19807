package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"testing"

	"github.com/shoal-llm/shoal/api"
	"github.com/shoal-llm/shoal/grammar"
	"github.com/shoal-llm/shoal/sampler"
	"github.com/shoal-llm/shoal/tokenizer"
)

const ticket = `{"type":"object","properties":{"title":{"type":"string","maxLength":24},"tags":{"type":"array","items":{"enum":["a","b","c"]},"minItems":1,"maxItems":3},"size":{"type":"integer","minimum":10,"maximum":99}},"required":["title","tags","size"],"additionalProperties":false}`

// Under a grammar an answer fits it, ends where it may, and has the same bits on any
// number of sockets, drawn or greedy, after an eviction or after it was preempted.
func TestGrammarSameOnAnyNumberOfSockets(t *testing.T) {
	const dir = "../models/fry"
	tok, err := tokenizer.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	prompt := tok.Encode("A ticket as JSON: ", true)
	var want [][]int32
	for i, n := range []int{1, 3, 2} {
		speculate := []string{"off", "lookup", "suffix"}[i] // drafts that do not fit are wrong as others are
		c := startLocal(t, LocalConfig{Sockets: n, Threads: 1, Serve: ServeConfig{Model: dir, Speculate: speculate}})
		var got [][]int32
		for i, policy := range []string{"full", "full", "streaming:sink=4,recent=60"} {
			p := sampler.Default()
			p.Seed, p.Logprobs, p.Grammar = uint64(i), i, &grammar.Spec{Kind: grammar.KindJSONSchema, Text: ticket}
			p.MinTokens, p.Stop = 200, c.checkpoint.Config.EOS // gives way: nothing but an end fits at the end
			if i == 0 {
				p.Temperature = 0
			}
			out, finish := generation(t, c, &api.Request{ID: fmt.Sprint("r", i), Prompt: prompt, MaxTokens: 900, Sampling: p, PromptLogprobs: -1, Policy: policy})
			text := tok.Decode(out, true)
			var v struct {
				Title string
				Tags  []string
				Size  int
			}
			if err := json.Unmarshal([]byte(text), &v); err != nil || len(v.Tags) < 1 || len(v.Tags) > 3 || v.Size < 10 || v.Size > 99 || finish != api.FinishStop {
				t.Errorf("%d sockets, %s: %q (%s): %v", n, policy, text, finish, err)
			}
			got = append(got, out)
		}
		if want == nil {
			want = got
		} else if !slices.EqualFunc(got, want, slices.Equal) {
			t.Errorf("%d sockets answer %v, one %v", n, got, want)
		}
		waitIdle(t, c)
	}
}

func generation(t *testing.T, e api.Engine, r *api.Request) (out []int32, finish string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	events, err := e.Submit(ctx, r)
	if err != nil {
		t.Fatal(err)
	}
	for ev := range events {
		if ev.Err != nil {
			t.Error(ev.Err)
		}
		if ev.Token != api.NoToken {
			out = append(out, ev.Token)
		}
		if ev.Finish != "" {
			finish = ev.Finish
		}
	}
	return out, finish
}

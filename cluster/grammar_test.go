package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
	"github.com/shoal-llm/shoal/internal/engine/sampler"
	"github.com/shoal-llm/shoal/internal/node"
	"github.com/shoal-llm/shoal/internal/server/engine"
	"github.com/shoal-llm/shoal/internal/text/grammar"
	"github.com/shoal-llm/shoal/internal/text/tokenizer"
)

const ticket = `{"type":"object","properties":{"title":{"type":"string","maxLength":24},"tags":{"type":"array","items":{"enum":["a","b","c"]},"minItems":1,"maxItems":3},"size":{"type":"integer","minimum":10,"maximum":99}},"required":["title","tags","size"],"additionalProperties":false}`

// An answer under a grammar matches it and ends only where it may. It has the same bits on any
// number of sockets, sampled or greedy, after an eviction and after a preemption.
func TestGrammarSameOnAnyNumberOfSockets(t *testing.T) {
	const dir = "../models/fry"
	tok, err := tokenizer.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	prompt := tok.Encode("A ticket as JSON: ", true)
	var want [][]int32
	for i, n := range []int{1, 3, 2} {
		speculate := []string{"off", "lookup", "suffix"}[i] // drafts that violate the grammar are rejected like other wrong drafts
		c := startLocal(t, LocalConfig{Sockets: n, Threads: 1, Serve: ServeConfig{Model: dir, Speculate: speculate}})
		var got [][]int32
		for i, policy := range []string{"full", "full", "streaming:sink=4,recent=60"} {
			p := sampler.Default()
			p.Seed, p.Logprobs, p.Grammar = uint64(i), i, &grammar.Spec{Kind: grammar.KindJSONSchema, Text: ticket}
			p.MinTokens, p.Stop = 200, c.checkpoint.Config.EOS // min_tokens is ignored where only an end is allowed
			if i == 0 {
				p.Temperature = 0
			}
			out, finish := generation(t, c,
				&engine.Request{ID: fmt.Sprint("r", i), Prompt: prompt, MaxTokens: 900, Sampling: p, PromptLogprobs: -1, Policy: policy})
			text := tok.Decode(out, true)
			var v struct {
				Title string
				Tags  []string
				Size  int
			}
			if err := json.Unmarshal([]byte(text), &v); err != nil || len(v.Tags) < 1 || len(v.Tags) > 3 ||
				v.Size < 10 || v.Size > 99 || finish != engine.FinishStop {
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

// The marks of thoughts may be control tokens of the checkpoint; grammars can match them.
func TestMarksOfThoughts(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"tokenizer.json", "tokenizer_config.json"} {
		data, err := os.ReadFile(filepath.Join("../models/fry", name))
		if err != nil {
			t.Fatal(err)
		}
		data = bytes.ReplaceAll(data, []byte("<|system|>"), []byte("</think>"))
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	ck := &checkpoint.Checkpoint{Dir: dir}
	ck.Config.Vocab = 4096
	engine, err := node.Grammars(ck)()
	if err != nil {
		t.Fatal(err)
	}
	g, err := engine.Compile(grammar.Spec{Kind: grammar.KindChoice, Text: `["yes"]`, Thought: grammar.ThoughtBegun})
	if err != nil {
		t.Fatal(err)
	}
	const mark = 5 // <|system|> of fry
	mask, err := g.Start().Mask()
	if err != nil || !mask.Has(mark) {
		t.Fatalf("the control token may not end a thought: %v", err)
	}
	at, err := g.Start().Advance(mark)
	if err != nil {
		t.Fatal(err)
	}
	if at, err = at.AdvanceBytes([]byte("\nyes")); err != nil || !at.Ends() {
		t.Error("the answer does not follow the thought", err)
	}
}

func generation(t testing.TB, e engine.Engine, r *engine.Request) (out []int32, finish string) {
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
		if ev.Token != engine.NoToken {
			out = append(out, ev.Token)
		}
		if ev.Finish != "" {
			finish = ev.Finish
		}
	}
	return out, finish
}

// BenchmarkSchemas runs 64 concurrent requests with different schemas and, in turn, the same
// without schemas. It reports milliseconds per step and the median ratio of the pairs.
func BenchmarkSchemas(b *testing.B) {
	const dir, requests, tokens = "../models/fry", 64, 128
	tok, err := tokenizer.Load(dir)
	if err != nil {
		b.Fatal(err)
	}
	c := startLocal(b,
		LocalConfig{Sockets: 1, Threads: runtime.NumCPU(), Serve: ServeConfig{Model: dir, Speculate: "off", MaxSequences: requests}})
	prompt := tok.Encode("A list as JSON: ", true)
	round := 0
	step := func(schemas bool) float64 {
		round++
		begun := time.Now()
		var all sync.WaitGroup
		for i := range requests {
			p := sampler.Default()
			p.Seed = uint64(i)
			if schemas { // new schemas each round, so that no state is reused
				p.Grammar = &grammar.Spec{Kind: grammar.KindJSONSchema, Text: fmt.Sprintf(`{"type":"array","minItems":100,"items":{"type":"object","additionalProperties":false,
					"properties":{"name_%d_%d":{"type":"string","maxLength":%d},
						"size":{"type":"integer","maximum":%d},
						"tags":{"type":"array","items":{"enum":["a%d","b","c"]}},"at":{"type":"string","format":"date-time"}},
					"required":["name_%d_%d","size","tags","at"]}}`, round, i, 8+i, 100+i, i, round, i)}
			}
			all.Go(func() {
				out, _ := generation(b, c,
					&engine.Request{ID: fmt.Sprint(round, ".", i), Prompt: prompt, MaxTokens: tokens, Sampling: p, IgnoreEOS: true, PromptLogprobs: -1})
				if len(out) != tokens {
					b.Errorf("%d tokens, want %d", len(out), tokens)
				}
			})
		}
		all.Wait()
		return time.Since(begun).Seconds() * 1000 / tokens
	}
	step(true)
	var without, with, ratios []float64
	for b.Loop() {
		n := step(false)
		w := step(true)
		without, with, ratios = append(without, n), append(with, w), append(ratios, w/n)
	}
	b.ReportMetric(median(without), "ms/step-without")
	b.ReportMetric(median(with), "ms/step-schemas")
	b.ReportMetric(median(ratios), "ratio")
}

func median(v []float64) float64 {
	slices.Sort(v)
	return v[len(v)/2]
}

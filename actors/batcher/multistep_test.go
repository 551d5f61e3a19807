package batcher

import (
	"testing"

	"github.com/shoal-llm/shoal/actors/batcher/drafts"
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/speculate"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// TestDecodeSteps: on one socket, the number of passes of a decode-only plan is limited by the time of
// a step, the remaining tokens, and the memory. The output is the same as with single steps.
func TestDecodeSteps(t *testing.T) {
	const tokens = 101
	for _, c := range []struct {
		name          string
		most          int
		micros        int64 // of a pass
		edit          func(*Spec)
		sockets       int
		least, atMost int
	}{
		{name: "one", most: 1, micros: 1000, least: tokens, atMost: tokens},
		{name: "eight", most: 8, micros: 1000, least: tokens / 8, atMost: tokens/8 + 5},
		{name: "sixteen", most: 16, micros: 100, least: tokens / 16, atMost: tokens/16 + 6},
		{name: "as many as fit the time", most: 8, micros: 16000, least: tokens / 3, atMost: tokens/3 + 5},
		{name: "none fits it twice", most: 8, micros: 26000, least: tokens, atMost: tokens},
		{name: "no step was measured", most: 8, micros: 0, least: tokens, atMost: tokens},
		{name: "two sockets", most: 8, micros: 1000, sockets: 2, least: tokens / 8, atMost: tokens/8 + 5},
		{name: "a ring", most: 8, micros: 1000, edit: func(p *Spec) { p.Policy = kvcache.Streaming(2, 20) },
			least: tokens / 8, atMost: tokens/8 + 5},
		{name: "a prompt's tail", most: 8, micros: 1000, edit: func(p *Spec) { p.Policy = squeezed }, least: tokens / 8, atMost: tokens/8 + 6},
		{name: "a small model guesses", most: 8, micros: 1000, edit: func(p *Spec) { p.Speculate = "model:2" }, least: 1, atMost: tokens},
		{name: "many log-probabilities", most: 8, micros: 1000, edit: func(p *Spec) {
			s := *p.Sampling
			s.Logprobs = drafts.MaxScores/2 - 1
			p.Sampling = &s
		}, least: tokens / 2, atMost: tokens/2 + 5},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := testState(t, func(cfg *Config) { cfg.DecodeSteps = c.most })
			sockets := []Socket{{ID: "n1", Budget: block * 1000, Heads: tensor.Span{Lo: 0, Hi: geometry.KVHeads}}}
			if c.sockets == 2 {
				sockets[0].Heads.Hi = 1
				sockets = append(sockets, Socket{ID: "n2", Budget: block * 1000, Heads: tensor.Span{Lo: 1, Hi: geometry.KVHeads}})
			}
			at := newCluster(t, 1, sockets)
			defer at.close()
			spec := Spec{ID: "a", Prompt: prompt("a", 40), MaxTokens: tokens, IgnoreEOS: true, Sampling: greedy,
				Speculate: speculate.Off, PromptLogprobs: -1, Policy: kvcache.Full()}
			if c.edit != nil {
				c.edit(&spec)
			}
			out := newClient(t)
			out.specs["a"] = &spec
			out.take(s.Step(Placed{Epoch: 1, Sockets: sockets}))
			e := s.Step(Submit{spec})
			steps := 0
			for ; e.Start != nil; steps++ {
				out.take(e)
				checkLedger(t, s)
				d := at.run(e.Start, out.specs)
				d.Micros = c.micros * int64(e.Start.PassCount())
				e = s.Step(d)
			}
			out.take(e)
			if out.tokens["a"] != tokens || steps < c.least || steps > c.atMost+2 {
				t.Errorf("%d tokens in %d steps, want %d in %d to %d", out.tokens["a"], steps, tokens, c.least, c.atMost)
			}
		})
	}
}

package batcher

import (
	"testing"

	"github.com/shoal-llm/shoal/actors/batcher/rate"
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/speculate"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

func TestRate(t *testing.T) {
	type step struct {
		now          int64
		rows, tokens int
		busy         bool
		current      float64
		perSecond    int64
	}
	for name, steps := range map[string][]step{
		"falls to 0 when idle, the smoothed rate stays": {
			{now: 1000, rows: 300, tokens: 200, busy: true, current: 200, perSecond: 300},
			{now: 1500, rows: 100, tokens: 50, busy: true, current: 200, perSecond: 300}, // the window is open
			{now: 2000, current: 50, perSecond: 250},
			{now: 2900, current: 50, perSecond: 250},
			{now: 3000, current: 0, perSecond: 250},
			{now: 60_000, current: 0, perSecond: 250},
		},
		"a long step counts over its duration": {
			{now: 1000, current: 0},
			{now: 2000, busy: true, current: 0},
			{now: 4000, rows: 600, tokens: 600, busy: true, current: 200, perSecond: 200},
			{now: 6000, busy: true, current: 200, perSecond: 200},
			{now: 8000, rows: 1, tokens: 1, current: 0.25, perSecond: 150},
			{now: 9000, current: 0, perSecond: 150},
		},
		"a step that hangs has no rate": {
			{now: 1000, rows: 100, tokens: 100, busy: true, current: 100, perSecond: 100},
			{now: 10_900, busy: true, current: 100, perSecond: 100},
			{now: 11_000, busy: true, current: 0, perSecond: 100},
			{now: 21_000, rows: 100, tokens: 100, busy: true, current: 5, perSecond: 76},
		},
		"an interrupted step has no rate": {
			{now: 1000, rows: 100, tokens: 100, busy: true, current: 100, perSecond: 100},
			{now: 2000, busy: true, current: 100, perSecond: 100},
			{now: 2100, current: 0, perSecond: 100},
		},
	} {
		var r rate.Rate
		for i, s := range steps {
			r.Add(s.rows, s.tokens)
			if r.Tick(s.now, s.busy); r.Current != s.current || r.PerSecond != s.perSecond {
				t.Errorf("%s: step %d at %d ms: %v tokens/s and %d rows/s, want %v and %d", name, i,
					s.now, r.Current, r.PerSecond, s.current, s.perSecond)
			}
		}
	}
}

// TestTokensOfAStep checks that the rate counts every prompt and output token once, and no rejected
// draft. Each Emit has the number of tokens of its step that follow.
func TestTokensOfAStep(t *testing.T) {
	const read, tokens = 30, 300
	s, out := testState(t, nil), newClient(t)
	sockets := []Socket{{ID: "n1", Budget: block * 100, Heads: tensor.Span{Lo: 0, Hi: geometry.KVHeads}}}
	at := newCluster(t, 1, sockets)
	defer at.close()
	spec := Spec{ID: "loop", Prompt: prompt("p", read), MaxTokens: tokens, Sampling: greedy, PromptLogprobs: -1,
		Policy: kvcache.Streaming(4, 60), Speculate: speculate.Model}
	out.specs[spec.ID] = &spec
	out.take(s.Step(Placed{Epoch: 1, Sockets: sockets}))
	several := 0
	for e := s.Step(Submit{spec}); ; {
		for i, m := range e.Emits {
			if want := len(e.Emits) - 1 - i; m.More != want {
				t.Fatalf("token %d of %d of a step: %d follow, want %d", i, len(e.Emits), m.More, want)
			}
		}
		if len(e.Emits) > 1 {
			several++
		}
		out.take(e)
		if e.Start == nil {
			break
		}
		d := at.run(e.Start, out.specs)
		d.Micros = int64(1000 + 20*e.Start.Tokens())
		e = s.Step(d)
	}
	if v := s.drafts.Totals(); several == 0 || v.Drafted == v.Accepted {
		t.Fatalf("%d steps with several tokens, %d drafts of which %d were accepted: the test needs both", several, v.Drafted, v.Accepted)
	}
	for _, want := range []float64{read + tokens, 0} {
		s.Step(Tick{s.now + 1000})
		if v := s.Snapshot(); v.TokensPerSecond != want {
			t.Errorf("%v tokens/s, want %v", v.TokensPerSecond, want)
		}
	}
}

package batcher

import (
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/speculate"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// TestRingFitsAnyAnswer: an answer of any length after a whole prompt runs in memory for the prompt and its ring. Every
// step books the bytes that it uses. Without the ring, the answer does not fit.
func TestRingFitsAnyAnswer(t *testing.T) {
	const read, output = 400, 590
	for _, spec := range []string{"quest:page=16,budget=32,ring=20", "shadowkv:chunk=4,budget=8,outliers=1,local=1,ring=70",
		"shadowkv:chunk=4,budget=8,outliers=1,local=1,keys=lowrank,rank=16,ring=70", "loki:budget=40,dims=0.5,calib=64,ring=11",
		"infinigen:alpha=1,most=0.3,calib=64,ring=64"} {
		p := policy(t, spec)
		budget := max(kvcache.HandoverBytes(geometry, geometry.KVHeads, read, p), kvcache.StepBytes(geometry, read, read+output, 1, p))
		without := p.Parts
		without.Ring = 0
		if kvcache.ResidentBytes(geometry, read, read+output-1, kvcache.Compose(p.Name(), p.Spec(), without)) <= budget {
			t.Fatalf("%s: the whole answer fits in %d bytes", spec, budget)
		}
		s := testState(t, func(c *Config) { c.TokenBudget, c.Chunk, c.NoPrefixCache, c.DecodeSteps = 500, 450, true, 1 })
		sockets := []Socket{{ID: "n", Budget: budget, Heads: tensor.Span{Hi: geometry.KVHeads}}}
		at, out := newCluster(t, 1, sockets), newClient(t)
		request := Spec{ID: "a", Prompt: prompt("a", read), MaxTokens: output, IgnoreEOS: true, Policy: p, Sampling: greedy,
			PromptLogprobs: -1, Speculate: speculate.Off}
		out.specs["a"] = &request
		out.take(s.Step(Placed{Epoch: 1, Sockets: sockets}))
		e := s.Step(Submit{request})
		for steps := 0; e.Start != nil; steps++ {
			out.take(e)
			at.release(e.Release)
			checkLedger(t, s)
			d := at.run(e.Start, out.specs)
			if booked := s.ledger.sockets[0].reserved; len(e.Start.Decode) > 0 && d.Used[0] != booked {
				t.Fatalf("%s: step %d uses %d bytes, %d are booked", spec, steps, d.Used[0], booked)
			}
			if e = s.Step(d); steps > 2*output {
				t.Fatalf("%s: %+v", spec, s.Snapshot())
			}
		}
		out.take(e)
		if f := out.finished["a"]; f.Reason != ReasonLength || f.Output != output {
			t.Errorf("%s: %+v", spec, f)
		}
		at.close()
	}
}

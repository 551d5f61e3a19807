package batcher

import (
	"fmt"
	"testing"

	"shoal/kvcache"
	"shoal/speculate"
	"shoal/tensor"
)

// TestDraftersSaveSteps: who says what it said before needs fewer steps, with the memory
// and the budget of tokens that there is, and drafts for nobody who did not ask.
func TestDraftersSaveSteps(t *testing.T) {
	const tokens = 300
	for _, c := range []struct {
		mode  speculate.Mode
		most  int // steps
		least int
	}{{speculate.Off, tokens, tokens}, {speculate.Lookup, 60, tokens / (1 + speculate.Most)}, {speculate.Suffix, 60, tokens / (1 + speculate.Most)}} {
		for _, mibs := range []int64{0, 1 << 20} {
			t.Run(fmt.Sprint(c.mode, mibs), func(t *testing.T) {
				sockets := []Socket{{ID: "n1", Budget: block * 100, Heads: tensor.Span{Lo: 0, Hi: geometry.KVHeads}}}
				s, out := testState(t, func(c *Config) { c.SpeculateBytes = max(1, mibs) }), newClient(t)
				at := newCluster(t, 1, sockets)
				defer at.close()
				spec := Spec{ID: "loop", Prompt: prompt("p", 30), MaxTokens: tokens, Sampling: greedy, PromptLogprobs: -1, Policy: kvcache.Streaming(4, 60), Speculate: c.mode}
				out.specs[spec.ID] = &spec
				out.take(s.Step(Placed{Epoch: 1, Sockets: sockets}))
				e := s.Step(Submit{spec})
				steps := 0
				for ; e.Start != nil; steps++ {
					out.take(e)
					if s.speculation.bytes > s.cfg.SpeculateBytes {
						t.Fatalf("indexes take %d bytes of %d", s.speculation.bytes, s.cfg.SpeculateBytes)
					}
					checkLedger(t, s)
					d := at.run(e.Start, out.specs)
					d.Micros = int64(1000 + 20*e.Start.Tokens())
					e = s.Step(d)
				}
				out.take(e)
				most, least := c.most, c.least
				if mibs == 0 { // no memory for an index
					most, least = tokens, tokens
				}
				if out.tokens["loop"] != tokens || steps > most || steps < least {
					t.Errorf("%d tokens in %d steps, want %d to %d", out.tokens["loop"], steps, least, most)
				}
				f := out.finished["loop"].Speculated
				if total := s.Snapshot().Speculated; f.Accepted != total.Accepted || int(f.Accepted) != at.accepted || f.Drafted != total.Drafted || tokens-steps != at.accepted {
					t.Errorf("%+v of the request, %+v of all, %d were right in %d steps", f, total, at.accepted, steps)
				}
				if s.speculation.bytes != 0 {
					t.Errorf("%d bytes of indexes are left", s.speculation.bytes)
				}
			})
		}
	}
}

package batcher

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/shoal-llm/shoal/actors/batcher/drafts"
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/speculate"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// TestDraftersSaveSteps checks that a request that repeats itself needs fewer steps, within the memory
// and the token budget. A request without drafts has none.
func TestDraftersSaveSteps(t *testing.T) {
	const tokens = 300
	for _, c := range []struct {
		mode  speculate.Mode
		most  int // maximum steps
		least int
	}{
		{speculate.Off, tokens, tokens},
		{speculate.Lookup, 60, tokens / (1 + speculate.MaxDraft)},
		{speculate.Suffix, 60, tokens / (1 + speculate.MaxDraft)},
		{"suffix:2", 120, tokens / 3},
		{"lookup:2", 120, tokens / 3},
		{speculate.Model, 60, tokens / (1 + speculate.MaxDraft)},
		{"model:3", 170, tokens / 4},
	} {
		for _, mibs := range []int64{0, 1 << 20} {
			t.Run(fmt.Sprint(c.mode, mibs), func(t *testing.T) {
				sockets := []Socket{{ID: "n1", Budget: block * 100, Heads: tensor.Span{Lo: 0, Hi: geometry.KVHeads}}}
				s, out := testState(t, func(c *Config) { c.SpeculateBytes = max(1, mibs) }), newClient(t)
				at := newCluster(t, 1, sockets)
				defer at.close()
				spec := Spec{ID: "loop", Prompt: prompt("p", 30), MaxTokens: tokens, Sampling: greedy,
					PromptLogprobs: -1, Policy: kvcache.Streaming(4, 60), Speculate: c.mode}
				out.specs[spec.ID] = &spec
				out.take(s.Step(Placed{Epoch: 1, Sockets: sockets}))
				e := s.Step(Submit{spec})
				steps := 0
				for ; e.Start != nil; steps++ {
					out.take(e)
					if s.drafts.Totals().Texts > s.cfg.SpeculateBytes {
						t.Fatalf("indexes take %d bytes of %d", s.drafts.Totals().Texts, s.cfg.SpeculateBytes)
					}
					checkLedger(t, s)
					d := at.run(e.Start, out.specs)
					d.Micros = int64(1000 + 20*e.Start.Tokens())
					if _, width := c.mode.Split(); width > 0 {
						d.Micros = int64(1000 * e.Start.Tokens()) // independent of the step's work
					}
					e = s.Step(d)
				}
				out.take(e)
				most, least := c.most, c.least
				switch name, _ := c.mode.Split(); {
				case mibs > 0:
				case name == speculate.Model: // right three times out of four
					most = 170
				default: // no memory for an index
					most, least = tokens, tokens
				}
				if out.tokens["loop"] != tokens || steps > most || steps < least {
					t.Errorf("%d tokens in %d steps, want %d to %d", out.tokens["loop"], steps, least, most)
				}
				f := out.finished["loop"].Speculated
				var reported Speculated
				for _, v := range out.finished["loop"].Verified {
					reported.Count(int(v.Drafted), int(v.Accepted))
				}
				if reported.Lookups = f.Lookups; reported != f {
					t.Errorf("%+v in steps, %+v in all", reported, f)
				}
				if total := s.Snapshot().Speculated; f.Accepted != total.Accepted || int(f.Accepted) != at.accepted ||
					f.Drafted != total.Drafted || tokens-steps != at.accepted {
					t.Errorf("%+v of the request, %+v of all, %d were right in %d steps", f, total, at.accepted, steps)
				}
				if s.drafts.Totals().Texts != 0 {
					t.Errorf("%d bytes of indexes are left", s.drafts.Totals().Texts)
				}
			})
		}
	}
}

// TestDraftsNeverCost checks that drafts take at most 3 % of the time for text with misleading
// repetitions, for cheap and expensive rows. For text that repeats itself they must save time.
func TestDraftsNeverCost(t *testing.T) {
	const tokens = 400
	const look, guess = 10.0, 50.0 // microseconds; guess is a pass of the draft model; a step with one row takes 1000
	run := func(text string, mode speculate.Mode, batch int, each float64) (micros float64) {
		sockets := []Socket{{ID: "n1", Budget: block * 1000, Heads: tensor.Span{Lo: 0, Hi: geometry.KVHeads}}}
		s, out := testState(t, func(c *Config) { c.MaxRunning, c.TokenBudget, c.Chunk = batch, 400, 380 }), newClient(t)
		at := newCluster(t, 1, sockets)
		defer at.close()
		out.take(s.Step(Placed{Epoch: 1, Sockets: sockets}))
		var e Effects
		var looks uint64
		jitter := rand.New(rand.NewPCG(uint64(batch), 4))
		for i := range 2 * batch { // half of them wait; outputs have different lengths
			spec := Spec{ID: fmt.Sprint(text, i), Prompt: prompt("noise", 8), MaxTokens: tokens - 13*i,
				Sampling: greedy, PromptLogprobs: -1, Policy: kvcache.Full(), Speculate: mode}
			out.specs[spec.ID] = &spec
			if more := s.Step(Submit{spec}); more.Start != nil {
				e = more
			}
		}
		for e.Start != nil {
			out.take(e)
			d := at.run(e.Start, out.specs)
			took := 1000 * (1 + each*float64(e.Start.Tokens()-1))
			asked, deep := 0, 0
			for _, d := range e.Start.Decode {
				asked, deep = asked+d.Draft, max(deep, d.Draft)
			}
			took += guess * (float64(deep) + 0.1*float64(asked))
			if len(e.Start.Chunks) == 0 {
				micros += took + look*float64(s.drafts.Totals().Lookups-looks)
			}
			looks = s.drafts.Totals().Lookups
			d.Micros = int64(took * (0.8 + 0.5*jitter.Float64())) // noise of other programs
			if jitter.IntN(40) == 0 {
				d.Micros *= 6
			}
			e = s.Step(d)
		}
		out.take(e)
		return micros
	}
	for _, mode := range []speculate.Mode{speculate.Lookup, speculate.Suffix, speculate.Model} {
		for _, batch := range []int{1, 4, 16} {
			for _, each := range []float64{0.01, 0.05, 0.2, 0.5, 1} {
				noise := run("noise", speculate.Off, batch, each) / run("noise", mode, batch, each)
				loop := run("loop", speculate.Off, batch, each) / run("loop", mode, batch, each)
				t.Logf("%s, %d together, a row costs %.2f of the first: noise %.3f, loop %.2f of the speed of off", mode, batch, each, noise, loop)
				if least := map[bool]float64{true: 0.97, false: 0.98}[mode == speculate.Model]; noise < least ||
					loop < least || each <= 0.05 && loop < 1.5 {
					t.Errorf("%s, %d together, a row costs %.2f of the first: noise %.3f, loop %.2f", mode, batch, each, noise, loop)
				}
			}
		}
	}
}

// TestDraftsLeaveRoomForScores checks the limit of log-probabilities in the reply of a step. A plan
// that exceeds it would break the epoch, so drafts and known tokens must be fewer then.
func TestDraftsLeaveRoomForScores(t *testing.T) {
	for _, logprobs := range []int{-1, 20, 1000, 40000} {
		for _, emitted := range []int{0, 200} {
			sockets := []Socket{{ID: "n1", Budget: block * 4000, Heads: tensor.Span{Lo: 0, Hi: geometry.KVHeads}}}
			s, out := testState(t, func(c *Config) {
				c.MaxRunning, c.TokenBudget, c.Chunk = 30, 600, 500
				c.Guess = func(id string, position int) (draft []int32) {
					for i := range speculate.MaxDraft {
						draft = append(draft, modelToken(id, position+i-8))
					}
					return draft
				}
			}), newClient(t)
			at := newCluster(t, 1, sockets)
			out.take(s.Step(Placed{Epoch: 1, Sockets: sockets}))
			var e Effects
			sampling := *greedy
			sampling.Logprobs = logprobs
			for i := range 30 {
				spec := Spec{ID: fmt.Sprint("loop", i), Prompt: prompt("p", 8), MaxTokens: 300, Sampling: &sampling,
					PromptLogprobs: -1, Policy: kvcache.Streaming(4, 20), Accepted: emitted > 0}
				for k := range emitted {
					spec.Emitted = append(spec.Emitted, modelToken(spec.ID, k))
				}
				out.specs[spec.ID], out.tokens[spec.ID] = &spec, emitted
				if more := s.Step(Submit{spec}); more.Start != nil {
					e = more
				}
			}
			most := 0
			for ; e.Start != nil; e = s.Step(at.run(e.Start, out.specs)) {
				out.take(e)
				drafted := e.Start.Tokens() - len(e.Start.Decode)
				for _, c := range e.Start.Chunks {
					drafted -= len(c.Tokens)
				}
				most = max(most, drafted)
			}
			out.take(e)
			at.close()
			if scores := most * (1 + max(0, logprobs)); scores > drafts.MaxScores || len(out.finished) != 30 || most == 0 && logprobs < 2000 {
				t.Errorf("%d logprobs, %d tokens known: %d drafts in a step need %d, the limit is %d; %d ended",
					logprobs, emitted, most, scores, drafts.MaxScores, len(out.finished))
			}
		}
	}
}

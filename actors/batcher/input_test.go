package batcher

import (
	"slices"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/speculate"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// TestInputChunks: the tokens after a context are read in chunks, within the step's token budget and the
// free memory. The chunk that ends the prompt samples a token. Chunks have at most undoneRows rows where a
// rollback needs memory.
func TestInputChunks(t *testing.T) {
	plain := geometry
	defer func() { geometry = plain }()
	windows := plain
	windows.Layers, windows.Windows = 2, []int{40, 0}
	const context, input = 200, 233
	for _, c := range []struct {
		name   string
		edit   func(*Config, *Spec)
		g      kvcache.Geometry
		policy string
		want   []int // tokens of each chunk
	}{
		{name: "chunks", want: []int{100, 100, 33}},
		{name: "a small step", edit: func(c *Config, _ *Spec) { c.TokenBudget, c.Chunk = 48, 48 }, want: []int{48, 48, 48, 48, 41}},
		{name: "one token", edit: func(_ *Config, p *Spec) { p.Prompt = p.Prompt[:context+1] }, want: []int{1}},
		{name: "two tokens", edit: func(_ *Config, p *Spec) { p.Prompt = p.Prompt[:context+2] }, want: []int{2}},
		{name: "a ring", policy: "squeezed:clusters=0.2,tail=9,obs=7,ring=20", want: []int{64, 64, 64, 41}},
		{name: "windows", g: windows, want: []int{64, 64, 64, 41}},
		{name: "states", g: recurrent(), want: []int{64, 64, 64, 41}},
		{name: "a prompt's tail", edit: func(_ *Config, p *Spec) { p.Context = 0 }, want: []int{9}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if geometry = plain; c.g.Layers > 0 {
				geometry = c.g
			}
			spec := Spec{ID: "a", Prompt: prompt("a", context+input), MaxTokens: 4, IgnoreEOS: true, Sampling: greedy,
				Speculate: speculate.Off, PromptLogprobs: -1, Policy: squeezed, Context: context}
			if c.policy != "" {
				spec.Policy = policy(t, c.policy)
			}
			s := testState(t, func(cfg *Config) {
				cfg.TokenBudget, cfg.Chunk, cfg.NoPrefixCache, cfg.DecodeSteps = 200, 100, true, 1
				if c.edit != nil {
					c.edit(cfg, &spec)
				}
			})
			sockets := []Socket{{ID: "n", Budget: block * 1000, Heads: tensor.Span{Lo: 0, Hi: geometry.KVHeads}}}
			at := newCluster(t, 1, sockets)
			defer at.close()
			out := newClient(t)
			out.specs["a"] = &spec
			out.take(s.Step(Placed{Epoch: 1, Sockets: sockets}))
			e := s.Step(Submit{spec})
			var got []int
			for steps := 0; e.Start != nil; steps++ {
				out.take(e)
				at.release(e.Release)
				checkLedger(t, s)
				for _, d := range e.Start.Decode {
					if end := d.Start + len(d.Tokens); d.Start < len(spec.Prompt) {
						got = append(got, len(d.Tokens))
						if last := end == len(spec.Prompt); d.Sample != last || last && d.Known != len(d.Tokens)-1 {
							t.Errorf("chunk [%d,%d): %d tokens are known, samples %v", d.Start, end, d.Known, d.Sample)
						}
					}
				}
				d := at.run(e.Start, out.specs)
				if booked := s.ledger.sockets[0].reserved; d.Used[0] > booked {
					t.Fatalf("%d bytes are used, %d booked", d.Used[0], booked)
				}
				e = s.Step(d)
				if steps > 100 {
					t.Fatalf("the request runs after %d steps", steps)
				}
			}
			out.take(e)
			if !slices.Equal(got, c.want) {
				t.Errorf("chunks of %d tokens, want %d", got, c.want)
			}
			if f := out.finished["a"]; f.Reason != ReasonLength || f.Output != 4 {
				t.Errorf("%+v", f)
			}
		})
	}
}

// TestInputsAndPrompts: inputs and prompts share the tokens of a step in the order of requests. An input does
// not wait for a prompt that came later.
func TestInputsAndPrompts(t *testing.T) {
	s := testState(t, func(c *Config) { c.TokenBudget, c.Chunk, c.NoPrefixCache, c.ContextLimit = 64, 48, true, 4000 })
	sockets := []Socket{{ID: "n", Budget: block * 10000, Heads: tensor.Span{Lo: 0, Hi: 4}}}
	at := newCluster(t, 1, sockets)
	defer at.close()
	out := newClient(t)
	submit := func(id string, n, context int) Effects {
		spec := Spec{ID: id, Prompt: prompt(id, n), MaxTokens: 1, Sampling: greedy, PromptLogprobs: -1, Policy: kvcache.Full()}
		if context > 0 {
			spec.Policy, spec.Context = squeezed, context
		}
		out.specs[id] = &spec
		return s.Step(Submit{spec})
	}
	out.take(s.Step(Placed{Epoch: 1, Sockets: sockets}))
	e := submit("input", 700, 200)
	out.take(submit("prompt", 3000, 0))
	for steps := 0; e.Start != nil && len(out.finished) == 0; steps++ {
		out.take(e)
		at.release(e.Release)
		if got := e.Start; len(got.Decode) > 0 {
			row := got.Decode[0]
			if last := row.Start+len(row.Tokens) == 700; len(row.Tokens) != 48 && !last || !last && len(got.Chunks) != 1 {
				t.Errorf("%d tokens of the input, and %d chunks of the prompt", len(row.Tokens), len(got.Chunks))
			}
		}
		e = s.Step(at.run(e.Start, out.specs))
		if steps > 100 {
			t.Fatalf("no request has finished after %d steps", steps)
		}
	}
	out.take(e)
	if _, over := out.finished["input"]; !over {
		t.Errorf("the input waits for the prompt: %v", out.finished)
	}
}

// TestInputsOneByOne: a step has one row of an input if layers share a cache under a policy whose scores
// change after each token. Sockets refuse such steps with several rows.
func TestInputsOneByOne(t *testing.T) {
	across := geometry
	across.Across = true
	for g, want := range map[*kvcache.Geometry]int{&geometry: 32, &across: 1} {
		s := testState(t, func(c *Config) { c.Geometry = *g })
		if got := s.inputs.most(&request{Spec: Spec{Policy: policy(t, "tova:size=20")}}); got != want {
			t.Errorf("%d tokens a step with layers that share a cache %v, want %d", got, g.Across, want)
		}
	}
}

// TestInputsInFiles: a cache with rows in a file reads its input in small chunks.
func TestInputsInFiles(t *testing.T) {
	s := testState(t, func(c *Config) { c.TokenBudget, c.Chunk = 200, 100 })
	r := &request{Spec: Spec{Policy: squeezed}}
	if n := s.inputs.most(r); n != 100 {
		t.Errorf("%d rows in memory, want a chunk", n)
	}
	r.resides.file.blocks = 1
	if n := s.inputs.most(r); n != filedRows {
		t.Errorf("%d rows with a file, want %d", n, filedRows)
	}
}

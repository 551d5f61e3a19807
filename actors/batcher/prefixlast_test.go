package batcher

import (
	"fmt"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/plan"
	"github.com/shoal-llm/shoal/internal/engine/speculate"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// The last step of an answer fills a block and ends the answer: no later row commits its tokens. The next turn begins
// after this block, also with recurrent states.
func TestLastBlock(t *testing.T) {
	plain := geometry
	defer func() { geometry = plain }()
	for _, c := range []struct {
		name           string
		recurrent      bool
		sockets, steps int // steps: passes per plan; 1: drafts fill the block
		prompt, answer int
		want           int // tokens of the next turn that come from the cache
	}{
		{"drafts", false, 1, 1, 50, 81, 128},
		{"drafts, two sockets", false, 2, 1, 50, 81, 128},
		{"drafts, states", true, 1, 1, 50, 81, 128},
		{"drafts, states, two sockets", true, 2, 1, 50, 81, 128},
		{"passes, two sockets", false, 2, 8, 50, 79, 128},
		{"passes, states", true, 1, 8, 50, 79, 128},
		{"passes, states, two sockets", true, 2, 8, 50, 80, 128},
		{"the first block", true, 2, 1, 50, 16, 64},
		{"the block is full at the end", true, 2, 1, 50, 79, 128},
		{"the block is not full", true, 2, 1, 50, 78, 64},
		{"committed before", true, 2, 1, 50, 90, 128},
	} {
		t.Run(c.name, func(t *testing.T) {
			if geometry = plain; c.recurrent {
				geometry = recurrent()
			}
			out := newClient(t)
			s := testState(t, func(cfg *Config) {
				if cfg.DecodeSteps = c.steps; c.steps == 1 {
					cfg.Guess = func(id string, position int) (draft []int32) {
						for i := range speculate.MaxDraft {
							draft = append(draft, modelToken(id, position+i-len(out.specs[id].Prompt)))
						}
						return draft
					}
				}
			})
			var sockets []Socket
			for i, heads := range []tensor.Span{{Lo: 0, Hi: 1}, {Lo: 1, Hi: 4}}[2-c.sockets:] {
				if c.sockets == 1 {
					heads.Lo = 0
				}
				sockets = append(sockets, Socket{ID: fmt.Sprint(i), Budget: block * 1000, Heads: heads})
			}
			at := newCluster(t, 1, sockets)
			defer at.close()
			disk := &disks{texts: map[plan.Key][]int32{}}
			disk.forget()
			var flight *plan.Plan
			step := func(in Input) {
				e := s.Step(in)
				out.take(e)
				checkLedger(t, s)
				disk.asked = append(disk.asked, e.Disk...)
				for _, d := range e.Disk {
					for _, id := range d.Blocks {
						disk.coming[id] = true
					}
				}
				at.keep(e.Keep)
				at.release(e.Release)
				flight = e.Start
			}
			run := func(id string, prompt []int32, tokens int) {
				out.specs[id] = &Spec{ID: id, Prompt: prompt, MaxTokens: tokens, IgnoreEOS: true, Sampling: greedy, PromptLogprobs: -1,
					Speculate: speculate.Off, Policy: kvcache.Full()}
				for step(Submit{*out.specs[id]}); flight != nil; {
					d := at.run(flight, out.specs)
					d.Micros = 1000 * int64(flight.PassCount())
					step(d)
				}
				for len(disk.asked) > 0 {
					d := disk.asked[0]
					disk.asked = disk.asked[1:]
					step(DiskDone{Number: d.Number, Blocks: disk.fetch(at, &d, len(d.Keys))})
				}
			}
			step(Placed{Epoch: 1, Sockets: sockets})
			text := prompt("p", c.prompt)
			run("a", text, c.answer)
			for i := range c.answer {
				text = append(text, modelToken("a", i))
			}
			run("b", append(text, prompt("q", 30)...), 2)
			if got := at.warm; got != c.want {
				t.Errorf("%d of %d tokens came from the cache, want %d", got, len(text), c.want)
			}
		})
	}
}

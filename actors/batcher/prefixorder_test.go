package batcher

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/sampler"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// TestGrouped runs jobs about several texts in random order, with memory for one and a half texts.
// Most must find their text in the cache, none may be passed too often, and requests may pass
// others of the same priority only.
func TestGrouped(t *testing.T) {
	for _, jobs := range []bool{false, true} {
		t.Run(fmt.Sprint("jobs ", jobs), func(t *testing.T) { grouped(t, jobs) })
	}
}

func grouped(t *testing.T, jobs bool) {
	const texts, each, blocks = 8, 20, 8
	s := testState(t, func(c *Config) { c.ContextLimit, c.TokenBudget, c.Chunk, c.MaxWaiting = 4000, 512, 256, 1000 })
	rng := rand.New(rand.NewPCG(7, 19))
	order, read := []string{}, 0
	at := map[string]int{}
	one, _ := kvcache.SegmentBytes(geometry, geometry.KVHeads)
	for i, n := range rng.Perm(texts * each) {
		id := fmt.Sprintf("%d of text %d", n/texts, n%texts)
		at[id] = i
		spec := Spec{ID: id, MaxTokens: 1, Sampling: greedy, Policy: kvcache.Full(), PromptLogprobs: -1, Accepted: jobs, Priority: i % 2}
		spec.Prompt = begin(prompt(fmt.Sprint("text ", n%texts), blocks*tensor.BlockSlots+10), id, blocks*tensor.BlockSlots)
		if e := s.Step(Submit{spec}); len(e.Rejects) > 0 {
			t.Fatalf("%+v", e.Rejects)
		}
	}
	e := s.Step(Placed{Epoch: 1,
		Sockets: []Socket{{ID: "n", Budget: one * (blocks*3/2 + 2), Heads: tensor.Span{Lo: 0, Hi: geometry.KVHeads}}}})
	for e.Start != nil {
		d := StepDone{Epoch: 1, Step: e.Start.Step}
		for _, o := range e.Start.Open {
			order = append(order, o.ID)
			read += o.Read - len(o.Prefix)
		}
		for _, c := range e.Start.Chunks {
			d.Results = append(d.Results, Result{Seq: c.Seq, Samples: []sampler.Result{{Token: 9}}})
		}
		e = s.Step(d)
		checkLedger(t, s)
	}
	if len(order) != texts*each {
		t.Fatalf("%d of %d were admitted", len(order), texts*each)
	}
	most := 0
	for i, id := range order {
		passed := 0
		for _, before := range order[:i] {
			switch {
			case at[before]%2 > at[id]%2:
				t.Errorf("%q was passed by %q of another priority", id, before)
			case at[before]%2 == at[id]%2 && at[before] > at[id]:
				passed++
			}
		}
		most = max(most, passed)
	}
	all := texts * each * (blocks*tensor.BlockSlots + 10)
	t.Logf("%d of %d tokens were read, the most often passed was passed %d times", read, all, most)
	bound, part := maxPassed, 3
	if jobs {
		bound, part = maxPassedJobs, 6
	}
	if most > bound || most == 0 || read > all/part {
		t.Errorf("%d of %d tokens were read, one was passed %d times", read, all, most)
	}
}

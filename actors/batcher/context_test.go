package batcher

import (
	"fmt"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/kvpolicy"
	"github.com/shoal-llm/shoal/internal/engine/plan"
	"github.com/shoal-llm/shoal/internal/engine/sampler"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// A held context serves forks. The ledger books shared bytes once, and the context does not count as a
// running sequence. It is preempted for a request that does not fit otherwise, is read again
// afterwards, and ends with the server.
func TestContextsYield(t *testing.T) {
	s := testState(t, func(c *Config) { c.TokenBudget, c.Chunk, c.MaxRunning, c.NoPrefixCache = 200, 100, 1, true })
	out := newClient(t)
	context, alone := prompt("a text", 200), kvcache.ResidentBytes(geometry, 200, 200, squeezed)
	sockets := []Socket{{ID: "n", Budget: kvcache.HandoverBytes(geometry, 4, 200, squeezed) + alone, Heads: tensor.Span{Lo: 0, Hi: 4}}}
	at := newCluster(t, 1, sockets)
	defer func() { at.close() }()
	var flight *plan.Plan // the plan of the step that the last input was about
	run := func(in Input, until func() bool) {
		e := s.Step(in)
		if e.Start == nil {
			e.Start, flight = flight, nil
		}
		for steps := 0; ; steps++ {
			out.take(e)
			at.release(e.Release)
			checkLedger(t, s)
			if until() {
				flight = e.Start
				return
			}
			if e.Start == nil || steps > 500 {
				t.Fatalf("stuck after %d steps: %+v", steps, s.Snapshot())
			}
			d := at.run(e.Start, out.specs)
			if booked := s.ledger.sockets[0].reserved; d.Used[0] > booked {
				t.Fatalf("%d bytes are used, %d booked", d.Used[0], booked)
			}
			e = s.Step(d)
		}
	}
	submit := func(spec Spec) Submit {
		spec.Sampling, spec.PromptLogprobs = greedy, -1
		if spec.Policy == nil {
			spec.Policy = squeezed
		}
		out.specs[spec.ID] = &spec
		return Submit{spec}
	}
	rests := func() bool {
		v := s.Snapshot()
		return !v.InFlight && len(v.Running) == 1 && v.Running[0].State == "context"
	}
	over := func(id string) func() bool {
		return func() bool { _, over := out.finished[id]; return over }
	}
	s.Step(Placed{Epoch: 1, Sockets: sockets})
	run(submit(Spec{ID: "context", Prompt: context, MaxTokens: 1, Context: 200, Hold: true}), rests)
	for i := range 3 {
		id := fmt.Sprint("fork", i)
		run(submit(Spec{ID: id, Prompt: append(context[:200:200], prompt(id, 20)...), MaxTokens: 5, Context: 200}), over(id))
		if at.forks != i+1 {
			t.Fatalf("%d forks of %d", at.forks, i+1)
		}
	}
	for _, other := range []Spec{{Salt: "another's"}, {NoCache: true}, {Policy: kvcache.Full()}} {
		other.ID, other.Prompt, other.MaxTokens = fmt.Sprint(other.Salt, other.NoCache), append(context[:200:200], prompt("x", 20)...), 2
		if other.Policy == nil {
			other.Policy, other.Context = squeezed, 200
		}
		if run(submit(other), over(other.ID)); at.forks != 3 {
			t.Fatalf("%s is a fork of a context that it may not share", other.ID)
		}
	}
	run(Tick{1}, rests)
	if booked := s.ledger.sockets[0].reserved; booked != alone {
		t.Errorf("%d bytes are booked for a context, want %d", booked, alone)
	}
	next, held := at.inherit(2, sockets, []int{0}) // it runs alone: no step opens it before another sequence opens
	at = next
	run(Placed{Epoch: 2, Sockets: sockets, Held: held}, rests)
	if run(submit(Spec{ID: "later", Prompt: append(context[:200:200], prompt("later", 20)...), MaxTokens: 5, Context: 200}),
		over("later")); at.forks != 1 {
		t.Fatalf("%d forks of a context that outlived its epoch", at.forks)
	}
	before := s.requests["context"].preempted
	run(submit(Spec{ID: "large", Prompt: prompt("large", 300), MaxTokens: 5}), over("large"))
	if _, ended := out.finished["context"]; ended || s.requests["context"].preempted != before+1 {
		t.Errorf("the context was preempted %d times", s.requests["context"].preempted)
	}
	run(Tick{2}, rests)
	run(Drain{}, s.Idle)
	if f := out.finished["context"]; f.Reason != ReasonCancelled {
		t.Errorf("%+v", f)
	}
	for _, bad := range []Spec{{Context: 30}, {Context: 5, Hold: true, MaxTokens: 1}, {Context: 20, Hold: true, MaxTokens: 2}, {Context: -1}} {
		bad.ID, bad.Prompt = "bad", context[:20]
		if e := s.Step(submit(bad)); len(e.Rejects) != 1 || e.Rejects[0].Code != CodeInvalid {
			t.Errorf("%+v: %+v", bad, e.Rejects)
		}
	}
}

// A prompt that is clustered is first read up to the end of its clusters. Then come the pieces: small
// ones while others decode, larger ones alone. Then come its last chunk and the pieces of the
// hand-over, which ends with the first token.
func TestClusteringBesideStreams(t *testing.T) {
	big := kvcache.Geometry{Layers: 16, KVHeads: 8, Group: 4, Layout: tensor.KVLayout{Type: tensor.BF16, KDim: 64, VDim: 64}}
	s := testState(t, func(c *Config) {
		c.Geometry, c.TokenBudget, c.Chunk, c.NoPrefixCache, c.ContextLimit = big, 2048, 512, true, 40000
	})
	policy, err := kvpolicy.Parse("squeezed")
	if err != nil {
		t.Fatal(err)
	}
	const length = 20000
	s.Step(Placed{Epoch: 1, Sockets: []Socket{{ID: "n", Budget: 1 << 40, Heads: tensor.Span{Lo: 0, Hi: 8}}}})
	submit := func(spec Spec) Effects {
		spec.Sampling, spec.PromptLogprobs = greedy, -1
		return s.Step(Submit{spec})
	}
	e := submit(Spec{ID: "stream", Prompt: prompt("x", 5), MaxTokens: 300, Policy: kvcache.Full(), IgnoreEOS: true})
	submit(Spec{ID: "text", Prompt: prompt("y", length), MaxTokens: 2, Policy: policy, Context: length})
	x := kvcache.IndexWorkOf(big, length, policy)
	done, read, beside, alone, moves, steps, late := 0, 0, 0, 0, 0, 0, false
	for ; e.Start != nil && steps < 3000; steps++ {
		p := e.Start
		d := StepDone{Epoch: p.Epoch, Step: p.Step}
		for _, i := range p.Index {
			want, work := x.After, x.Work
			if i.From >= x.Before {
				want, work, moves = length, x.Move, moves+1
			}
			if i.From != done || read != want || (i.From < x.Before) != (i.From+i.Pieces <= x.Before) {
				t.Fatalf("pieces from %d on, %d more, %d are done, %d of %d tokens are read", i.From, i.Pieces, done, read, want)
			}
			done += i.Pieces
			if work := int64(i.Pieces) * work * 8; p.Tokens() > 0 {
				if beside = max(beside, i.Pieces); work > piecesShared && i.Pieces > 1 {
					t.Errorf("%d pieces in a step with other rows", i.Pieces)
				}
			} else if alone = max(alone, i.Pieces); work > piecesAlone && i.Pieces > 1 {
				t.Errorf("%d pieces in a step without other rows", i.Pieces)
			}
		}
		for _, c := range p.Chunks {
			if c.Seq == 2 {
				if read = c.Start + len(c.Tokens); c.Last || read == length && done != x.Before || c.Start < x.After && read > x.After {
					t.Errorf("chunk [%d,%d), last %v, after %d pieces of %d", c.Start, read, c.Last, done, x.Pieces)
				}
			}
			if c.Sample {
				d.Results = append(d.Results, Result{Seq: c.Seq, Samples: []sampler.Result{{Token: 1}}})
			}
		}
		for _, c := range p.Decode {
			d.Results = append(d.Results, Result{Seq: c.Seq, Samples: []sampler.Result{{Token: 1}}})
		}
		e = s.Step(d)
		for _, m := range e.Emits {
			if m.ID == "text" && done < x.Pieces {
				t.Fatalf("a token of the text after %d pieces of %d", done, x.Pieces)
			}
		}
		if done == x.Before && !late { // before the last chunk
			late = true
			submit(Spec{ID: "late", Prompt: prompt("z", 5), MaxTokens: 100, Policy: kvcache.Full(), IgnoreEOS: true})
		}
	}
	if done != x.Pieces || read != length || beside == 0 || alone <= beside || moves < 3 || len(e.Finishes) != 1 || !s.Idle() {
		t.Errorf("%d pieces of %d in %d steps of the hand-over, %d next to a stream, %d alone, %d tokens read in %d steps, %+v",
			done, x.Pieces, moves, beside, alone, read, steps, e.Finishes)
	}
}

// TestEqualContexts: two fixed contexts have the same text, and one of them is evicted. It is read again, and has neither a
// row nor a token after its text.
func TestEqualContexts(t *testing.T) {
	s := testState(t, func(c *Config) { c.NoPrefixCache = true })
	out := newClient(t)
	sockets := []Socket{{ID: "a", Budget: 400 * block, Heads: tensor.Span{Lo: 0, Hi: 4}}}
	at := newCluster(t, 1, sockets)
	defer at.close()
	var e Effects
	run := func(in Input) {
		e = s.Step(in)
		for {
			out.take(e)
			at.release(e.Release)
			checkLedger(t, s)
			if e.Start == nil {
				return
			}
			e = s.Step(at.run(e.Start, out.specs))
		}
	}
	run(Placed{Epoch: 1, Sockets: sockets})
	for _, id := range []string{"one", "two"} {
		out.specs[id] = &Spec{ID: id, Prompt: prompt("text", 64), MaxTokens: 1, Context: 64, Hold: true, Policy: squeezed, Sampling: greedy,
			PromptLogprobs: -1, IgnoreEOS: true}
		run(Submit{*out.specs[id]})
	}
	s.preempt(s.running[1])
	run(Tick{1})
	if len(s.running) != 2 || len(s.waiting) > 0 {
		t.Errorf("%+v", s.Snapshot())
	}
}

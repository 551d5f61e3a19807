package batcher

import (
	"fmt"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// TestReplicasThatCannotBeMade: every step fails that makes a replica, as when the copy lacks a recurrent
// state. All requests get their tokens, few steps fail, and replicas are made again once that works.
func TestReplicasThatCannotBeMade(t *testing.T) {
	s := testState(t, func(c *Config) { c.MaxRunning, c.Replicas = 4, 1 })
	out := newClient(t)
	sockets := []Socket{
		{ID: "a", Budget: 400 * block, Heads: tensor.Span{Lo: 0, Hi: 2}},
		{ID: "b", Budget: 400 * block, Heads: tensor.Span{Lo: 2, Hi: 4}},
	}
	at, epoch, now := newCluster(t, 1, sockets), uint32(1), int64(0)
	defer func() { at.close() }()
	failed, copied, works := 0, 0, false
	run := func(in Input) {
		e := s.Step(in)
		for steps := 0; ; steps++ {
			out.take(e)
			at.release(e.Release)
			checkLedger(t, s)
			p := e.Start
			switch {
			case p == nil:
				return
			case steps > 500:
				t.Fatalf("no end after %d steps, %d of which failed", steps, failed)
			case len(p.Copy) > 0 && !works:
				failed++
				out.take(s.Step(StepFailed{Epoch: p.Epoch, Step: p.Step, Reason: "a recurrent state is missing"}))
				epoch++
				next, held := at.inherit(epoch, sockets, []int{0, 1})
				at = next
				e = s.Step(Placed{Epoch: epoch, Sockets: sockets, Held: held})
				continue
			}
			copied += len(p.Copy)
			e = s.Step(at.run(p, out.specs))
		}
	}
	run(Placed{Epoch: 1, Sockets: sockets})
	ask := func(id string) {
		t.Helper()
		spec := Spec{ID: id, Prompt: prompt(id, 30), MaxTokens: 20, Policy: kvcache.Full(), Sampling: greedy, PromptLogprobs: -1, IgnoreEOS: true}
		out.specs[id] = &spec
		run(Submit{spec})
		if f := out.finished[id]; f.Reason != ReasonLength || f.Output != 20 {
			t.Fatalf("%s: %+v after %d failed steps", id, f, failed)
		}
	}
	for i := range 20 {
		ask(fmt.Sprint("soon", i))
	}
	if failed != 1 {
		t.Fatalf("%d steps failed while replicas rest", failed)
	}
	for i := range 20 { // 10 minutes
		now += 30_000
		run(Tick{now})
		ask(fmt.Sprint("later", i))
	}
	if failed < 3 || failed > 6 {
		t.Fatalf("%d steps failed in 10 minutes", failed)
	}
	works = true
	now += 3_600_000
	run(Tick{now})
	ask("works")
	ask("works too")
	if copied != 2 {
		t.Fatalf("%d replicas were made", copied)
	}
}

// TestReplicasAfterLostNode: a step that makes a replica fails because its node is lost. The next placement has no such
// node, and makes the replica at once.
func TestReplicasAfterLostNode(t *testing.T) {
	s := testState(t, func(c *Config) { c.Replicas = 1 })
	sockets := []Socket{
		{ID: "a", Budget: 400 * block, Heads: tensor.Span{Lo: 0, Hi: 2}},
		{ID: "b", Budget: 400 * block, Heads: tensor.Span{Lo: 2, Hi: 3}},
		{ID: "c", Budget: 400 * block, Heads: tensor.Span{Lo: 3, Hi: 4}},
	}
	spec := Spec{ID: "r", Prompt: prompt("r", 30), MaxTokens: 20, Policy: kvcache.Full(), Sampling: greedy, PromptLogprobs: -1,
		IgnoreEOS: true}
	out := newClient(t)
	out.specs["r"] = &spec
	at := newCluster(t, 1, sockets)
	defer func() { at.close() }()
	s.Step(Placed{Epoch: 1, Sockets: sockets})
	e := s.Step(Submit{spec})
	for len(e.Start.Copy) == 0 {
		e = s.Step(at.run(e.Start, out.specs))
	}
	s.Step(StepFailed{Epoch: 1, Step: e.Start.Step, Reason: "a node is lost"})
	left := []Socket{sockets[0], {ID: "b", Budget: 400 * block, Heads: tensor.Span{Lo: 2, Hi: 4}}}
	next, held := at.inherit(2, left, []int{0, 1})
	at = next
	e = s.Step(Placed{Epoch: 2, Sockets: left, Held: held})
	for steps := 0; len(e.Start.Copy) == 0; steps++ {
		e = s.Step(at.run(e.Start, out.specs))
		if e.Start == nil {
			t.Fatalf("no replica in %d steps after a node was lost", steps)
		}
	}
}

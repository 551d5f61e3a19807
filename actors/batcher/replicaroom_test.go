package batcher

import (
	"slices"
	"testing"

	"github.com/shoal-llm/shoal/actors/batcher/saved"
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/kvpolicy"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// TestReplicasMakeRoom: a request is admitted in the same step with and without replicas, because replicas use only
// memory that no sequence needs. Each size of the sockets leaves another amount of memory next to the replica.
func TestReplicasMakeRoom(t *testing.T) {
	dropped := 0
	for blocks := int64(4); blocks < 24; blocks++ {
		var admitted [2]bool
		for replicas := range admitted {
			s := testState(t, func(c *Config) { c.Replicas = replicas })
			sockets := []Socket{
				{ID: "a", Budget: blocks * block, Heads: tensor.Span{Lo: 0, Hi: 2}},
				{ID: "b", Budget: blocks * block, Heads: tensor.Span{Lo: 2, Hi: 4}},
			}
			out, at := newClient(t), newCluster(t, 1, sockets)
			for _, id := range []string{"first", "second"} {
				out.specs[id] = &Spec{ID: id, Prompt: prompt(id, 60), MaxTokens: 60, Policy: kvcache.Full(), Sampling: greedy, PromptLogprobs: -1,
					IgnoreEOS: true}
			}
			s.Step(Placed{Epoch: 1, Sockets: sockets})
			e := s.Step(Submit{*out.specs["first"]})
			if len(e.Rejects) > 0 {
				continue
			}
			step := func(in Input) {
				e = s.Step(in)
				out.take(e)
				at.release(e.Release)
				checkLedger(t, s)
			}
			for len(s.requests["first"].out) < 10 {
				step(at.run(e.Start, out.specs))
			}
			copied := s.running[0].resides.replica != none
			p := e.Start
			step(Submit{*out.specs["second"]})
			step(at.run(p, out.specs))
			for _, o := range e.Start.Open {
				admitted[replicas] = admitted[replicas] || o.ID == "second"
			}
			if copied && len(e.Start.DropReplica) > 0 {
				dropped++
			}
			for e.Start != nil {
				step(at.run(e.Start, out.specs))
			}
			if a, b := out.finished["first"], out.finished["second"]; a.Output != 60 || b.Output != 60 {
				t.Errorf("%d blocks: %+v, %+v", blocks, a, b)
			}
			at.close()
		}
		if admitted[0] != admitted[1] {
			t.Errorf("%d blocks: the second request is admitted %v without and %v with replicas", blocks, admitted[0], admitted[1])
		}
	}
	if dropped == 0 {
		t.Error("no replica was dropped for a request")
	}
}

// TestTurnWaitsWithReplica: the next turn of a session waits until another idle cache is in a file, because its owner lacks
// memory for a row. Until the turn begins, the ledger counts the replica of the session, which its socket still has.
func TestTurnWaitsWithReplica(t *testing.T) {
	policy, err := kvpolicy.Parse("streaming:sink=4,recent=60,positions=cache")
	if err != nil {
		t.Fatal(err)
	}
	waited := 0
	for output := 1; output < 70; output++ {
		s := testState(t, func(c *Config) { c.Replicas, c.IdleMillis = 1, 1<<40 })
		sockets := []Socket{
			{ID: "a", Budget: 100 * block, Heads: tensor.Span{Lo: 0, Hi: 2}, Scratch: 1 << 20},
			{ID: "b", Budget: 400 * block, Heads: tensor.Span{Lo: 2, Hi: 4}, Scratch: 1 << 20},
		}
		out, at := newClient(t), newCluster(t, 1, sockets)
		var e Effects
		step := func(in Input) {
			e = s.Step(in)
			out.take(e)
			at.release(e.Release)
			checkLedger(t, s)
			for rank := range sockets {
				if used, booked := at.arenas[rank].Used(), s.ledger.sockets[rank].reserved+s.ledger.sockets[rank].Shared; used > booked {
					t.Fatalf("%d tokens: rank %d uses %d bytes, %d are booked", output, rank, used, booked)
				}
			}
		}
		step(Placed{Epoch: 1, Sockets: sockets})
		turn := func(id, session string, text []int32) {
			out.specs[id] = &Spec{ID: id, Session: session, SessionMillis: 1 << 40, Prompt: text, Context: 60, MaxTokens: output,
				Policy: policy, Sampling: greedy, PromptLogprobs: -1, IgnoreEOS: true}
			step(Submit{*out.specs[id]})
			for e.Start != nil || len(e.Saved) > 0 {
				if len(e.Saved) > 0 && e.Saved[0].Do == saved.Find {
					step(SavedDone{Number: e.Saved[0].Number})
					continue
				}
				if e.Start == nil {
					break
				}
				step(at.run(e.Start, out.specs))
			}
		}
		turn("x1", "x", prompt("x1", 60))
		turn("y1", "y", prompt("y1", 60))
		turn("z1", "z", prompt("z1", 60))
		v := s.running[len(s.running)-1]
		if v.Session != "x" || !v.idle || v.resides.replica == none {
			continue
		}
		for rank := range s.ledger.sockets {
			s.ledger.sockets[rank].Budget = s.ledger.sockets[rank].reserved
		}
		text := slices.Clone(v.Prompt)
		for k := range output {
			text = append(text, modelToken("x1", k))
		}
		turn("x2", "x", append(text, prompt("x2", 5)...))
		if r := s.requests["x2"]; r != nil && r.phase == waiting && v.idle {
			waited++
		}
		at.close()
	}
	if waited == 0 {
		t.Error("no turn waited for another cache")
	}
}

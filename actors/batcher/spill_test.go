package batcher

import (
	"errors"
	"maps"
	"slices"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/plan"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// noFile is a file whose pages are never read, because the simulation has no attention.
type noFile struct{}

func (noFile) Read([]int64, int, func(int, []byte) error) error { return errors.New("test: no pages") }
func (noFile) Close()                                           {}

// spill takes orders, writes the rows some steps later, and loses some of the files.
func (c *cluster) spill(p *plan.Plan, done *StepDone) {
	for _, f := range p.Spill {
		q := c.seqs[f.Seq]
		if q == nil || q.own == nil || !q.own.Sealed() || q.owner != f.Owner || q.ordered > 0 || f.Blocks*64 > q.own.Tokens() {
			c.t.Fatalf("%+v is ordered for a cache that does not exist or was ordered before", f)
		}
		q.ordered = f.Blocks
	}
	for _, seq := range slices.Sorted(maps.Keys(c.seqs)) {
		q := c.seqs[seq]
		if q.held || q.own == nil || !q.own.Sealed() {
			continue
		}
		if q.ordered > 0 && q.own.Spilled() == 0 && (p.Step+seq)%3 == 0 {
			buf := make([]byte, kvcache.FileBytes(geometry, q.ordered, q.open.Policy))
			c.must(q.own.Spill(noFile{}, q.ordered, kvcache.PageSums(nil, geometry, q.open.Policy, buf)), "%d blocks to a file", q.ordered)
			done.Spilled = append(done.Spilled, plan.Spill{Seq: seq, Owner: q.owner, Blocks: q.ordered})
			c.spills++
		}
		if q.own.Spilled() > 0 && (p.Step+seq)%17 == 0 && slices.ContainsFunc(p.Decode, func(d plan.Run) bool { return d.Seq == seq }) {
			done.Lost = append(done.Lost, seq)
			c.lost++
		}
	}
}

// paged and recalled are policies whose rows can be in a file. recalled also reorders the prompt's rows.
var paged, recalled = parsed("quest:page=16,budget=32"), parsed("snapstream:sink=4,recent=8,topk=12,obs=4,pool=3,recall=16")

// inClusters is a policy that selects single slots. Rows of its clustered tokens can be in a file.
var inClusters = parsed("squeezed:clusters=0.05,sparsity=0.95,tail=9,obs=7")

// A sequence moves to a file once, when another waits for memory and the disk has room. Its memory
// is free when the owner reports it. A sequence whose file is lost is read again, stays in memory,
// and continues with the next token.
func TestSpill(t *testing.T) {
	for _, policy := range []*kvcache.Policy{paged, inClusters, ringed} {
		t.Run(policy.Spec(), func(t *testing.T) { testSpill(t, policy) })
	}
}

func testSpill(t *testing.T, policy *kvcache.Policy) {
	whole, resident := kvcache.HandoverBytes(geometry, geometry.KVHeads, 400, policy), kvcache.ResidentBytes(geometry, 400, 400, policy)
	file := kvcache.FileBytes(geometry, 6, policy)
	for _, c := range []struct {
		name    string
		scratch int64
		orders  int
		cache   bool
	}{
		{"no disk", 0, 0, false},
		{"room for one", 2*file - 1, 1, false},
		{"room for all", 10 * file, 2, false},
		{"with the prefix cache", 10 * file, 2, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := testState(t, func(c *Config) { c.TokenBudget, c.Chunk = 500, 450 })
			if !c.cache {
				s.prefix.off = true
			}
			out := newClient(t)
			sockets := []Socket{{ID: "n1", Budget: whole + resident*15/8, Heads: tensor.Span{Hi: geometry.KVHeads}, Scratch: c.scratch}}
			at := newCluster(t, 1, sockets)
			defer at.close()
			e := s.Step(Placed{Epoch: 1, Sockets: sockets})
			for _, id := range []string{"a", "b", "c"} {
				spec := Spec{ID: id, Prompt: prompt(id, 400), MaxTokens: 60, Policy: policy, Sampling: greedy, PromptLogprobs: -1, Speculate: "off"}
				out.specs[id], out.tokens[id] = &spec, 0
				if more := s.Step(Submit{spec}); more.Start != nil {
					e = more
				}
			}
			orders, together := 0, 0
			for steps := 0; !s.Idle(); steps++ {
				out.take(e)
				checkLedger(t, s)
				if files := s.ledger.sockets[0].files; files > c.scratch {
					t.Fatalf("%d bytes of files of %d", files, c.scratch)
				}
				if e.Start == nil || steps > 2000 {
					t.Fatalf("stuck: %+v", s.Snapshot())
				}
				orders += len(e.Start.Spill)
				together = max(together, len(s.running))
				e = s.Step(at.run(e.Start, out.specs))
			}
			out.take(e)
			if orders < c.orders || c.orders == 0 && orders > 0 || at.spills > orders {
				t.Errorf("%d orders, want %d; %d spills", orders, c.orders, at.spills)
			}
			if want := 2 + min(1, c.orders); together != want {
				t.Errorf("%d ran together, want %d", together, want)
			}
			if s.totals.Spilled != uint64(at.spills) || s.totals.Lost != uint64(at.lost) {
				t.Errorf("%+v are counted of %d spills, %d lost", s.totals, at.spills, at.lost)
			}
		})
	}
}

// A cache whose rows are in a file, or move to one, is not forked: a request with the same context reads
// its text.
func TestSpilledHasNoFork(t *testing.T) {
	for _, short := range []bool{false, true} { // memory is short: another request waits
		s := testState(t, func(c *Config) { c.TokenBudget, c.Chunk, c.NoPrefixCache = 500, 450, true })
		out := newClient(t)
		budget := kvcache.HandoverBytes(geometry, geometry.KVHeads, 420, inClusters) + kvcache.ResidentBytes(geometry, 420, 420, inClusters)*3/4
		sockets := []Socket{{ID: "n1", Budget: budget, Heads: tensor.Span{Hi: geometry.KVHeads}, Scratch: 1 << 20}}
		at, found, moves := newCluster(t, 1, sockets), map[bool]int{}, 0
		e := s.Step(Placed{Epoch: 1, Sockets: sockets})
		submit := func(id, text string, tokens int) {
			spec := Spec{ID: id, Prompt: append(prompt(text, 400), prompt(id, 9)...), MaxTokens: tokens, Context: 400, Policy: inClusters,
				Sampling: greedy, PromptLogprobs: -1, Speculate: "off"}
			out.specs[id], out.tokens[id] = &spec, 0
			if more := s.Step(Submit{spec}); more.Start != nil {
				e = more
			}
		}
		submit("first", "a text", 200)
		for steps := 0; !s.Idle(); steps++ {
			switch {
			case steps == 20 && short:
				submit("other", "another text", 2)
			case steps == 30:
				submit("second", "a text", 20)
			}
			for _, v := range s.running {
				if v.ID == "first" && v.phase == decoding && !v.ended {
					inFile := v.resides.file.blocks > 0
					if s.contexts.offers(v, 400) == inFile {
						t.Fatalf("%d blocks are in a file, and others may begin as forks: %v", v.resides.file.blocks, !inFile)
					}
					found[inFile]++
					held := *v
					if held.Hold, held.out = true, nil; s.residency.canMove(&held, new(plan.Plan)) {
						t.Fatal("a context that is about to be held can go to a file")
					}
					if s.residency.canMove(v, new(plan.Plan)) {
						moves++
					}
				}
			}
			out.take(e)
			checkLedger(t, s)
			if e.Start == nil || steps > 2000 {
				t.Fatalf("no next step after %d steps: %+v", steps, s.Snapshot())
			}
			e = s.Step(at.run(e.Start, out.specs))
		}
		out.take(e)
		if (at.spills > 0) != short || (found[true] > 0) != short || found[false] == 0 || moves == 0 || !short && at.forks != 1 {
			t.Errorf("short of memory: %v; %d spills, %d forks, steps of the first sequence by place: %v", short, at.spills, at.forks, found)
		}
		at.close()
	}
}

// A cache with rows in a file, or on their way there, gets no replica: all rows would have to be
// read.
func TestSpilledHasNoReplica(t *testing.T) {
	s := testState(t, func(c *Config) { c.TokenBudget, c.Chunk, c.NoPrefixCache = 500, 450, true })
	sockets := []Socket{{ID: "n1", Budget: 1 << 20, Heads: tensor.Span{Hi: geometry.KVHeads}, Scratch: 1 << 20}, {ID: "n2", Budget: 1 << 20}}
	at := newCluster(t, 1, sockets)
	defer at.close()
	s.Step(Placed{Epoch: 1, Sockets: sockets})
	spec := Spec{ID: "a", Prompt: prompt("a", 400), MaxTokens: 60, Policy: paged, Sampling: greedy, PromptLogprobs: -1, Speculate: "off"}
	e := s.Step(Submit{spec})
	s.Step(at.run(e.Start, map[string]*Spec{"a": &spec}))
	s.cfg.Replicas = 1
	for _, ordered := range []bool{true, false} {
		r := s.running[0]
		if r.resides.file = (inFile{}); ordered {
			r.resides.file.blocks = 6
		}
		var p plan.Plan
		if s.residency.planReplicas(&p); len(p.Copy) == 1 == ordered {
			t.Errorf("ordered to a file %v, and copies: %+v", ordered, p.Copy)
		}
	}
}

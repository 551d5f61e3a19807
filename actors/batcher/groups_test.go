package batcher

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/shoal-llm/shoal/internal/engine/plan"
	"github.com/shoal-llm/shoal/internal/engine/sampler"
)

// sampledGroup is a group of sockets without memory: it returns the tokens and scores of each plan.
type sampledGroup struct {
	t      fataler
	s      *State
	out    *client
	ids    map[uint64]string // of open sequences
	flight *plan.Plan
}

// of returns the ID of the request for which a sequence runs.
func (g *sampledGroup) of(seq uint64) string {
	id, _, _ := strings.Cut(g.ids[seq], "~")
	return id
}

// result returns the results of a run of tokens up to a position.
func (g *sampledGroup) result(run *plan.Run, passes int) (r Result) {
	id := g.of(run.Seq)
	spec := g.out.specs[id]
	r.Seq = run.Seq
	end := run.Start + len(run.Tokens)
	if run.Sample {
		for at := run.Start + run.Known + 1; at < end+passes; at++ {
			r.Samples = append(r.Samples, sampler.Result{Token: modelToken(id, at-len(spec.Prompt))})
			if run.Prefill {
				r.Samples = []sampler.Result{{Token: modelToken(id, end-len(spec.Prompt))}}
			}
		}
	}
	for pos := run.Start + 1; run.PromptLogprobs >= 0 && pos <= end && pos < len(spec.Prompt); pos++ {
		r.Prompt = append(r.Prompt, PromptLogprob{Position: pos, Logprob: float32(-pos)})
	}
	return r
}

// run completes the step in flight.
func (g *sampledGroup) run() StepDone {
	p := g.flight
	g.flight = nil
	d := StepDone{Epoch: p.Epoch, Step: p.Step, Used: make([]int64, len(g.s.ledger.sockets))}
	for i := range p.Decode {
		d.Results = append(d.Results, g.result(&p.Decode[i], p.PassCount()))
	}
	for i := range p.Chunks {
		d.Results = append(d.Results, g.result(&p.Chunks[i], 1))
	}
	for i := range p.Sweeps {
		w := &p.Sweeps[i]
		d.Results = append(d.Results, g.result(&plan.Run{Seq: w.Seq, Start: w.Start, Tokens: w.Tokens, Sample: w.Sample, Prefill: true,
			PromptLogprobs: plan.None}, 1))
	}
	return d
}

// TestEverythingEndsInGroups: with a prefill and a decode group, all messages between them arrive in any order or not at
// all, reads and transfers fail, and both groups end their epochs. Each token arrives once, and every request ends. The
// prefill group then has no reads left.
func TestEverythingEndsInGroups(t *testing.T) {
	taken := 0
	rapid.Check(t, func(r *rapid.T) {
		out := newClient(r)
		config := func(c *Config) {
			c.MaxRunning = rapid.IntRange(1, 12).Draw(r, "max running")
			c.TokenBudget = c.MaxRunning + rapid.IntRange(1, 80).Draw(r, "spare tokens")
			c.Chunk = rapid.IntRange(1, c.TokenBudget).Draw(r, "chunk")
			c.MaxFailures, c.UnservedMillis = 1000, 1<<40
			c.PrefillHere = rapid.IntRange(0, 60).Draw(r, "prefill here")
			c.NoPrefixCache = rapid.IntRange(0, 3).Draw(r, "without the prefix cache") == 0
		}
		decode := &sampledGroup{t: r, s: testState(t, config), out: out, ids: map[uint64]string{}}
		reads := &sampledGroup{t: r, s: testState(t, config), out: out, ids: map[uint64]string{}}
		decode.s.ledger.firstLease, reads.s.ledger.firstLease = 8, 8
		var queue []func() // messages that have not arrived
		alive := map[uint64]string{}
		caches := map[uint64]bool{} // sequences whose cache a socket of the decode group keeps
		var step func(g *sampledGroup, in Input)
		step = func(g *sampledGroup, in Input) {
			e := g.s.Step(in)
			checkLedger(r, g.s)
			for _, f := range e.Faults {
				r.Fatalf("%+v", f)
			}
			if g == decode {
				for _, reject := range e.Rejects {
					delete(out.specs, reject.ID)
				}
				out.take(e)
			}
			for _, seq := range e.Release {
				delete(caches, seq)
			}
			for _, n := range e.Drops {
				id, lives := alive[n]
				if delete(alive, n); lives {
					queue = append(queue, func() { step(reads, Cancel{id}) })
				}
			}
			for _, spec := range e.Prefills {
				alive[spec.Prefill] = spec.ID
				queue = append(queue, func() {
					if alive[spec.Prefill] == "" {
						return
					}
					step(reads, Submit{spec})
				})
			}
			for _, reject := range e.Rejects {
				if _, number, ok := strings.Cut(reject.ID, "~"); g == reads && ok {
					var n uint64
					fmt.Sscan(number, &n)
					queue = append(queue, func() { step(decode, PrefillDone{Number: n, Err: reject.Message, Fault: true}) })
				}
			}
			for _, d := range e.Exports {
				queue = append(queue, func() { step(decode, d) })
			}
			for _, k := range e.Takes {
				queue = append(queue, func() {
					d := TakeDone{Number: k.Number}
					if rapid.IntRange(0, 4).Draw(r, "arrives") == 0 {
						d.Err = "test"
					} else {
						caches[k.Seq] = true
						taken++
					}
					step(decode, d)
				})
			}
			for _, l := range e.Adapters {
				epoch := g.s.epoch
				queue = append(queue, func() { step(g, AdapterDone{Epoch: epoch, ID: l.ID}) })
			}
			for _, o := range e.Saved {
				queue = append(queue, func() { step(g, SavedDone{Number: o.Number, Err: "test"}) })
			}
			p := e.Start
			if p == nil {
				return
			}
			if g.flight != nil {
				r.Fatalf("two steps in flight")
			}
			g.flight = p
			for _, seq := range p.Release {
				delete(g.ids, seq)
				delete(caches, seq)
			}
			for _, o := range p.Open {
				if g.ids[o.Seq] != "" && len(o.Resume) == 0 {
					r.Fatalf("%s opens sequence %d, which %s has", o.ID, o.Seq, g.ids[o.Seq])
				}
				g.ids[o.Seq] = o.ID
				if len(o.Resume) > 0 && o.Fork == 0 && !caches[o.Seq] {
					r.Fatalf("%s resumes with sequence %d, which no socket has", o.ID, o.Seq)
				}
				delete(caches, o.Seq)
			}
			for _, list := range [][]plan.Run{p.Decode, p.Chunks} {
				for _, run := range list {
					if g.ids[run.Seq] == "" {
						r.Fatalf("step %d has rows of sequence %d, which is not open", p.Step, run.Seq)
					}
				}
			}
		}
		epoch, now, n := uint32(0), int64(0), 0
		talks := map[string]*talk{}
		place := func(draw func() []Socket) {
			epoch++
			decode.flight, reads.flight = nil, nil
			clear(decode.ids)
			clear(reads.ids)
			clear(caches)
			with := rapid.IntRange(0, 3).Draw(r, "has a prefill group") > 0
			step(reads, Placed{Epoch: epoch, Sockets: draw()})
			step(decode, Placed{Epoch: epoch, Sockets: draw(), Prefill: with})
		}
		tight := func() []Socket { return drawSockets(r, 0) }
		arrive := func() {
			if len(queue) > 0 {
				at := rapid.IntRange(0, len(queue)-1).Draw(r, "message")
				do := queue[at]
				queue = slices.Delete(queue, at, at+1)
				do()
			}
		}
		end := func(g *sampledGroup) {
			if g.flight != nil {
				step(g, g.run())
			}
		}
		place(tight)
		var holds []string
		for range rapid.IntRange(5, 120).Draw(r, "actions") {
			switch rapid.SampledFrom([]string{"submit", "submit", "turn", "arrive", "arrive", "arrive", "decode", "decode", "decode", "read", "read",
				"read", "cancel", "fail", "place", "unplace", "hold", "tick", "unread", "end", "reset"}).Draw(r, "action") {
			case "submit":
				n++
				spec := drawSpec(r, fmt.Sprint("r", n), now)
				out.specs[spec.ID] = &spec
				out.tokens[spec.ID] = len(spec.Emitted)
				step(decode, Submit{spec})
			case "turn":
				n++
				if spec := drawTurn(r, talks, out, fmt.Sprint("r", n), now); spec != nil {
					out.specs[spec.ID] = spec
					step(decode, Submit{*spec})
				}
			case "arrive":
				arrive()
			case "decode":
				end(decode)
			case "read":
				end(reads)
			case "cancel":
				step(decode, Cancel{fmt.Sprint("r", rapid.IntRange(1, max(1, n)).Draw(r, "which"))})
			case "fail":
				if p := decode.flight; p != nil {
					decode.flight = nil
					step(decode, StepFailed{p.Epoch, p.Step, errStep.Error()})
					place(tight)
				}
			case "place":
				place(tight)
			case "unplace":
				decode.flight, reads.flight = nil, nil
				step(reads, Unplaced{"test"})
				step(decode, Unplaced{"test"})
			case "hold":
				n++
				spec := drawHold(r, fmt.Sprint("r", n), now)
				holds, out.specs[spec.ID] = append(holds, spec.ID), &spec
				step(decode, Submit{spec})
			case "tick":
				now += rapid.Int64Range(0, 4000).Draw(r, "millis")
				step(reads, Tick{now})
				step(decode, Tick{now})
			case "unread":
				step(decode, Unread{fmt.Sprint("r", rapid.IntRange(1, max(1, n)).Draw(r, "which")), rapid.Bool().Draw(r, "does not read")})
			case "end":
				step(decode, EndSession{rapid.SampledFrom(talkNames).Draw(r, "session")})
			case "reset":
				step(decode, ResetPrefixCache{})
			}
		}
		for _, id := range holds {
			step(decode, Cancel{id})
		}
		place(func() []Socket { return drawRoomy(r) })
		for id := range maps.Clone(out.specs) {
			step(decode, Unread{id, false})
		}
		for steps := 0; !decode.s.Idle() || !reads.s.Idle() || len(queue) > 0; steps++ {
			if steps > 1000*(n+1) {
				r.Fatalf("stuck: %+v\n%+v", decode.s.Snapshot(), reads.s.Snapshot())
			}
			arrive()
			end(decode)
			end(reads)
			if decode.flight == nil && reads.flight == nil && len(queue) == 0 {
				now += 500
				step(reads, Tick{now})
				step(decode, Tick{now})
			}
		}
		for id := range out.specs {
			if _, over := out.finished[id]; !over {
				r.Fatalf("%s has not ended", id)
			}
		}
		if len(alive) > 0 {
			r.Fatalf("reads %v were never dropped", alive)
		}
	})
	if taken == 0 && !t.Failed() {
		t.Error("no cache was taken")
	}
}

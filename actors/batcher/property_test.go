package batcher

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/shoal-llm/shoal/actors/batcher/booking"
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/states"
	"github.com/shoal-llm/shoal/internal/engine/lora"
	"github.com/shoal-llm/shoal/internal/engine/plan"
	"github.com/shoal-llm/shoal/internal/engine/sampler"
	"github.com/shoal-llm/shoal/internal/engine/speculate"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

var greedy = &sampler.Params{Logprobs: -1}

func drawSockets(r *rapid.T, least int64) []Socket {
	n := rapid.IntRange(1, 5).Draw(r, "sockets")
	cuts := []int{0, geometry.KVHeads}
	for range n - 1 {
		cuts = append(cuts, rapid.IntRange(0, geometry.KVHeads).Draw(r, "cut"))
	}
	slices.Sort(cuts)
	var sockets []Socket
	for i := range n {
		sockets = append(sockets, Socket{
			ID: fmt.Sprint("n", i+1), Heads: tensor.Span{Lo: cuts[i], Hi: cuts[i+1]},
			Budget:  int64(geometry.Layers) * (least + block*rapid.Int64Range(0, 60).Draw(r, "budget")),
			Scratch: 1000 * rapid.Int64Range(0, 30).Draw(r, "scratch"), Adapters: rapid.Int64Range(0, 90).Draw(r, "adapters"),
		})
	}
	return sockets
}

// drawRoomy places a cluster that can take any request of drawSpec, but not on every owner.
func drawRoomy(r *rapid.T) []Socket {
	sockets := drawSockets(r, 0)
	roomy(sockets, rapid.IntRange(0, len(sockets)-1).Draw(r, "large"))
	return sockets
}

// roomy adds the memory that any request of drawSpec needs: one socket is large, and the others can
// at least read their heads and hold their recurrent states.
func roomy(sockets []Socket, large int) {
	for i := range sockets {
		sockets[i].Budget += int64(geometry.Layers)*block*20 + kvcache.StateBytes(geometry, geometry.KVHeads)
		sockets[i].Adapters += maxAdapter
	}
	sockets[large].Budget += int64(geometry.Layers) * block * 25
}

// The smallest cluster of drawRoomy takes the largest requests of drawSpec, in the geometry of every
// TestEverythingEnds. Otherwise those tests wait for a request that rightly never runs.
func TestRoomyTakesAnyRequest(t *testing.T) {
	plain := geometry
	defer func() { geometry = plain }()
	windows, layers := plain, plain
	windows.Layers, windows.Windows = 2, []int{40, 0}
	layers.Layers, layers.Windows = 3, []int{0, 40, 0}
	for name, g := range map[string]kvcache.Geometry{"plain": plain, "windows": windows, "layers": layers, "states": recurrent()} {
		geometry = g
		for cut := range g.KVHeads + 1 {
			s := testState(t, func(c *Config) {
				c.MaxWaiting, c.TokenBudget, c.Chunk = 10000, 92, 92
				if g.Layers > 2 {
					c.Hidden, c.Prefill, c.Chunk = hidden, booking.Auto, 40
				}
			})
			sockets := []Socket{{ID: "small", Heads: tensor.Span{Hi: cut}}, {ID: "large", Heads: tensor.Span{Lo: cut, Hi: g.KVHeads}}}
			roomy(sockets, 1)
			s.Step(Placed{Epoch: 1, Sockets: sockets})
			for _, p := range policies {
				for n := 200; n > 0; n -= 16 {
					for _, output := range []int{0, 1, 90} {
						spec := Spec{ID: fmt.Sprint(p.Spec(), " ", n, " ", output), Prompt: prompt("a text", n),
							MaxTokens: output, Policy: p, Sampling: greedy, PromptLogprobs: -1}
						for _, reject := range s.Step(Submit{spec}).Rejects {
							t.Fatalf("%s, %d heads on the small socket: %s", name, cut, reject.Message)
						}
					}
				}
			}
		}
	}
}

// drawSuccessors draws the old socket of each new one. Processes that continue have the same
// memory, in any order. Other sockets died or are new.
func drawSuccessors(r *rapid.T, at *cluster, sockets []Socket) []int {
	successors, left := make([]int, len(sockets)), []int{}
	for rank := range at.arenas {
		left = append(left, rank)
	}
	for i := range sockets {
		successors[i] = none
		if len(left) > 0 && rapid.IntRange(0, 3).Draw(r, "survives") > 0 {
			k := rapid.IntRange(0, len(left)-1).Draw(r, "was")
			if budget := at.arenas[left[k]].Budget(); budget >= sockets[i].Budget {
				successors[i], sockets[i].Budget = left[k], budget
				left = slices.Delete(left, k, k+1)
			}
		}
	}
	return successors
}

// policies are those of drawSpec.
var policies = []*kvcache.Policy{kvcache.Full(), kvcache.Streaming(4, 60), kvcache.Streaming(2, 20),
	squeezed, paged, recalled, factored, voting, summing, divided, repeated, ringed, ringedFactors}

func drawSpec(r *rapid.T, id string, now int64) Spec {
	p := Spec{ID: id, Speculate: rapid.SampledFrom([]speculate.Mode{"", speculate.Suffix, speculate.Model, "model:2"}).Draw(r, "drafts"),
		Sampling: greedy, Arrival: now, PromptLogprobs: rapid.IntRange(-1, 0).Draw(r, "prompt logprobs")}
	p.Prompt = prompt(rapid.SampledFrom([]string{id, "a text", "another"}).Draw(r, "text"), rapid.IntRange(1, 200).Draw(r, "prompt"))
	p.Prompt = begin(p.Prompt, id, rapid.IntRange(0, 200).Draw(r, "leaves the text"))
	p.NoCache, p.Salt = rapid.IntRange(0, 4).Draw(r, "no cache") == 0, rapid.SampledFrom([]string{"", "", "", "salt"}).Draw(r, "salt")
	p.Adapter = drawAdapter(r)
	p.MaxTokens = rapid.IntRange(0, 90).Draw(r, "max tokens")
	p.Policy = rapid.SampledFrom(policies).Draw(r, "policy")
	if p.Policy == squeezed {
		p.PromptLogprobs = -1 // refused
		p.Context = rapid.SampledFrom([]int{0, 1, len(p.Prompt) / 2, len(p.Prompt)}).Draw(r, "context")
	}
	p.Priority = rapid.IntRange(-1, 1).Draw(r, "priority")
	p.Accepted = rapid.Bool().Draw(r, "a job")
	if p.MaxTokens > 0 && rapid.Bool().Draw(r, "stops") {
		p.Stop = []int32{modelToken(id, rapid.IntRange(0, p.MaxTokens-1).Draw(r, "stop at"))}
	}
	if k := rapid.IntRange(0, 3).Draw(r, "taken over"); k == 0 && p.MaxTokens > 1 && p.Stop == nil {
		for i := range rapid.IntRange(1, p.MaxTokens-1).Draw(r, "emitted before") {
			p.Emitted = append(p.Emitted, modelToken(id, i))
		}
		p.Accepted = true
	}
	p.Open = p.MaxTokens > 0 && rapid.IntRange(0, 2).Draw(r, "open") == 0
	return p
}

// drawHold draws a fixed context.
func drawHold(r *rapid.T, id string, now int64) Spec {
	n := rapid.SampledFrom([]int{1, 1, 20, 100}).Draw(r, "context")
	return Spec{ID: id, Prompt: prompt("a text", n), MaxTokens: 1, Context: n, Hold: true, Policy: squeezed, Sampling: greedy,
		PromptLogprobs: -1, Arrival: now, Adapter: drawAdapter(r)}
}

// talk is a session whose turns drawTurn draws.
type talk struct {
	first   int     // tokens of the first prompt
	text    []int32 // prompts and answers of the turns that ended
	policy  *kvcache.Policy
	adapter Adapter
	turn    *Spec // the newest, if it is not in text
}

var talkNames = []string{"x", "y", "z"}

// savedLoads counts the caches that were read from files.
var savedLoads int

// drawTurn draws the next turn of a session. It returns nil if the last turn has not ended.
func drawTurn(r *rapid.T, talks map[string]*talk, out *client, id string, now int64) *Spec {
	name := rapid.SampledFrom(talkNames).Draw(r, "session")
	v := talks[name]
	if v != nil && v.turn != nil {
		f, over := out.finished[v.turn.ID]
		switch {
		case !over && out.specs[v.turn.ID] != nil:
			return nil
		case over && (f.Reason == ReasonLength || f.Reason == ReasonStop):
			v.text = v.turn.Prompt
			for i := range f.Output {
				v.text = append(v.text, modelToken(v.turn.ID, i))
			}
		}
		v.turn = nil
	}
	if v == nil || len(v.text) > 140 || len(v.text) == 0 {
		v = &talk{policy: rapid.SampledFrom(policies[1:]).Draw(r, "policy"), first: rapid.IntRange(1, 60).Draw(r, "first"),
			adapter: drawAdapter(r)}
		talks[name] = v
	}
	p := &Spec{ID: id, Session: name, SessionMillis: rapid.Int64Range(1, 30000).Draw(r, "lives"), Policy: v.policy, Sampling: greedy,
		Arrival: now, PromptLogprobs: -1, MaxTokens: rapid.IntRange(1, 20).Draw(r, "max tokens"), Context: v.first,
		Adapter: v.adapter}
	added := rapid.IntRange(1, 30).Draw(r, "added")
	if len(v.text) == 0 {
		added = v.first
	}
	p.Prompt = append(slices.Clone(v.text), prompt(id, added)...)
	p.NoCache = rapid.IntRange(0, 9).Draw(r, "no cache") == 0
	p.Open = rapid.Bool().Draw(r, "open")
	v.turn = p
	return p
}

// Under any sequence of events the ledger must be right, the real arenas must never refuse memory,
// every token must arrive once and in order, and every request must end.
func TestEverythingEnds(t *testing.T) {
	savedLoads = 0
	for range 20 { // few checks may load no cache from a file
		if everythingEnds(t); savedLoads > 0 || t.Failed() {
			break
		}
	}
	if savedLoads == 0 && !t.Failed() {
		t.Error("no turn began with a cache from a file")
	}
}

// TestEverythingEndsInWindows: the same where some layers attend to the newest tokens only.
func TestEverythingEndsInWindows(t *testing.T) {
	plain := geometry
	defer func() { geometry = plain }()
	geometry.Layers, geometry.Windows = 2, []int{40, 0}
	everythingEnds(t)
}

// recurrent is geometry with layers that have recurrent states.
func recurrent() kvcache.Geometry {
	g := geometry
	g.Recurrent = states.Shape{Layers: 2, KeyHeads: 4, ValueHeads: 8, KeyDim: 4, ValueDim: 16, Taps: 2}
	return g
}

// TestEverythingEndsWithStates: the same where some layers have recurrent states.
func TestEverythingEndsWithStates(t *testing.T) {
	plain := geometry
	defer func() { geometry = plain }()
	geometry = recurrent()
	everythingEnds(t)
}

func everythingEnds(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		out := newClient(r)
		s := testState(t, func(c *Config) {
			c.MaxRunning = rapid.IntRange(1, 12).Draw(r, "max running")
			c.TokenBudget = c.MaxRunning + rapid.IntRange(1, 80).Draw(r, "spare tokens")
			c.Chunk = rapid.IntRange(1, c.TokenBudget).Draw(r, "chunk")
			c.MaxFailures = 1000
			c.Replicas = rapid.IntRange(0, 1).Draw(r, "replicas")
			c.DecodeSteps = rapid.SampledFrom([]int{1, 1, 2, 8, 16}).Draw(r, "decode steps")
			if geometry.Layers > 2 {
				c.Hidden, c.Prefill = hidden, rapid.SampledFrom([]string{booking.Auto, booking.Layers}).Draw(r, "prefill")
				c.Chunk = min(c.Chunk, 40)
			}
			c.NoPrefixCache = rapid.IntRange(0, 3).Draw(r, "without the prefix cache") == 0
			if rapid.Bool().Draw(r, "speculates") {
				c.Guess = out.guess
			}
		})
		s.ledger.firstLease = 8
		var at *cluster
		defer func() {
			if at != nil {
				at.close()
			}
		}()
		var flight *plan.Plan
		var step func(in Input) Effects
		chunk := s.cfg.Chunk
		epoch, now := uint32(0), int64(0)
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(r, "seed"), 1))
		disk := &disks{coming: map[uint64]bool{}}
		files, talks := newIdleFiles(), map[string]*talk{}
		memory := &adapterMemory{t: r, loaded: map[lora.ID]bool{}}
		run := func() {
			p := flight
			flight = nil
			disk.begin(p)
			memory.begin(p, at, out.specs)
			d := at.run(p, out.specs)
			if s.cfg.DecodeSteps > 1 {
				d.Micros = 1000 * rapid.Int64Range(0, 20).Draw(r, "took")
			}
			step(d)
		}
		step = func(in Input) Effects {
			e := s.Step(in)
			disk.ask(e.Disk)
			files.ask(s, at, e.Saved)
			memory.change(epoch, e.Adapters, flight, at, out.specs)
			for _, reject := range e.Rejects {
				delete(out.specs, reject.ID)
			}
			out.take(e)
			checkLedger(r, s)
			if e.Release != nil && rapid.Bool().Draw(r, "release is heard") {
				at.keep(e.Keep)
				at.release(e.Release)
				at.evict(e.Evict)
				disk.evict(e.Evict)
			}
			if e.Broken != nil {
				flight = nil
			}
			if e.Start != nil {
				if flight != nil {
					r.Fatalf("two steps in flight")
				}
				flight = e.Start
				if n := flight.Tokens(); n == 0 && len(flight.Index)+len(flight.Sweeps) == 0 || n > s.cfg.TokenBudget {
					r.Fatalf("a step of %d tokens, the budget is %d", n, s.cfg.TokenBudget)
				}
				if n := flight.PassCount(); n > s.cfg.DecodeSteps {
					r.Fatalf("%d passes in a step, %d are allowed", n, s.cfg.DecodeSteps)
				}
				for _, w := range flight.Sweeps {
					most, layers := chunk*cmp.Or(geometry.Later, geometry.Layers), w.To-w.From
					if geometry.Later > 0 && w.From >= geometry.Later { // mostly keys and values
						most *= 4
					}
					if len(w.Tokens)*layers > max(most, chunk*layers) {
						r.Fatalf("%d tokens through %d layers, a step takes %d through all", len(w.Tokens), layers, chunk)
					}
				}
				for _, c := range flight.Chunks {
					if len(c.Tokens) > chunk {
						r.Fatalf("%d tokens of a prompt in a step, the placement allows %d", len(c.Tokens), chunk)
					}
				}
			}
			return e
		}
		place := func(sockets []Socket) {
			epoch++
			var held []Held
			if at == nil {
				at = newCluster(r, epoch, sockets)
			} else {
				at, held = at.inherit(epoch, sockets, drawSuccessors(r, at, sockets))
			}
			flight = nil
			disk.forget()
			clear(memory.loaded)
			of := rapid.IntRange(0, s.cfg.TokenBudget+1).Draw(r, "chunk of the placement")
			if of > 0 {
				chunk = of
			}
			step(Placed{Epoch: epoch, Sockets: sockets, Held: held, Chunk: of, MaxThreadShift: int(epoch) % 3})
		}
		n, holds := 0, []string(nil)
		for range rapid.IntRange(5, 120).Draw(r, "actions") {
			switch rapid.SampledFrom([]string{"submit", "submit", "done", "done", "done", "done", "cancel", "fail",
				"place", "unplace", "tick", "stale", "unread", "reset", "answer", "adapter", "adapter",
				"hold", "turn", "turn", "turn", "file", "file", "end", "advance", "advance", "restart"}).Draw(r, "action") {
			case "submit":
				n++
				spec := drawSpec(r, fmt.Sprint("r", n), now)
				out.specs[spec.ID], out.tokens[spec.ID] = &spec, len(spec.Emitted)
				step(Submit{spec})
			case "done":
				if flight != nil {
					run()
				}
			case "turn":
				if spec := drawTurn(r, talks, out, fmt.Sprint("r", n+1), now); spec != nil {
					n++
					out.specs[spec.ID] = spec
					step(Submit{*spec})
				}
			case "file":
				if d, ok := files.answer(s, at, rapid.IntRange(0, 7).Draw(r, "the disk fails") == 0); ok {
					step(d)
				}
			case "advance": // until most turns have ended
				for range 60 {
					if d, ok := files.answer(s, at, false); ok {
						step(d)
					} else if flight != nil {
						run()
					} else if s.placed {
						now += 100
						step(Tick{now})
					}
				}
			case "restart": // loses all memory; every session continues
				if at == nil {
					continue
				}
				place(drawRoomy(r))
				for range talkNames {
					if spec := drawTurn(r, talks, out, fmt.Sprint("r", n+1), now); spec != nil {
						n++
						out.specs[spec.ID] = spec
						step(Submit{*spec})
					}
				}
			case "end":
				step(EndSession{rapid.SampledFrom(talkNames).Draw(r, "session")})
			case "answer":
				if d, ok := disk.answer(at, rng); ok {
					step(d)
				}
			case "adapter":
				if d, ok := memory.answer(epoch, rapid.IntRange(0, 4).Draw(r, "loads") > 0); ok {
					step(d)
				}
			case "hold":
				n++
				spec := drawHold(r, fmt.Sprint("r", n), now)
				holds, out.specs[spec.ID] = append(holds, spec.ID), &spec
				step(Submit{spec})
			case "cancel":
				step(Cancel{fmt.Sprint("r", rapid.IntRange(1, max(1, n)).Draw(r, "which"))})
			case "fail":
				if p := flight; p != nil {
					if rapid.Bool().Draw(r, "the sockets did it") {
						at.run(p, out.specs)
					}
					step(StepFailed{p.Epoch, p.Step, errStep.Error()})
				}
			case "place":
				place(drawSockets(r, 0))
			case "unplace":
				flight = nil
				step(Unplaced{"test"})
			case "tick":
				now += rapid.Int64Range(0, 4000).Draw(r, "millis")
				step(Tick{now})
			case "unread":
				step(Unread{fmt.Sprint("r", rapid.IntRange(1, max(1, n)).Draw(r, "which")), rapid.Bool().Draw(r, "does not read")})
			case "reset":
				step(ResetPrefixCache{})
			case "stale":
				e := step(StepDone{Epoch: epoch - 1, Step: s.steps, Results: []Result{{Seq: 1}}})
				if e.Start != nil || e.Emits != nil {
					r.Fatalf("a stale result had an effect: %+v", e)
				}
			}
		}
		if rapid.IntRange(0, 2).Draw(r, "drains") == 0 {
			step(Drain{})
		}
		for _, id := range holds {
			step(Cancel{id})
		}
		// A cluster that fits every single request: all must end, with bounded work.
		place(drawRoomy(r))
		for id := range out.specs {
			step(Unread{id, false})
		}
		for steps := 0; !s.Idle(); steps++ {
			for tries := 0; flight == nil && tries < 300 && !s.Idle(); tries++ { // adapters are loaded first
				if d, ok := memory.answer(epoch, true); ok {
					step(d)
					continue
				}
				if d, ok := files.answer(s, at, false); ok {
					step(d)
					continue
				}
				now += 500
				step(Tick{now})
			}
			if s.Idle() {
				break
			}
			if flight == nil || steps > 400*(n+1) {
				r.Fatalf("stuck after %d steps: %+v", steps, s.Snapshot())
			}
			run()
			if d, ok := disk.answer(at, rng); ok {
				step(d)
			}
			if d, ok := files.answer(s, at, false); ok {
				step(d)
			}
		}
		for id := range out.specs {
			if _, over := out.finished[id]; !over {
				r.Fatalf("%s has not ended", id)
			}
		}
		if flight != nil {
			flight = nil
			step(StepFailed{epoch, s.steps, "the last step carried only requests that were cancelled"})
			return
		}
		step(EndSession{})
		savedLoads += files.loads
		for _, d := range disk.asked {
			step(DiskDone{Number: d.Number})
		}
		at.release(s.release.Items) // the last ones may not have arrived
		if len(at.seqs) > 0 {
			r.Fatalf("%d caches were never released", len(at.seqs))
		}
	})
}

// Requests of the same priority are admitted in the order of arrival, under any memory pressure.
func TestFirstComeFirstServed(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		// A request that waits for a text which another reads lets others pass.
		s, out := testState(t, func(c *Config) { c.NoPrefixCache = true }), newClient(r)
		at := newCluster(r, 1, drawRoomy(r))
		defer at.close()
		var sockets []Socket
		for i, a := range at.arenas {
			sockets = append(sockets, Socket{ID: fmt.Sprint(i), Budget: a.Budget(), Heads: at.spans[i]})
		}
		var want []string
		var flight *plan.Plan
		step := func(in Input) {
			e := s.Step(in)
			out.take(e)
			if len(e.Rejects) > 0 {
				r.Fatalf("rejected: %+v", e.Rejects)
			}
			at.release(e.Release)
			if e.Start != nil {
				flight = e.Start
			}
		}
		step(Placed{Epoch: 1, Sockets: sockets})
		todo := rapid.IntRange(1, 30).Draw(r, "requests")
		for todo > 0 || !s.Idle() {
			if todo > 0 && (flight == nil || rapid.IntRange(0, 2).Draw(r, "submit") == 0) {
				todo--
				spec := drawSpec(r, fmt.Sprint("r", todo), int64(len(want)))
				// equal priorities, and no request waits to start as a fork
				spec.Priority, spec.Accepted, spec.NoCache, spec.Adapter = 0, false, true, Adapter{}
				out.specs[spec.ID], out.tokens[spec.ID] = &spec, len(spec.Emitted)
				want = append(want, spec.ID)
				step(Submit{spec})
				continue
			}
			p := flight
			flight = nil
			step(at.run(p, out.specs))
		}
		want = slices.DeleteFunc(want, func(id string) bool { return !out.seen[id] }) // ended at Submit
		if !slices.Equal(out.opened, want) {
			r.Fatalf("admitted %v, arrived %v", out.opened, want)
		}
	})
}

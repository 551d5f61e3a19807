package batcher

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/shoal-llm/shoal/actors/batcher/booking"
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/kvpolicy"
	"github.com/shoal-llm/shoal/internal/engine/plan"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// holds returns the bytes that the stores of all sequences must have on each socket between two steps:
// their own, and shared blocks once.
func holds(s *State, at *cluster, p *plan.Plan) []int64 {
	bytes := make([]int64, len(s.ledger.sockets))
	for _, r := range holders(s) {
		cached := r.cached
		if r.ended && at.seqs[r.seq] != nil {
			cached = max(cached, at.seqs[r.seq].next)
			if own := at.seqs[r.seq].own; own != nil && own.Staged() == 0 { // the fetch of its blocks has committed them
				cached = own.Tokens()
			}
		}
		for _, d := range p.Decode { // its row was written although it had ended
			if d.Seq == r.seq {
				cached = max(cached, d.Start+1)
			}
		}
		if r.prefix.copy.booked {
			bytes[r.owner] += kvcache.StateBytes(geometry, geometry.KVHeads)
		}
		for i := range bytes {
			a := &s.ledger.sockets[i]
			switch {
			case r.phase == prefill:
				bytes[i] += kvcache.PrefillBytes(geometry, a.heads(), r.cached, r.Policy) +
					kvcache.StatisticsBytes(geometry, a.heads(), r.read, r.Policy) - int64(len(r.prefix.Blocks))*a.Block
			case i == r.owner:
				bytes[i] += kvcache.StepBytes(geometry, r.read, cached, max(1, r.staged), r.Policy) - int64(len(r.prefix.Blocks))*a.Block
			case i == r.resides.replica:
				bytes[i] += kvcache.StepBytes(geometry, r.read, cached, max(1, r.staged), r.Policy)
			}
		}
	}
	for i := range bytes {
		bytes[i] += s.ledger.sockets[i].Shared
	}
	return bytes
}

// TestPrefixLedger checks that after each of 10,000 steps with random hits, evictions, ends,
// failures and placements, the ledger has the same bytes as the arenas: in total, shared, and
// evictable.
func TestPrefixLedger(t *testing.T) { prefixLedger(t, 1) }

// TestPrefixLedgerWithStates: the same where a prompt starts only after a block with a snapshot of
// recurrent states.
func TestPrefixLedgerWithStates(t *testing.T) {
	plain := geometry
	defer func() { geometry = plain }()
	geometry = recurrent()
	prefixLedger(t, 2)
}

func prefixLedger(t *testing.T, seed uint64) {
	steps := 10_000
	if testing.Short() {
		steps = 4000
	}
	rng := rand.New(rand.NewPCG(19, seed))
	s := testState(t, func(c *Config) { c.MaxRunning, c.MaxFailures, c.Replicas = 6, 1000, 1 })
	out := newClient(t)
	var at *cluster
	defer func() { at.close() }()
	var flight *plan.Plan
	epoch, n, warm, evicted, spread, kept, summed, unsummed, snapshots, answers := uint32(0), 0, 0, 0, 0, 0, 0, 0, 0, 0
	h2o, err := kvpolicy.Parse("h2o:recent=20,topk=20")
	if err != nil {
		t.Fatal(err)
	}
	disk := &disks{texts: map[plan.Key][]int32{}}
	step := func(in Input) {
		e := s.Step(in)
		out.take(e)
		checkLedger(t, s)
		if e.Start != nil {
			flight = e.Start
			evicted += len(flight.Evict)
			for _, c := range flight.Chunks {
				if c.Sums {
					kept++
				}
				if c.Snapshot {
					snapshots++
				}
			}
		}
		at.keep(e.Keep)
		for _, k := range e.Keep {
			if k.Snapshot != 0 {
				answers++
			}
			disk.wrote(at, rng, k.Keys, k.Blocks)
		}
		at.release(e.Release)
		at.evict(e.Evict)
		disk.evict(e.Evict)
		disk.ask(e.Disk)
		for _, d := range e.Disk {
			if d.Seq != 0 {
				spread++
			}
		}
	}
	place := func() {
		epoch++
		var sockets []Socket
		for i, cut := range [][]int{{0, 4}, {0, 1, 4}, {0, 2, 2, 4}}[rng.IntN(3)][1:] {
			lo := 0
			if i > 0 {
				lo = sockets[i-1].Heads.Hi
			}
			sockets = append(sockets, Socket{ID: fmt.Sprint(i), Budget: block * int64(50+rng.IntN(60)), Heads: tensor.Span{Lo: lo, Hi: cut}})
		}
		if at != nil {
			summed, unsummed = summed+at.summed, unsummed+at.unsummed
			at.evict(slices.Collect(maps.Keys(at.blocks)))
			at.close()
		}
		at, flight = newCluster(t, epoch, sockets), nil
		disk.forget()
		step(Placed{Epoch: epoch, Sockets: sockets, Disk: rng.IntN(4) > 0})
	}
	place()
	for done := 0; done < steps; {
		switch k := rng.IntN(40); {
		case k == 0:
			step(ResetPrefixCache{})
		case k == 1 && n > 0:
			step(Cancel{fmt.Sprint("r", 1+rng.IntN(n))})
		case k == 2 && rng.IntN(10) == 0:
			place()
		case k < 6 && len(disk.asked) > 0 || flight == nil && len(disk.asked) > 0:
			if d, ok := disk.answer(at, rng); ok {
				step(d)
			}
		case k < 14 && len(s.waiting) < 5 || flight == nil:
			n++
			id := fmt.Sprint("r", n)
			p := prompt([]string{"a text", "another", "a third", id}[rng.IntN(4)], 1+rng.IntN(400))
			spec := Spec{ID: id, Prompt: begin(p, id, rng.IntN(500)), MaxTokens: 1 + rng.IntN(90), Sampling: greedy, PromptLogprobs: -1,
				Policy: []*kvcache.Policy{kvcache.Full(), kvcache.Streaming(4, 60), kvcache.Streaming(2, 20), h2o}[rng.IntN(4)]}
			out.specs[id] = &spec
			step(Submit{spec})
		default:
			p := flight
			flight = nil
			disk.begin(p)
			d := at.run(p, out.specs)
			for _, k := range p.Keep {
				if k.Snapshot != 0 {
					answers++
				}
				disk.wrote(at, rng, k.Keys, k.Blocks)
			}
			for _, c := range p.Chunks {
				disk.wrote(at, rng, c.Keys, c.Save)
				disk.wroteState(rng, &c)
			}
			s.out = Effects{}
			s.stepDone(d)
			out.take(s.out)
			want := holds(s, at, p)
			for i, a := range at.arenas {
				st, l := a.Stats(), s.ledger.sockets[i]
				booked, alone := disk.absent(s, at, i)
				if st.Used != want[i]-booked || st.Evictable != l.Evictable+alone || st.Used > l.reserved+l.Shared {
					t.Fatalf("after %d steps socket %d has %d bytes and %d to evict, the ledger %d (%d booked) and %d",
						done, i, st.Used, st.Evictable, want[i], l.reserved+l.Shared, l.Evictable)
				}
			}
			done, warm = done+1, max(warm, at.warm)
			pass := int64(1)
			switch slow := s.prefix.fetches.Slow(); {
			case slow && rng.IntN(4) == 0:
				pass = 40_000 // its blocks are requested again
			case !slow && rng.IntN(100) == 0:
				pass = 2500 // a disk is too slow
			}
			step(Tick{s.now + pass})
		}
	}
	t.Logf("sums were kept %d times, resumed on %d sockets, dropped %d times", kept, summed, unsummed)
	states := geometry.Recurrent.Layers > 0 // few prompts end where sums are then
	if total := s.prefix.tree.Totals; warm == 0 || kept == 0 || unsummed == 0 || evicted == 0 ||
		total.Hits == 0 || total.Restored == 0 || total.Late == 0 ||
		(snapshots > 0) != states || total.Answers == 0 || spread == 0 || summed == 0 && !states {
		t.Errorf("%d tokens found, %d blocks evicted, %+v: the test exercised nothing", warm, evicted, total)
	}
	if states && answers == 0 {
		t.Error("no answer had states")
	}
	t.Logf("%d snapshots, %d of answers", snapshots, answers)
	t.Logf("%d requests, %+v, %d blocks evicted, %d came from disks and owners, %d answers were to be spread",
		n, s.prefix.tree.Totals, evicted, disk.came, spread)
}

// A request that reads a block that was just added to the cache keeps its own rows until the step has
// completed. TestEverythingEnds found a plan that had already used that memory.
func TestReadTwice(t *testing.T) {
	s := testState(t, func(c *Config) { c.TokenBudget, c.Chunk = 200, 100 })
	out := newClient(t)
	at := newCluster(t, 1, []Socket{{ID: "n", Budget: 6 * 4 * block, Heads: tensor.Span{Lo: 0, Hi: 4}}})
	defer at.close()
	submit := func(id string) Effects {
		spec := Spec{ID: id, Prompt: prompt("a text", 65), MaxTokens: 1, Sampling: greedy, PromptLogprobs: 0, Policy: kvcache.Streaming(4, 20)}
		out.specs[id] = &spec
		return s.Step(Submit{spec})
	}
	e := s.Step(Placed{Epoch: 1, Sockets: []Socket{{ID: "n", Budget: 6 * 4 * block, Heads: tensor.Span{Lo: 0, Hi: 4}}}})
	for i := range 3 { // each computes every row, for its prompt's log-probabilities
		e = submit(fmt.Sprint("r", i))
		for e.Start != nil {
			if l, p := &s.ledger.sockets[0], e.Start; len(p.Chunks) > 0 {
				demand := booking.Demand{Policy: kvcache.Streaming(4, 20), Read: 65, Tokens: 65}
				need := demand.Bytes(geometry, l.heads(), true, l.Block)
				if i > 0 {
					need += l.Block // the cache's rows and its own
				}
				if l.reserved+l.Shared != need {
					t.Errorf("r%d: %d bytes are booked for a step that takes %d", i, l.reserved+l.Shared, need)
				}
			}
			d := at.run(e.Start, out.specs)
			e = s.Step(d)
			out.take(e)
			checkLedger(t, s)
		}
		at.release(e.Release)
	}
	if n := s.prefix.tree.Len(); n != 1 {
		t.Errorf("%d blocks of one text", n)
	}
}

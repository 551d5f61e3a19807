package batcher

import (
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/shoal-llm/shoal/actors/batcher/adapters"
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/lora"
	"github.com/shoal-llm/shoal/internal/engine/plan"
	"github.com/shoal-llm/shoal/internal/engine/sampler"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

const maxAdapter = 60 // bytes of the largest of drawAdapter

func drawAdapter(r *rapid.T) Adapter {
	n := rapid.SampledFrom([]int{0, 0, 1, 2, 3, 4, 5, 6}).Draw(r, "adapter")
	if n == 0 {
		return Adapter{}
	}
	return Adapter{ID: lora.ID{byte(n)}, Bytes: int64(10 * n)}
}

// adapterMemory is the memory for adapters of all sockets.
type adapterMemory struct {
	t       fataler
	loaded  map[lora.ID]bool
	pending []pendingLoad
}

type pendingLoad struct {
	epoch uint32
	adapters.Load
}

// change begins loads: the adapters that do not stay leave.
func (m *adapterMemory) change(epoch uint32, loads []adapters.Load, flight *plan.Plan, at *cluster, specs map[string]*Spec) {
	for _, l := range loads {
		m.pending = append(m.pending, pendingLoad{epoch, l})
		stays := map[lora.ID]bool{}
		for _, id := range l.Keep {
			stays[id] = true
		}
		if !stays[l.ID] {
			m.t.Fatalf("a load of %v does not keep it", l.ID)
		}
		for id := range m.loaded {
			if !stays[id] {
				delete(m.loaded, id)
			}
		}
	}
	if flight != nil {
		m.begin(flight, at, specs)
	}
}

// answer completes the oldest load.
func (m *adapterMemory) answer(epoch uint32, ok bool) (AdapterDone, bool) {
	if len(m.pending) == 0 {
		return AdapterDone{}, false
	}
	l := m.pending[0]
	m.pending = m.pending[1:]
	if !ok {
		return AdapterDone{Epoch: l.epoch, ID: l.ID, Err: "test"}, true
	}
	if l.epoch == epoch {
		m.loaded[l.ID] = true
	}
	return AdapterDone{Epoch: l.epoch, ID: l.ID}, true
}

// begin checks that the memory has the adapter of every sequence that a plan opens, and of every row.
func (m *adapterMemory) begin(p *plan.Plan, at *cluster, specs map[string]*Spec) {
	ids := map[uint64]string{}
	for seq, q := range at.seqs {
		ids[seq] = q.open.ID
	}
	for _, o := range p.Open {
		if o.Adapter != specs[o.ID].Adapter.ID {
			m.t.Fatalf("%s opens with adapter %v", o.ID, o.Adapter)
		}
		if o.Adapter != (lora.ID{}) && !m.loaded[o.Adapter] {
			m.t.Fatalf("step %d opens %s, whose adapter is not in memory", p.Step, o.ID)
		}
		ids[o.Seq] = o.ID
	}
	for _, list := range [][]plan.Run{p.Decode, p.Chunks} {
		for _, run := range list {
			if s := specs[ids[run.Seq]]; s != nil && s.Adapter.ID != (lora.ID{}) && !m.loaded[s.Adapter.ID] {
				m.t.Fatalf("step %d has rows of %s, whose adapter is not in memory", p.Step, s.ID)
			}
		}
	}
}

func adaptedSocket(adapters int64) Placed {
	return Placed{Epoch: 1, Sockets: []Socket{{ID: "n", Budget: 1 << 30, Heads: tensor.Span{Lo: 0, Hi: geometry.KVHeads}, Adapters: adapters}}}
}

func adaptedSpec(id string, adapter byte, bytes int64) Submit {
	return Submit{Spec{ID: id, Prompt: prompt("the same text", 130), MaxTokens: 4, Sampling: greedy,
		Policy: kvcache.Full(), PromptLogprobs: -1, Adapter: Adapter{ID: lora.ID{adapter}, Bytes: bytes}}}
}

// TestAdapterIsLoadedFirst: a request waits for its adapter, and requests without one do not. Texts read
// with another adapter are not in its prefix cache.
func TestAdapterIsLoadedFirst(t *testing.T) {
	s := testState(t, nil)
	s.Step(adaptedSocket(100))
	e := s.Step(adaptedSpec("a", 1, 60))
	if e.Start != nil || len(e.Adapters) != 1 || e.Adapters[0].ID != (lora.ID{1}) {
		t.Fatalf("effects %+v, want the load of the adapter and no step", e)
	}
	e = s.Step(adaptedSpec("plain", 0, 0))
	if e.Start == nil || len(e.Start.Open) != 1 || e.Start.Open[0].ID != "plain" {
		t.Fatalf("start %+v, want the request without an adapter", e.Start)
	}
	e = s.Step(AdapterDone{Epoch: 1, ID: lora.ID{1}})
	for e.Start == nil || len(e.Start.Open) == 0 || e.Start.Open[0].ID != "a" {
		p := s.flight.plan
		e = s.Step(StepDone{Epoch: 1, Step: p.Step, Results: resultsOf(p)})
		if e.Start == nil {
			t.Fatal("the request with the adapter never starts")
		}
	}
	if o := e.Start.Open[0]; o.Adapter != (lora.ID{1}) || len(o.Shared) != 0 {
		t.Errorf("opens %+v: want its adapter, and no blocks of the same text without it", o)
	}
}

// resultsOf samples a token for every row with samples.
func resultsOf(p *plan.Plan) (out []Result) {
	for _, list := range [][]plan.Run{p.Decode, p.Chunks} {
		for _, run := range list {
			if run.Sample {
				out = append(out, Result{Seq: run.Seq, Samples: []sampler.Result{{Token: 7}}})
			}
		}
	}
	return out
}

// TestAdapterRefused: a request with an adapter that no node can hold is refused with the sizes. If an
// adapter cannot be loaded, its requests end with the reason.
func TestAdapterRefused(t *testing.T) {
	s := testState(t, nil)
	s.Step(adaptedSocket(100))
	if e := s.Step(adaptedSpec("big", 1, 101)); len(e.Rejects) != 1 || e.Rejects[0].Code != CodeBudget ||
		!strings.Contains(e.Rejects[0].Message, "takes 101 bytes") {
		t.Errorf("%+v, want a refusal with both numbers", e.Rejects)
	}
	e := s.Step(adaptedSpec("bad", 2, 50))
	for now := int64(0); len(e.Finishes) == 0; now += 100 {
		if now > 100_000 {
			t.Fatal("the request never ends")
		}
		if len(e.Adapters) > 0 {
			e = s.Step(AdapterDone{Epoch: 1, ID: lora.ID{2}, Err: "the disk is full"})
			continue
		}
		e = s.Step(Tick{Now: now})
	}
	if f := e.Finishes[0]; f.Code != CodeAdapter || !strings.Contains(f.Message, "the disk is full") {
		t.Errorf("finish %+v", f)
	}
}

// TestAdaptersTakeTurns: all requests end if they have more adapters than memory can hold.
func TestAdaptersTakeTurns(t *testing.T) {
	s := testState(t, nil)
	s.Step(adaptedSocket(100))
	var order []string
	take := func(e Effects) {
		for _, f := range e.Finishes {
			order = append(order, f.ID)
		}
	}
	var loads []adapters.Load
	step := func(in Input) {
		e := s.Step(in)
		take(e)
		loads = append(loads, e.Adapters...)
	}
	for i := range 6 {
		step(adaptedSpec(fmt.Sprint(i), byte(1+i%3), 45))
	}
	for n := 0; !s.Idle(); n++ {
		switch {
		case n > 1000:
			t.Fatalf("%v have ended after 1000 events", order)
		case len(loads) > 0:
			id := loads[0].ID
			loads = loads[1:]
			step(AdapterDone{Epoch: 1, ID: id})
		case s.flight != nil:
			p := s.flight.plan
			step(StepDone{Epoch: 1, Step: p.Step, Results: resultsOf(p)})
		default:
			t.Fatalf("nothing happens after %v", order)
		}
	}
	if len(order) != 6 {
		t.Errorf("only %v have ended", order)
	}
}

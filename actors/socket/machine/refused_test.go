package machine

import (
	"math"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/kvpolicy"
	"github.com/shoal-llm/shoal/internal/engine/plan"
	"github.com/shoal-llm/shoal/internal/engine/sampler"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// TestForksAreRefused checks that a fork is refused unless its cache equals one built from its own
// prompt.
func TestForksAreRefused(t *testing.T) {
	q := Sequence{Owner: 1, Policy: parsed(t, "squeezed"), Prompt: 100, HandedOver: true}
	o := &plan.Open{Seq: 2, Fork: 1}
	if err := checkFork(o, &q, &q); err != nil {
		t.Error(err)
	}
	for name, change := range map[string]func(from *Sequence, o *plan.Open){
		"another policy": func(f *Sequence, _ *plan.Open) { f.Policy = parsed(t, "squeezed:sparsity=0.8") },
		"another owner":  func(f *Sequence, _ *plan.Open) { f.Owner = 0 },
		"another length": func(f *Sequence, _ *plan.Open) { f.Prompt = 99 },
		"in prefill":     func(f *Sequence, _ *plan.Open) { f.HandedOver = false },
		"itself":         func(_ *Sequence, o *plan.Open) { o.Fork = 2 },
	} {
		from, o := q, &plan.Open{Seq: 2, Fork: 1}
		if change(&from, o); checkFork(o, &q, &from) == nil {
			t.Errorf("a fork of a sequence that is %s is accepted", name)
		}
	}
	if checkFork(o, &q, nil) == nil {
		t.Error("a fork of a missing sequence is accepted")
	}
}

// TestIndexIsRefused checks that the pieces of an index come in order, once each, after their
// tokens were read.
func TestIndexIsRefused(t *testing.T) {
	m := Machine{limits: Limits{Layers: 2, Layout: tensor.KVLayout{Type: tensor.F32, KDim: 8, VDim: 8}}}
	q := Sequence{Policy: parsed(t, "squeezed"), Prompt: 400, Read: 300, Indexed: 5}
	if err := m.checkIndex(&plan.Plan{Step: 7}, &plan.Index{Seq: 2, From: 5, Pieces: 67},
		&Sequence{Policy: q.Policy, Prompt: q.Prompt, Read: q.Read, Indexed: 5}); err != nil {
		t.Error(err)
	}
	if err := m.checkIndex(&plan.Plan{Step: 7}, &plan.Index{Seq: 2, From: 72, Pieces: 9},
		&Sequence{Policy: q.Policy, Prompt: q.Prompt, Read: q.Prompt, Indexed: 72}); err != nil {
		t.Error(err)
	}
	for name, change := range map[string]func(q *Sequence, x *plan.Index){
		"no row left":                  func(q *Sequence, x *plan.Index) { q.Read, q.Indexed, x.From = 399, 72, 72 },
		"more than moves":              func(q *Sequence, x *plan.Index) { q.Read, q.Indexed, x.From, x.Pieces = 400, 72, 72, 10 },
		"both kinds":                   func(q *Sequence, x *plan.Index) { q.Read, x.Pieces = 400, 68 },
		"no piece":                     func(_ *Sequence, x *plan.Index) { x.Pieces = 0 },
		"a piece twice":                func(_ *Sequence, x *plan.Index) { x.From = 4 },
		"too many":                     func(_ *Sequence, x *plan.Index) { x.Pieces = 68 },
		"as many as wraps":             func(_ *Sequence, x *plan.Index) { x.Pieces = math.MaxUint32 },
		"unread":                       func(q *Sequence, _ *plan.Index) { q.Read = 299 },
		"another policy":               func(q *Sequence, _ *plan.Index) { q.Policy = kvcache.Full() },
		"handed over":                  func(q *Sequence, _ *plan.Index) { q.HandedOver = true },
		"in the same step as its rows": func(q *Sequence, _ *plan.Index) { q.lastStep = 7 },
	} {
		q, x := q, &plan.Index{Seq: 2, From: 5, Pieces: 1}
		if change(&q, x); m.checkIndex(&plan.Plan{Step: 7}, x, &q) == nil {
			t.Errorf("%s: the index is accepted", name)
		}
	}
	if m.checkIndex(&plan.Plan{}, &plan.Index{Pieces: 1}, nil) == nil {
		t.Error("an index of a missing sequence is accepted")
	}
}

// TestScoredStepsOfOneToken checks that a policy with attention scores refuses several tokens of a
// sequence in one step if layers share caches.
func TestScoredStepsOfOneToken(t *testing.T) {
	for policy, refused := range map[string]bool{"h2o:recent=20,topk=20,step=1": true, "streaming:sink=4,recent=28": false} {
		m := NewMachine()
		m.limits = Limits{Ranks: 1, Vocab: 10, Positions: 100, Rows: 8, Across: true}
		q, err := m.checkOpen(&plan.Open{Seq: 1, Read: 4, Policy: parsed(t, policy),
			Sampling: &sampler.Params{TopP: 1, RepetitionPenalty: 1}, Replica: plan.None}, &sequences{})
		if err != nil {
			t.Fatal(err)
		}
		q.Read, q.HandedOver = 4, true
		err = m.checkRun(&plan.Plan{Step: 1}, &plan.Run{Seq: 1, Start: 4, Tokens: []int32{1, 2}, PromptLogprobs: plan.None}, q)
		if (err != nil) != refused {
			t.Errorf("%s: %v", policy, err)
		}
	}
}

func parsed(t *testing.T, spec string) *kvcache.Policy {
	t.Helper()
	p, err := kvpolicy.Parse(spec)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

package machine

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/kvcache/kvpolicy"
	"github.com/shoal-llm/shoal/internal/engine/plan"
	"github.com/shoal-llm/shoal/internal/proto"
)

// taker returns a machine in epoch 3 that may take caches.
func taker() *Machine {
	m := NewMachine()
	m.Epoch, m.Phase = 3, Ready
	m.limits = Limits{Rank: 1, Ranks: 2, Positions: 1000, Rows: 64, Vocab: 100, Parse: kvpolicy.Parse}
	return m
}

func take(epoch uint32, seq uint64) *proto.TakeRequest {
	return &proto.TakeRequest{Epoch: epoch, Seq: seq, Tokens: 200, Policy: "full", Source: 9}
}

// TestTake: a plan can resume with a cache that was taken, in its epoch only and not after its release, for
// any order of the messages.
func TestTake(t *testing.T) {
	m := taker()
	for what, x := range map[string]struct {
		change func(*proto.TakeRequest)
		want   string
	}{
		"an older epoch":     {func(r *proto.TakeRequest) { r.Epoch = 2 }, "stale epoch"},
		"a newer epoch":      {func(r *proto.TakeRequest) { r.Epoch = 4 }, "stale epoch"},
		"no sequence":        {func(r *proto.TakeRequest) { r.Seq = 0 }, "released"},
		"no tokens":          {func(r *proto.TakeRequest) { r.Tokens = 0 }, "0 tokens"},
		"too many tokens":    {func(r *proto.TakeRequest) { r.Tokens = 1001 }, "1 to 1000"},
		"an unknown policy":  {func(r *proto.TakeRequest) { r.Policy = "best" }, "best"},
		"half of an adapter": {func(r *proto.TakeRequest) { r.Adapter = []byte{1} }, "1"},
	} {
		r := take(3, 5)
		x.change(r)
		if _, err := m.Take(r); err == nil || !strings.Contains(err.Error(), x.want) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := m.Take(take(3, 5)); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Take(take(3, 5)); err == nil {
		t.Error("a cache is taken twice")
	}
	if err := m.Taken(3, 5, true); err != nil || m.kept[5] == nil || m.kept[5].Tokens != 200 {
		t.Errorf("the cache is not kept: %v", err)
	}
	if _, err := m.Take(take(3, 5)); err == nil {
		t.Error("a cache replaces one that is here")
	}

	if _, err := m.Take(take(3, 6)); err != nil { // released on its way
		t.Fatal(err)
	}
	effects, err := m.Release(&proto.ReleaseRequest{Epoch: 3, Seqs: []uint64{6, 7}})
	if err != nil || !slices.ContainsFunc(effects, func(e Effect) bool { return e.Do == DoRelease && e.Seq == 6 }) {
		t.Errorf("a release on the way: %v, %v", effects, err)
	}
	if err := m.Taken(3, 6, true); !errors.Is(err, ErrStaleEpoch) || m.kept[6] != nil {
		t.Errorf("a released cache arrives: %v", err)
	}
	if _, err := m.Take(take(3, 7)); !errors.Is(err, ErrStaleEpoch) { // released before
		t.Errorf("a released cache is taken: %v", err)
	}

	for seq := uint64(100); len(m.taking.all) < plan.MaxTaking; seq++ {
		if _, err := m.Take(take(3, seq)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := m.Take(take(3, 1000)); err == nil {
		t.Errorf("more than %d caches are taken at once", plan.MaxTaking)
	}
	m.Phase = Loading
	if effects := m.leave(true); len(effects) != plan.MaxTaking {
		t.Errorf("the end of an epoch releases %d of %d caches on their way", len(effects), plan.MaxTaking)
	}
	if err := m.Taken(3, 100, true); !errors.Is(err, ErrStaleEpoch) {
		t.Errorf("a cache outlives its epoch on its way: %v", err)
	}
}

// TestLend: a socket lends only a complete cache of a prompt that it owns, in its epoch.
func TestLend(t *testing.T) {
	m := taker()
	p, err := kvpolicy.Parse("streaming:sink=4,recent=60")
	if err != nil {
		t.Fatal(err)
	}
	r := func() *proto.RowsRequest {
		return &proto.RowsRequest{Epoch: 3, Seq: 9, Tokens: 200, Policy: p.Spec()}
	}
	if m.Lend(r()) == nil {
		t.Error("an unknown sequence")
	}
	good := Sequence{Owner: 1, Replica: plan.None, Prompt: 200, Read: 200, HandedOver: true, Policy: p}
	m.seqs[9] = &good
	if err := m.Lend(r()); err != nil {
		t.Fatal(err)
	}
	for what, change := range map[string]func(q *Sequence, r *proto.RowsRequest){
		"an older epoch":   func(_ *Sequence, r *proto.RowsRequest) { r.Epoch = 2 },
		"another length":   func(_ *Sequence, r *proto.RowsRequest) { r.Tokens = 199 },
		"another policy":   func(_ *Sequence, r *proto.RowsRequest) { r.Policy = "full" },
		"another's":        func(q *Sequence, _ *proto.RowsRequest) { q.Owner = 0 },
		"in prefill":       func(q *Sequence, _ *proto.RowsRequest) { q.HandedOver = false },
		"in decode":        func(q *Sequence, _ *proto.RowsRequest) { q.Read = 201 },
		"in a decode step": func(q *Sequence, _ *proto.RowsRequest) { q.Staged = 1 },
	} {
		q, x := good, r()
		change(&q, x)
		m.seqs[9] = &q
		if m.Lend(x) == nil {
			t.Errorf("%s: rows are lent", what)
		}
	}
}

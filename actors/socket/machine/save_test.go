package machine

import (
	"errors"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/plan"
	"github.com/shoal-llm/shoal/internal/proto"
)

// TestSave: a socket accepts only orders of its epoch, for an idle cache that it owns or kept. It commits the
// tokens that count, once.
func TestSave(t *testing.T) {
	m := taker()
	r := func(seq uint64, tokens uint32) *proto.SavedRequest {
		return &proto.SavedRequest{Epoch: 3, Seq: seq, Tokens: tokens, Key: make([]byte, 32), Digest: make([]byte, 32), Millis: 1000}
	}
	idle := func(owner int) *Sequence {
		return &Sequence{Owner: owner, Replica: plan.None, Prompt: 50, Read: 60, Staged: 2, HandedOver: true}
	}
	m.seqs[1], m.seqs[2], m.seqs[3], m.seqs[4] = idle(1), idle(0), idle(1), idle(1)
	m.seqs[3].inFlight, m.seqs[4].HandedOver = true, false
	m.kept[5] = &Kept{Prompt: 50, Tokens: 60, Staged: 1}
	for what, x := range map[string]struct {
		r    *proto.SavedRequest
		edit func(*proto.SavedRequest)
		want string
	}{
		"another epoch":       {r(1, 61), func(r *proto.SavedRequest) { r.Epoch = 2 }, "stale epoch"},
		"half of a key":       {r(1, 61), func(r *proto.SavedRequest) { r.Key = r.Key[:16] }, "a key of 16"},
		"no digest":           {r(1, 61), func(r *proto.SavedRequest) { r.Digest = nil }, "a digest of 0"},
		"a session that ends": {r(1, 61), func(r *proto.SavedRequest) { r.Millis = 0 }, "is over"},
		"another's cache":     {r(2, 61), nil, "no idle cache"},
		"in the step":         {r(3, 61), nil, "no idle cache"},
		"a prompt":            {r(4, 61), nil, "no idle cache"},
		"no sequence":         {r(9, 61), nil, "no cache"},
		"too few tokens":      {r(1, 59), nil, "has 60 tokens and 2"},
		"too many tokens":     {r(1, 63), nil, "has 60 tokens and 2"},
	} {
		if x.edit != nil {
			x.edit(x.r)
		}
		if effects, err := m.Save(x.r); err == nil || !strings.Contains(err.Error(), x.want) || effects != nil {
			t.Errorf("%s: %v, %v", what, effects, err)
		}
	}
	for _, seq := range []uint64{1, 5} {
		for range 2 { // the second order finds the tokens committed
			effects, err := m.Save(r(seq, 61))
			if err != nil || len(effects) != 1 || effects[0].Do != DoCommit || effects[0].Seq != seq || effects[0].Tokens != 61 {
				t.Errorf("sequence %d: %v, %v", seq, effects, err)
			}
		}
	}
	if q, k := m.seqs[1], m.kept[5]; q.Read != 61 || q.Staged != 0 || k.Tokens != 61 || k.Staged != 0 {
		t.Errorf("%+v, %+v", q, k)
	}
}

// TestDrop: a socket does not remove files by an order of an earlier epoch.
func TestDrop(t *testing.T) {
	m := taker()
	for epoch := range uint32(5) {
		if err := m.Drop(&proto.SavedRequest{Epoch: epoch, Drop: true}); errors.Is(err, ErrStaleEpoch) != (epoch < 3) {
			t.Errorf("an order of epoch %d at epoch %d: %v", epoch, m.Epoch, err)
		}
	}
}

// TestTakeSaved: a cache from a file may have more tokens than its prompt. Under a policy with positions in
// the cache, it may have more tokens than the context.
func TestTakeSaved(t *testing.T) {
	m := taker()
	r := func(seq uint64, prompt, tokens uint32, policy string) *proto.TakeRequest {
		return &proto.TakeRequest{Epoch: 3, Seq: seq, Prompt: prompt, Tokens: tokens, Policy: policy, Saved: make([]byte, 32),
			Digest: make([]byte, 32)}
	}
	const endless = "streaming:sink=4,recent=60,positions=cache"
	for what, x := range map[string]struct {
		r    *proto.TakeRequest
		want string
	}{
		"beyond the context":        {r(1, 50, 1001, "tova:size=64"), "1 to 1000"},
		"no prompt":                 {r(1, 0, 100, endless), "a prompt of 0"},
		"more prompt than tokens":   {r(1, 101, 100, endless), "a prompt of 101"},
		"a prompt beyond a context": {r(1, 1001, 5000, endless), "a prompt of 1001"},
		"half of a key": {&proto.TakeRequest{Epoch: 3, Seq: 1, Prompt: 1, Tokens: 2, Policy: endless, Saved: []byte{1}, Digest: make([]byte, 32)},
			"a key of 1"},
	} {
		if _, err := m.Take(x.r); err == nil || !strings.Contains(err.Error(), x.want) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := m.Take(r(7, 50, 5000, endless)); err != nil {
		t.Fatal(err)
	}
	if err := m.Taken(3, 7, true); err != nil || m.kept[7] == nil || m.kept[7].Prompt != 50 || m.kept[7].Tokens != 5000 {
		t.Errorf("%v, %+v", err, m.kept[7])
	}
}

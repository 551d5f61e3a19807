package topology

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"
)

// twoModels is an authority of a cluster with a second, smaller model.
func twoModels(nodes int) *Authority {
	small := testShape()
	small.Heads, small.KVHeads = 2, 1
	return NewAuthority(AuthorityConfig{Shape: testShape(), Mapping: Gather, Nodes: nodes, Settle: time.Second,
		Backoff: time.Second, ModelHash: "m",
		Others: []ModelRules{{Shape: small, Mapping: Reduce, ModelHash: "n"}}})
}

// Both models are placed in one epoch, over the same members in the same order.
func TestTwoModelsShareAPlacement(t *testing.T) {
	a := twoModels(3)
	for i, id := range []string{"a", "b", "c"} {
		a.Up(Node{ID: id, Incarnation: uint64(i + 1), ModelHash: "n", OtherHashes: []string{"m"}}) // the order of a node's models does not matter
	}
	p, _ := a.Placement()
	if len(p.Others) != 1 || p.Epoch != 1 || p.Of(0).Mapping != Gather || p.Of(1).Mapping != Reduce ||
		p.Of(1).Epoch != 1 || p.Of(0).Others != nil {
		t.Fatalf("placement %+v", p)
	}
	for model, rules := range a.cfg.Models() {
		if err := p.Of(model).Check(rules.Shape); err != nil {
			t.Errorf("model %d: %v", model, err)
		}
		ids := []string{}
		for _, s := range p.Of(model).Slices {
			ids = append(ids, s.ID)
		}
		if !slices.Equal(ids, []string{"a", "b", "c"}) {
			t.Errorf("model %d is on %v", model, ids)
		}
	}
	text, err := json.Marshal(p)
	var back Placement
	if err != nil || json.Unmarshal(text, &back) != nil || len(back.Others) != 1 || back.Of(1).Slices[2] != p.Of(1).Slices[2] {
		t.Errorf("the record is %s, which reads as %+v: %v", text, back, err)
	}
}

// A node that lacks one of the models is refused, with the model that it lacks.
func TestNodeLacksAModel(t *testing.T) {
	for _, c := range []struct {
		has  []string
		want string
	}{
		{[]string{"m", "n"}, ""},
		{[]string{"m", "x", "n"}, ""}, // a further model is not used
		{[]string{"m"}, "serves 1 models, and lacks model n"},
		{[]string{"n"}, "lacks model m"},
		{[]string{"n", "x"}, "lacks model m"},
	} {
		a := twoModels(1)
		a.Up(Node{ID: "a", Incarnation: 1, ModelHash: c.has[0], OtherHashes: c.has[1:]})
		if got := a.Refused()["a"]; c.want == "" && got != "" || !strings.Contains(got, c.want) {
			t.Errorf("a node with %v is refused with %q, want %q", c.has, got, c.want)
		}
	}
	one := NewAuthority(AuthorityConfig{Shape: testShape(), Mapping: Gather, Nodes: 1, ModelHash: "m"})
	one.Up(Node{ID: "a", Incarnation: 1, ModelHash: "n", OtherHashes: []string{"m"}})
	if why := one.Refused()["a"]; why != "" {
		t.Errorf("a node with a further model is refused: %s", why)
	}
}

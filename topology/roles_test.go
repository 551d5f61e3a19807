package topology

import (
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"
)

func roleNode(id string, r Role) Node {
	return Node{ID: id, Incarnation: 7, KVBudget: 1 << 30, ModelHash: "m", Role: r}
}

// TestSplit checks which group each node joins: both groups have nodes if that is possible, and
// without others, prefill nodes decode too.
func TestSplit(t *testing.T) {
	for what, want := range map[string][2]string{
		"a:both b:both":                     {"a b", ""},
		"a: b:both":                         {"a b", ""},
		"a:prefill b:decode":                {"b", "a"},
		"a:both b:prefill c:both":           {"a c", "b"},
		"a:both b:prefill c:decode":         {"a c", "b"},
		"a:decode b:both c:decode d:both":   {"a c", "b d"},
		"a:prefill b:prefill":               {"a b", ""},
		"a:decode b:decode":                 {"a b", ""},
		"a:prefill b:both c:prefill d:both": {"b d", "a c"},
		"":                                  {"", ""},
	} {
		var nodes []Node
		for _, f := range strings.Fields(what) {
			id, role, _ := strings.Cut(f, ":")
			nodes = append(nodes, roleNode(id, Role(role)))
		}
		decode, prefill := split(nodes)
		if got := [2]string{ids(decode), ids(prefill)}; got != want {
			t.Errorf("%q: groups %q, want %q", what, got, want)
		}
	}
	for _, s := range []string{"", "both", "prefill", "decode"} {
		if _, err := ParseRole(s); err != nil {
			t.Errorf("%q: %v", s, err)
		}
	}
	if _, err := ParseRole("reader"); err == nil || !strings.Contains(err.Error(), "prefill, decode, both") {
		t.Errorf("an unknown role: %v", err)
	}
}

func ids(nodes []Node) string {
	var s []string
	for _, n := range nodes {
		s = append(s, n.ID)
	}
	return strings.Join(s, " ")
}

// TestRolesPlace follows the groups of a cluster through losses and returns of nodes: each model has
// one placement on each group, whose slices cover the model, in one epoch.
func TestRolesPlace(t *testing.T) {
	shape := testShape()
	a := NewAuthority(AuthorityConfig{Shape: shape, Mapping: Gather, ModelHash: "m",
		Others: []ModelRules{{Shape: shape, Mapping: Reduce, ModelHash: "o"}}, Nodes: 3, Settle: time.Second, Backoff: time.Second})
	up := func(id string, r Role) []Effect {
		n := roleNode(id, r)
		n.OtherHashes = []string{"o"}
		return a.Up(n)
	}
	now := time.Duration(0)
	settle := func() []Effect { now += 3 * time.Second; return a.Tick(now) }
	serve := func(effects []Effect) Serve {
		t.Helper()
		for len(effects) > 0 {
			var next []Effect
			for _, e := range effects {
				switch e := e.(type) {
				case Record:
					next = append(next, a.Recorded(e.Placement.Epoch)...)
				case LoadSlices:
					for _, n := range e.Nodes {
						next = append(next, a.Answered(e.Placement.Epoch, n.ID, nil)...)
					}
				case FormGroup:
					if !reflect.DeepEqual(e.Placement.Slices, a.place.Slices) {
						t.Errorf("FormGroup has the placement %v, not %v", e.Placement, a.place)
					}
					for _, n := range e.Nodes {
						next = append(next, a.Answered(e.Epoch, n.ID, nil)...)
					}
				case Serve:
					return e
				}
			}
			effects = next
		}
		t.Fatal("nothing serves")
		return Serve{}
	}
	check := func(s Serve, decode, prefill string) {
		t.Helper()
		if got := ids(s.Placement.DecodeNodes(s.Nodes)); got != decode {
			t.Errorf("the decode group is %q, want %q", got, decode)
		}
		if got := ids(s.Placement.PrefillNodes(s.Nodes)); got != prefill {
			t.Errorf("the prefill group is %q, want %q", got, prefill)
		}
		for model, mapping := range []Mapping{Gather, Reduce} {
			p := s.Placement.Of(model)
			if err := p.Check(shape); err != nil || p.Mapping != mapping || len(p.Prefill) > 0 || len(p.Others) > 0 {
				t.Errorf("model %d, decode group: %v, %v", model, p, err)
			}
			p = s.Placement.OfPrefill(model)
			if prefill == "" {
				if len(p.Slices) > 0 {
					t.Errorf("model %d has a placement on no prefill node: %v", model, p)
				}
			} else if err := p.Check(shape); err != nil || p.Mapping != mapping || p.Epoch != s.Placement.Epoch {
				t.Errorf("model %d, prefill group: %v, %v", model, p, err)
			}
		}
	}
	up("p", RolePrefill)
	up("d", RoleDecode)
	check(serve(up("e", RoleBoth)), "d e", "p")
	check(serve(a.Down("d", 7)), "e", "p")
	check(serve(a.Down("e", 7)), "p", "") // alone, a prefill node does all work
	up("d", RoleDecode)
	check(serve(settle()), "d", "p")
	check(serve(a.Down("p", 7)), "d", "")
	up("q", RoleBoth) // it replaces the missing group
	check(serve(settle()), "d", "q")
	up("p", RolePrefill)
	check(serve(settle()), "d q", "p")
	if out := settle(); len(out) > 0 {
		t.Errorf("a cluster without changes is placed again: %v", out)
	}
	if out := a.Answered(a.Epoch(), "p", errors.New("late")); out != nil {
		t.Errorf("an answer outside of a phase: %v", out)
	}
}

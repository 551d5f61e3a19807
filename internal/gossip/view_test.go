package gossip

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestViewEvents(t *testing.T) {
	member := func(inc uint64, s State) Member { return Member{Name: "b", Meta: Meta{Incarnation: inc, State: s}} }
	var v view
	for i, step := range []struct {
		o    report
		want []Event
	}{
		{report{member(1, Joining), false}, nil},
		{report{member(1, Joining), true}, []Event{{Kind: Join, Member: member(1, Joining)}}},
		{report{member(1, Joining), true}, nil},
		{report{member(1, Ready), true}, []Event{{Kind: Update, Member: member(1, Ready)}}},
		{report{member(1, Ready), false}, []Event{{Kind: Failed, Member: member(1, Ready)}}},
		{report{member(1, Ready), false}, nil},
		{report{member(1, Ready), true}, []Event{{Kind: Join, Member: member(1, Ready), Rejoined: true}}},
		{report{member(2, Joining), true}, []Event{{Kind: Failed, Member: member(1, Ready)}, {Kind: Join, Member: member(2, Joining)}}},
		{report{member(2, Draining), false}, []Event{{Kind: Leave, Member: member(2, Draining)}}},
		{report{member(3, Ready), true}, []Event{{Kind: Join, Member: member(3, Ready)}}},
		{report{member(4, Draining), false}, []Event{{Kind: Failed, Member: member(3, Ready)}}},
		{report{member(5, Draining), true}, []Event{{Kind: Join, Member: member(5, Draining)}}},
		{report{member(6, Ready), true}, []Event{{Kind: Leave, Member: member(5, Draining)}, {Kind: Join, Member: member(6, Ready)}}},
	} {
		if got := v.observe(step.o); !reflect.DeepEqual(got, step.want) {
			t.Fatalf("step %d: %+v, want %+v", i, got, step.want)
		}
	}
}

// For any observations, each name alternates between Join and Leave or Failed, and the final state
// matches the last observation.
func TestViewAlternates(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var v view
		alive, last := map[string]bool{}, map[string]report{}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			o := report{Member{Name: rapid.SampledFrom([]string{"a", "b"}).Draw(t, "name"), Meta: Meta{
				Incarnation: rapid.Uint64Range(1, 3).Draw(t, "incarnation"), State: State(rapid.IntRange(0, 2).Draw(t, "state")),
			}}, rapid.Bool().Draw(t, "alive")}
			last[o.member.Name] = o
			for _, e := range v.observe(o) {
				if was := alive[e.Member.Name]; was == (e.Kind == Join) {
					t.Fatalf("%v while alive is %v", e.Kind, was)
				}
				alive[e.Member.Name] = e.Kind == Join || e.Kind == Update
			}
		}
		for name, o := range last {
			if alive[name] != o.alive || o.alive && v.alive[name] != o.member {
				t.Fatalf("%s ends as %+v, observed %+v", name, v.alive[name], o)
			}
		}
	})
}

func TestMetaRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringN(0, 60, 75)
		m := Meta{
			Role: text.Draw(t, "role"), RPC: text.Draw(t, "rpc"), Route: text.Draw(t, "route"),
			Build: text.Draw(t, "build"), Store: text.Draw(t, "store"),
			Arithmetic: text.Draw(t, "arithmetic"), WireMin: rapid.Uint16().Draw(t, "least"),
			WireMax: rapid.Uint16().Draw(t, "most"), Leads: rapid.Bool().Draw(t, "leads"),
			State: State(rapid.Byte().Draw(t, "state")), Load: rapid.Byte().Draw(t, "load"),
			Incarnation: rapid.Uint64().Draw(t, "incarnation"), PID: rapid.Uint32().Draw(t, "pid"),
		}
		b, err := m.Encode()
		if err != nil {
			t.Fatal(err)
		}
		if got, err := DecodeMeta(append(b, "from a newer build"...)); err != nil || got != m {
			t.Fatalf("%+v, %v, want %+v", got, err, m)
		}
		first := m // as encoded by builds without the arithmetic field
		first.Arithmetic, first.WireMin, first.WireMax, first.Leads = "", 0, 0, false
		if got, err := DecodeMeta(b[:len(b)-5-1-len(m.Arithmetic)]); err != nil || got != first {
			t.Fatalf("%+v, %v, want %+v", got, err, first)
		}
	})
	for _, m := range []Meta{
		{Build: strings.Repeat("v", 256)},
		{RPC: strings.Repeat("r", 250), Route: strings.Repeat("r", 250)},
	} {
		if _, err := m.Encode(); !errors.Is(err, ErrMetaTooLarge) {
			t.Errorf("got %v", err)
		}
	}
}

func FuzzDecodeMeta(f *testing.F) {
	b, err := Meta{Role: "node", Incarnation: 5, RPC: "10.0.0.1:7000", Build: "v1"}.Encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add(b[:len(b)-1])
	f.Add([]byte{})
	f.Add([]byte{2})
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := DecodeMeta(data)
		if err != nil {
			if !errors.Is(err, ErrBadMeta) {
				t.Errorf("error %v", err)
			}
			return
		}
		again, err := m.Encode()
		if errors.Is(err, ErrMetaTooLarge) && len(data) > MetaLimit-7 {
			return // the fields that the first builds lack have seven bytes
		}
		if err != nil {
			t.Fatal(err)
		}
		if got, err := DecodeMeta(again); err != nil || got != m {
			t.Errorf("%+v, %v, want %+v", got, err, m)
		}
	})
}

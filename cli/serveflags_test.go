package cli

import (
	"reflect"
	"testing"
	"time"

	"github.com/alecthomas/kong"
)

// TestServeFlagsTravel: what `shoal up --standby` was told, its coordinators are
// told, every flag of it.
func TestServeFlagsTravel(t *testing.T) {
	var want serveFlags
	at := 0
	for v := reflect.ValueOf(&want).Elem(); at < v.NumField(); at++ {
		if v.Type().Field(at).Name == "modelFlag" {
			want.Model = "/a model"
			continue
		}
		switch x := v.Field(at).Addr().Interface().(type) {
		case *string:
			*x = "text " + v.Type().Field(at).Name
		case *[]string:
			*x = []string{"a name", "b"}
		case *map[string]float64:
			*x = map[string]float64{"a": 0.25, "b-1": 3}
		case *int:
			*x = 100 + at
		case *time.Duration:
			*x = time.Duration(at) * 1500 * time.Millisecond
		default:
			t.Fatalf("%s is a %T: fill it in here, and carry it in args", v.Type().Field(at).Name, x)
		}
	}
	var c coordinatorCmd
	p, err := kong.New(&c, kong.Vars{"policies": ""})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Parse(want.args(want.Model)); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(c.serveFlags, want) {
		t.Errorf("arrived: %+v\nsent:    %+v", c.serveFlags, want)
	}
}

// TestKVBytes: the default never takes more than half of what there is.
func TestKVBytes(t *testing.T) {
	const gib = 1 << 30
	for _, x := range []struct {
		flag  size
		nodes int
		limit int64
		want  int64
		said  bool
	}{
		{0, 4, 0, gib, false},          // nobody knows
		{0, 4, 64 * gib, gib, false},   // plenty
		{0, 4, 2 * gib, gib / 4, true}, // a small container
		{0, 1, 2 * gib, gib, false},
		{0, 64, gib, 16 << 20, true}, // nothing runs with less
		{3 * gib, 4, 64 * gib, 3 * gib, false},
		{3 * gib, 4, 2 * gib, 3 * gib, true}, // as said, with a word
		{3 * gib, 4, 8 * gib, 3 * gib, true}, // each fits, all do not
		{3 * gib, 4, 0, 3 * gib, false},
	} {
		f := nodeFlags{KVMemory: x.flag}
		if got, why := f.kvBytes(x.nodes, x.limit, "this container"); got != x.want || (why != "") != x.said {
			t.Errorf("%d nodes in %d, asked for %d: %d, %q; want %d", x.nodes, x.limit, x.flag, got, why, x.want)
		}
	}
}

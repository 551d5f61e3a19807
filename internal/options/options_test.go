package options

import (
	"math"
	"reflect"
	"strings"
	"testing"
	"time"
)

type table struct {
	Tokens  int           `default:"512" range:"2..4096"`
	Chunk   int           `range:"1..4096"`
	Bytes   int64         `name:"kv-memory" range:"0.."`
	Share   float64       `range:"0.."`
	Limit   time.Duration `default:"5s" range:"1ms.."`
	Cache   string        `default:"on" oneof:"on,shared,off"`
	KV      string        `name:"kv-type" oneof:"f32,bf16"`
	Batches []int         `range:"1..64"`
	Folder  int64         `type:"size" default:"64GiB"`
	Free    string
	inner   int
}

func TestDefaults(t *testing.T) {
	got := table{Chunk: 3, inner: 1}
	SetDefaults(&got)
	if want := (table{Tokens: 512, Chunk: 3, Limit: 5 * time.Second, Cache: "on", Folder: 64 << 30, inner: 1}); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	set := table{Tokens: 7, Limit: time.Second, Cache: "off", Folder: 1}
	if got := set; true {
		if SetDefaults(&got); !reflect.DeepEqual(got, set) {
			t.Errorf("the defaults replace values: %+v", got)
		}
	}
}

func TestCheck(t *testing.T) {
	for _, c := range []struct {
		change func(*table)
		want   string // "" for none
	}{
		{func(*table) {}, ""},
		{func(x *table) { x.Tokens = 4096 }, ""},
		{func(x *table) { x.Tokens = 4097 }, "tokens 4097: want 2 to 4096"},
		{func(x *table) { x.Tokens = 0 }, "tokens 0: want 2 to 4096"},
		{func(x *table) { x.Chunk = -1 }, "chunk -1: want 1 to 4096, or 0 for the default"},
		{func(x *table) { x.Bytes = -1 }, "kv-memory -1: want at least 0"},
		{func(x *table) { x.Bytes = math.MaxInt64 }, ""},
		{func(x *table) { x.Share = math.NaN() }, "share NaN: want at least 0"},
		{func(x *table) { x.Share = math.Inf(1) }, "share +Inf: want at least 0"},
		{func(x *table) { x.Share = -0.5 }, "share -0.5: want at least 0"},
		{func(x *table) { x.Limit = time.Microsecond }, "limit 1µs: want at least 1ms"},
		{func(x *table) { x.Cache = "maybe" }, `cache "maybe": known are on, shared, off`},
		{func(x *table) { x.KV = "q3" }, `kv-type "q3": known are f32, bf16`},
		{func(x *table) { x.KV = "bf16" }, ""},
		{func(x *table) { x.Batches = []int{1, 65} }, "batches 65: want 1 to 64"},
	} {
		var x table
		SetDefaults(&x)
		c.change(&x)
		err := Check(&x)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.HasPrefix(err.Error(), c.want)) {
			t.Errorf("%+v: %v, want %q", x, err, c.want)
		}
	}
}

// A number without a unit is exact and whole: 1.5 is not 1.
func TestParseSize(t *testing.T) {
	for text, want := range map[string]int64{"0": 0, "4096": 4096, "9007199254740993": 9007199254740993, "1e3": 1000, "1.5KiB": 1536,
		"1.5 GB": 1500000000, "2M": 2 << 20, "7B": 7, " 8 ": 8,
		"1.5": -1, "0.4": -1, "2.5B": -1, "-1": -1, "nan": -1, "inf": -1, "GiB": -1, "": -1, "1152921504606846976": -1, "many": -1} {
		n, err := ParseSize(text)
		if (err != nil) != (want < 0) || err == nil && n != want {
			t.Errorf("%q: %d, %v; want %d", text, n, err, want)
		}
	}
}

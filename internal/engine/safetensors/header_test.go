package safetensors

import (
	"encoding/json"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
)

func TestHeader(t *testing.T) {
	got, err := Parse([]byte(`{"__metadata__":{"format":"pt","\u0061":"\""}, "b":{"dtype":"BF16","shape":[2,3],"data_offsets":[4,16]},
		"a":{"data_offsets":[0,4],"shape":[],"dtype":"F32"},"empty":{"dtype":"I64","shape":[0,9],"data_offsets":[4,4]},
		"later":{"dtype":"F4","shape":[7,2],"data_offsets":[16,23]}}   `), 23)
	want := []Entry{{"b", "BF16", []int{2, 3}, 4, 16}, {"a", "F32", []int{}, 0, 4},
		{"empty", "I64", []int{0, 9}, 4, 4}, {"later", "F4", []int{7, 2}, 16, 23}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, %v", got, err)
	}
}

func TestHeaderRefusals(t *testing.T) {
	for _, test := range []struct {
		header string
		size   int64
		want   string
	}{
		{``, 0, `ends where '{' should be`},
		{`[]`, 0, `'[' where '{' should be`},
		{` {}`, 1, `1 bytes after the last tensor`},
		{`{}x`, 0, `text after the header`},
		{`{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}`, 4, `ends where ',' should be`},
		{`{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},}`, 4, `'}' where '"' should be`},
		{`{"a":{"dtype":"F32","shape":[1]}}`, 4, `tensor "a": no data_offsets`},
		{`{"a":{"shape":[1],"data_offsets":[0,4]}}`, 4, `tensor "a": no dtype`},
		{`{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"extra":1}}`, 4, `unknown key "extra"`},
		{`{"a":{"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]}}`, 4, `key "dtype" given twice`},
		{`{"a":{"dtype":"F33","shape":[1],"data_offsets":[0,5]}}`, 4, `truncated`},
		{`{"a":{"dtype":"F33","shape":[1],"data_offsets":[4,0]}}`, 4, `run backwards`},
		{`{"a":{"dtype":"F33","shape":[4611686018427387905,4],"data_offsets":[0,4]}}`, 4, `overflows`},
		{`{"a":{"dtype":"F32","shape":[1],"data_offsets":[0]}}`, 4, `1 data_offsets, want 2`},
		{`{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4,8]}}`, 4, `more than two data_offsets`},
		{`{"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}}`, 4, `run backwards`},
		{`{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}`, 4, `shape [2] of F32 is 8 bytes, data_offsets [0, 4] hold 4`},
		{`{"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}}`, 4, `not a whole number`},
		{`{"a":{"dtype":"F32","shape":[1.0],"data_offsets":[0,4]}}`, 4, `'.' where ',' should be`},
		{`{"a":{"dtype":"F32","shape":[01],"data_offsets":[0,4]}}`, 4, `leading zero`},
		{`{"a":{"dtype":"F32","shape":[1e1],"data_offsets":[0,4]}}`, 4, `'e' where ',' should be`},
		{`{"a":{"dtype":"F32","shape":[99999999999999999999],"data_offsets":[0,4]}}`, 4, `63 bits`},
		{`{"a":{"dtype":"F32","shape":[4611686018427387905,4],"data_offsets":[0,16]}}`, 16, `overflows`},
		{`{"a":{"dtype":"F32","shape":[4294967296,4294967296,0],"data_offsets":[0,0]}}`, 0, `overflows`},
		{`{"a":{"dtype":"F32","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,4]}}`, 4, `more than 8 dimensions`},
		{`{"a":{"dtype":"F32","shape":[70368744177664],"data_offsets":[0,281474976710656]}}`, 4, `truncated`},
		{`{"a":{"dtype":"U8","shape":[9223372036854775807],"data_offsets":[0,9223372036854775807]}}`, 4, `truncated`},
		{`{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}`, 4, `tensor "b": data_offsets [0, 4] overlap those of "a"`},
		{`{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}`, 8, `overlap`},
		{`{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],"data_offsets":[8,12]}}`, 12, `hole of 4 bytes after "a"`},
		{`{"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}`, 8, `hole of 4 bytes after "the header"`},
		{`{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}`, 5, `1 bytes after the last tensor belong to none`},
		{`{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}`, 8, `named twice`},
		{`{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"\u0061":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}`, 8, `named twice`},
		{`{"__metadata__":{},"__metadata__":{}}`, 0, `named twice`},
		{`{"__metadata__":{"a":1}}`, 0, `'1' where '"' should be`},
		{`{"__metadata__":{"a":"\x"}}`, 0, `bad string`},
		{`{"` + strings.Repeat("n", MaxNameBytes+1) + `":{}}`, 0, `string of 513 bytes, more than 512`},
		{`{"` + strings.Repeat("n", 10000) + `":{}}`, 0, `string longer than`},
		{"{\"\xff\":{}}", 0, `not UTF-8`},
		{`{"a`, 0, `ends inside a string`},
		{`{"a\`, 0, `ends inside a string`},
	} {
		_, err := Parse([]byte(test.header), test.size)
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%.90s: got %v, want %q", test.header, err, test.want)
		}
	}
}

func TestHeaderTensorCount(t *testing.T) {
	if testing.Short() {
		t.Skip("a quarter of a million tensors, which the race detector reads for 20 s")
	}
	var b strings.Builder
	b.WriteString("{")
	for i := range MaxTensors + 1 {
		if i > 0 {
			b.WriteString(",")
		}
		b.WriteString(`"` + itoa(i) + `":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}`)
	}
	b.WriteString("}")
	if _, err := Parse([]byte(b.String()), 0); err == nil || !strings.Contains(err.Error(), "more than 262144 tensors") {
		t.Errorf("got %v", err)
	}
}

func itoa(i int) string { b, _ := json.Marshal(i); return string(b) }

// encoding/json reads every header that the scanner accepts as the same tensors, and they tile the
// data section. (Short seeds: minimising a long one takes minutes.)
func FuzzHeader(f *testing.F) {
	f.Add([]byte(`{"__metadata__":{"format":"pt"},"b":{"dtype":"BF16","shape":[2,3],"data_offsets":[4,16]},"a":{"data_offsets":[0,4],"shape":[],"dtype":"F32"}}`), int64(16))
	f.Add([]byte(`{"\u00e9\n":{"dtype":"I64","shape":[0,9],"data_offsets":[0,0]}} `), int64(0))
	f.Add([]byte(`{"a":{"dtype":"F32","shape":[4611686018427387905,4],"data_offsets":[0,16]}}`), int64(16))
	f.Add([]byte(`{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],"data_offsets":[2,6]}}`), int64(6))
	f.Fuzz(func(t *testing.T, header []byte, size int64) {
		if size < 0 {
			return
		}
		entries, err := Parse(header, size)
		if err != nil {
			if !strings.HasPrefix(err.Error(), "safetensors: ") || len(err.Error()) > 1500 {
				t.Fatalf("error %q", err)
			}
			return
		}
		type raw struct {
			DType   string  `json:"dtype"`
			Shape   []int64 `json:"shape"`
			Offsets []int64 `json:"data_offsets"`
		}
		var twin map[string]json.RawMessage
		if err := json.Unmarshal(header, &twin); err != nil {
			t.Fatalf("accepted a header that encoding/json refuses: %v", err)
		}
		delete(twin, "__metadata__")
		if len(twin) != len(entries) {
			t.Fatalf("%d tensors, %d by encoding/json", len(entries), len(twin))
		}
		var total int64
		for _, e := range entries {
			var r raw
			if err := json.Unmarshal(twin[e.Name], &r); err != nil {
				t.Fatal(err)
			}
			shape := make([]int64, len(e.Shape))
			bytes := float64(storedBytes[e.Stored])
			for i, d := range e.Shape {
				shape[i], bytes = int64(d), bytes*float64(d)
			}
			if r.DType != e.Stored || !slices.Equal(shape, r.Shape) || !slices.Equal(r.Offsets, []int64{e.Begin, e.End}) {
				t.Fatalf("read %+v, encoding/json %+v", e, r)
			}
			_, known := storedBytes[e.Stored] // the size of other types is not checked
			if e.Begin < 0 || e.End < e.Begin || e.End > size || known && math.Abs(bytes-float64(e.End-e.Begin)) > 1e-9*bytes {
				t.Fatalf("accepted %+v in %d bytes", e, size)
			}
			total += e.End - e.Begin
		}
		if total != size {
			t.Fatalf("tensors of %d bytes in a section of %d", total, size)
		}
	})
}

package gguf_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/gguf"
	"github.com/shoal-llm/shoal/internal/engine/model/modeltest"
)

// small returns a file with a value of each kind and three tensors.
func small() *modeltest.GGUF {
	g := &modeltest.GGUF{}
	g.Set("text", "héllo")
	g.Set("u32", uint32(7))
	g.Set("i32", int32(-7))
	g.Set("u64", uint64(math.MaxUint64))
	g.Set("f32", float32(0.5))
	g.Set("yes", true)
	g.Set("texts", []string{"a", "", "bcd"})
	g.Set("same", []int32{4, 4, 4})
	g.Set("wholes", []int32{1, -2})
	g.Set("floats", []float32{1, 2.5})
	g.Set("none", []int32{})
	g.Add("a", gguf.F32, []int{3, 2}, seq(24))
	g.Add("b", gguf.Q8_0, []int{1, 64}, seq(68))
	g.Add("c", gguf.F16, []int{5}, seq(10))
	return g
}

func seq(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i + 1)
	}
	return b
}

func TestParse(t *testing.T) {
	for _, version := range []uint32{2, 3} {
		g := small()
		g.Version = version
		f, err := gguf.Parse(g.Bytes())
		if err != nil {
			t.Fatal(err)
		}
		if f.Version != version || f.Alignment != 32 || len(f.Keys()) != 11 || f.Keys()[0] != "text" {
			t.Errorf("%+v", f)
		}
		var got []string
		for _, x := range f.Tensors {
			got = append(got, fmt.Sprint(x.Name, x.Type, x.Shape, len(x.Data), x.Data[0]))
		}
		if want := []string{"aF32 [3 2] 24 1", "bQ8_0 [1 64] 68 1", "cF16 [5] 10 1"}; !slices.Equal(got, want) {
			t.Errorf("tensors %v, want %v", got, want)
		}
	}
}

func TestValues(t *testing.T) {
	f, err := gguf.Parse(small().Bytes())
	if err != nil {
		t.Fatal(err)
	}
	show := func(v any, err error) string {
		if err != nil {
			return "error"
		}
		return fmt.Sprint(v)
	}
	all := func(key string) string {
		a, e1 := f.Text(key, "def")
		b, e2 := f.Bool(key, true)
		c, e3 := f.Int(key, 5, -10, 10)
		d, e4 := f.Texts(key)
		e, e5 := f.Ints(key)
		g, e6 := f.Float32s(key)
		return strings.Join([]string{show(a, e1), show(b, e2), show(c, e3), show(d, e4), show(e, e5), show(g, e6)}, " ")
	}
	for key, want := range map[string]string{
		"text": "héllo error error error error error", "u32": "error error 7 error error error", "i32": "error error -7 error error error",
		"u64": "error error error error error error", "f32": "error error error error error error", "yes": "error true error error error error",
		"texts": "error error error [a  bcd] error error", "same": "error error 4 error [4 4 4] error",
		"wholes": "error error error error [1 -2] error",
		"floats": "error error error error error [1 2.5]", "none": "error error error error [] error", "absent": "def true 5 [] [] []",
	} {
		if got := all(key); got != want {
			t.Errorf("%s: %q, want %q", key, got, want)
		}
	}
	if v, _ := f.Value("f32"); fmt.Sprint(v) != "0.5" {
		t.Error(v)
	}
	if v, ok := f.Value("absent"); ok || fmt.Sprint(v) != "nothing" {
		t.Error(v)
	}
	_, err = f.Int("i32", 0, 0, 10)
	if !errors.Is(err, gguf.ErrValue) || err.Error() != `gguf: metadata "i32": -7 (int32) is not an integer in 0..10` {
		t.Error(err)
	}
}

func TestAlignment(t *testing.T) {
	for _, n := range []int{8, 64, 4096, 1 << 16} {
		h := &modeltest.GGUF{Alignment: n}
		h.Set("general.alignment", n)
		h.Add("a", gguf.F32, []int{3}, seq(12))
		h.Add("b", gguf.F32, []int{1}, seq(4))
		f, err := gguf.Parse(h.Bytes())
		if err != nil || f.Alignment != n || f.Tensors[1].Data[3] != 4 {
			t.Errorf("%d: %v", n, err)
		}
	}
	for _, v := range []any{0, 4, 33, 1 << 17, "32", int32(-32), uint64(1 << 63)} {
		h := &modeltest.GGUF{}
		h.Set("general.alignment", v)
		if _, err := gguf.Parse(h.Bytes()); !errors.Is(err, gguf.ErrFormat) || !strings.Contains(err.Error(), "general.alignment") {
			t.Errorf("%v: %v", v, err)
		}
	}
}

// raw builds headers by hand.
type raw []byte

func head(tensors, keys uint64) raw {
	return raw("GGUF").u32(3).u64(tensors).u64(keys)
}
func (r raw) u32(v uint32) raw  { return binary.LittleEndian.AppendUint32(r, v) }
func (r raw) u64(v uint64) raw  { return binary.LittleEndian.AppendUint64(r, v) }
func (r raw) text(s string) raw { return append(r.u64(uint64(len(s))), s...) }
func (r raw) pad(n int) raw     { return append(r, make([]byte, n)...) }
func (r raw) tensor(name string, typ uint32, offset uint64, dims ...uint64) raw {
	r = r.text(name).u32(uint32(len(dims)))
	for _, d := range dims {
		r = r.u64(d)
	}
	return r.u32(typ).u64(offset)
}

// TestHostile: for any file, parsing ends in an error that names the fault and its place, without a
// panic and without memory out of proportion to the file.
func TestHostile(t *testing.T) {
	const str, array, u8, boolean = 8, 9, 0, 7
	for _, test := range []struct {
		name string
		data []byte
		kind error
		want string
	}{
		{"empty", nil, gguf.ErrFormat, "0 bytes are not a GGUF file"},
		{"magic alone", raw("GGUF"), gguf.ErrFormat, "truncated at byte 4"},
		{"another magic", raw("GGML").pad(40), gguf.ErrFormat, `begins with "GGML"`},
		{"LFS", raw("version https://x/y\noid sha256:00\nsize 5\n"), gguf.ErrFormat, "git lfs pull"},
		{"version 1", raw("GGUF").u32(1).pad(40), gguf.ErrUnsupported, "version 1; supported: 2 and 3"},
		{"big endian", raw("GGUF").u32(3 << 24).pad(40), gguf.ErrUnsupported, "big endian"},
		{"2^64-1 keys", head(0, math.MaxUint64), gguf.ErrFormat, "18446744073709551615 metadata keys"},
		{"2^63 tensors", head(1<<63, 0), gguf.ErrFormat, "9223372036854775808 tensors"},
		{"keys that are not there", head(0, 5), gguf.ErrFormat, "metadata 0: truncated"},
		{"tensors that are not there", head(5, 0), gguf.ErrFormat, "tensor 0: truncated"},
		{"key of 2^64-1 bytes", head(0, 1).u64(math.MaxUint64), gguf.ErrFormat, "string of 18446744073709551615 bytes"},
		{"key of a kilobyte", head(0, 1).text(strings.Repeat("k", 1024)).pad(64), gguf.ErrFormat, "more than 512"},
		{"empty key", head(0, 1).text("").pad(64), gguf.ErrFormat, "empty name"},
		{"key is not UTF-8", head(0, 1).text("\xff").pad(64), gguf.ErrFormat, "not UTF-8"},
		{"the same key", head(0, 2).text("k").u32(u8).pad(1).text("k").u32(u8).pad(1), gguf.ErrFormat, `metadata "k": given twice`},
		{"unknown kind", head(0, 1).text("k").u32(13).pad(8), gguf.ErrFormat, `metadata "k": unknown value type 13`},
		{"kind 2^32-1", head(0, 1).text("k").u32(math.MaxUint32).pad(8), gguf.ErrFormat, "unknown value type 4294967295"},
		{"bool of 2", append(head(0, 1).text("k").u32(boolean), 2), gguf.ErrFormat, "bool of value 2"},
		{"cut value", head(0, 1).text("k").u32(10).pad(7), gguf.ErrFormat, `metadata "k": truncated`},
		{"text longer than the file", head(0, 1).text("k").u32(str).u64(100).pad(99), gguf.ErrFormat, "truncated"},
		{"text of 2^63", head(0, 1).text("k").u32(str).u64(1 << 63), gguf.ErrFormat, "string of 9223372036854775808 bytes"},
		{"array of arrays", head(0, 1).text("k").u32(array).u32(array).u64(1).pad(64), gguf.ErrFormat, "array of array"},
		{"array of nothing known", head(0, 1).text("k").u32(array).u32(77).u64(1).pad(64), gguf.ErrFormat, "array of kind(77)"},
		{"array of 2^64-1", head(0, 1).text("k").u32(array).u32(u8).u64(math.MaxUint64), gguf.ErrFormat,
			"array of 18446744073709551615 elements"},
		{"array longer than the file", head(0, 1).text("k").u32(array).u32(10).u64(1 << 24).pad(64),
			gguf.ErrFormat, "134217728 bytes needed, 64 left"},
		{"texts longer than the file", head(0, 1).text("k").u32(array).u32(str).u64(1 << 24).pad(64), gguf.ErrFormat, "element 8: truncated"},
		{"text in an array, too long", head(0, 1).text("k").u32(array).u32(str).u64(2).text("a").u64(1 << 40),
			gguf.ErrFormat, "element 1: string of"},
		{"rank 0", head(1, 0).tensor("t", 0, 0).pad(64), gguf.ErrFormat, `tensor "t": 0 dimensions`},
		{"rank 5", head(1, 0).tensor("t", 0, 0, 1, 1, 1, 1, 1).pad(64), gguf.ErrFormat, "5 dimensions"},
		{"rank 2^32-1", head(1, 0).text("t").u32(math.MaxUint32).pad(64), gguf.ErrFormat, "4294967295 dimensions"},
		{"dimension 0", head(1, 0).tensor("t", 0, 0, 0).pad(64), gguf.ErrFormat, "dimension 0"},
		{"dimension -1", head(1, 0).tensor("t", 0, 0, math.MaxUint64).pad(64), gguf.ErrFormat, "dimension 18446744073709551615"},
		{"product overflows", head(1, 0).tensor("t", 0, 0, 1<<30, 1<<30, 1<<30, 1<<30).pad(64), gguf.ErrFormat, "overflows"},
		{"product wraps to nothing", head(1, 0).tensor("t", 0, 0, 1<<16, 1<<16, 1<<16, 1<<16).pad(64), gguf.ErrFormat, "overflows"},
		{"256 TiB", head(1, 0).tensor("t", 0, 0, 1<<23, 1<<23).pad(64), gguf.ErrFormat, "truncated: 281474976710656 bytes"},
		{"unknown type", head(1, 0).tensor("t", 99, 0, 32).pad(64), gguf.ErrUnsupported, `tensor "t": is type 99; supported: F32, F16`},
		{"type without a reader", head(1, 0).tensor("t", 15, 0, 256).pad(64), gguf.ErrUnsupported, "is Q8_K"},
		{"half a block", head(1, 0).tensor("t", 8, 0, 48).pad(64), gguf.ErrFormat, "rows of 48 elements are not whole blocks of 32"},
		{"offset off", head(1, 0).tensor("t", 0, 4, 1).pad(640), gguf.ErrFormat, "byte 4 of the data, which is not a multiple of 32"},
		{"offset 2^64-32", head(1, 0).tensor("t", 0, math.MaxUint64-31, 1).pad(640), gguf.ErrFormat, "a hole"},
		{"hole", head(1, 0).tensor("t", 0, 64, 1).pad(640), gguf.ErrFormat, "a hole"},
		{"overlap", head(2, 0).tensor("t", 0, 0, 16).tensor("u", 0, 32, 16).pad(640), gguf.ErrFormat, `tensor "u": begins at byte 32 of the data, within another`},
		{"the same bytes", head(2, 0).tensor("t", 0, 0, 1).tensor("u", 0, 0, 1).pad(640), gguf.ErrFormat, "within another"},
		{"the same name", head(2, 0).tensor("t", 0, 0, 1).tensor("t", 0, 32, 1).pad(640), gguf.ErrFormat, `tensor "t": named twice`},
		{"no data", head(1, 0).tensor("t", 0, 0, 1), gguf.ErrFormat, "truncated: the data begins at"},
		{"bytes after the end", head(1, 0).tensor("t", 0, 0, 1).pad(640), gguf.ErrFormat, "bytes after the last tensor"},
	} {
		t.Run(test.name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, err := gguf.Parse(test.data)
			runtime.ReadMemStats(&after)
			if !errors.Is(err, test.kind) || !strings.Contains(err.Error(), test.want) ||
				!strings.HasPrefix(err.Error(), "gguf: ") || len(err.Error()) > 1000 {
				t.Errorf("got %v\nwant %q (%v)", err, test.want, test.kind)
			}
			if grew := after.TotalAlloc - before.TotalAlloc; grew > 1<<20 {
				t.Errorf("allocated %d bytes", grew)
			}
		})
	}
}

func TestTruncated(t *testing.T) {
	data := small().Bytes()
	for n := range data {
		if _, err := gguf.Parse(data[:n]); err == nil {
			t.Errorf("%d of %d bytes were accepted", n, len(data))
		}
	}
}

func TestOpen(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "m.gguf")
	if err := os.WriteFile(path, small().Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	f, err := gguf.Open(path)
	if err != nil || f.Path != path {
		t.Fatal(err)
	}
	for range 2 {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := os.Truncate(path, 100); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"m.gguf": "m.gguf: ", "no.gguf": "no such file", "": "not a regular file"} {
		if _, err := gguf.Open(filepath.Join(dir, name)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", name, err)
		}
	}
	// A sparse file much larger than any header costs nothing.
	put := raw("GGUF").u32(3).u64(0).u64(1).text("k").u32(9).u32(8).u64(1 << 24)
	if err := os.WriteFile(path, put, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, 1<<40); err != nil {
		t.Skip(err)
	}
	if _, err := gguf.Open(path); !errors.Is(err, gguf.ErrFormat) {
		t.Error(err)
	}
}

func TestFind(t *testing.T) {
	model, projector, matrix, adapter := small(), small(), small(), small()
	projector.Set("general.architecture", "clip")
	matrix.Set("general.type", "imatrix")
	adapter.Set("general.type", "adapter")
	junk := &modeltest.GGUF{}
	for name, c := range map[string]struct {
		files map[string]*modeltest.GGUF // junk: 1000 zeros
		want  string                     // the file, or a part of the error
		kind  error
	}{
		"one":        {map[string]*modeltest.GGUF{"a.gguf": model}, "a.gguf", nil},
		"upper case": {map[string]*modeltest.GGUF{"a.GGUF": model}, "a.GGUF", nil},
		"two": {map[string]*modeltest.GGUF{"a.gguf": model, "b.gguf": model},
			"2 .gguf files (a.gguf, b.gguf ...)", gguf.ErrAmbiguous},
		"projector by name":     {map[string]*modeltest.GGUF{"a.gguf": model, "mmproj-a-f16.gguf": junk}, "a.gguf", nil},
		"projector by kind":     {map[string]*modeltest.GGUF{"z.gguf": model, "a.gguf": projector}, "z.gguf", nil},
		"matrix by name":        {map[string]*modeltest.GGUF{"z.gguf": model, "a-IMatrix.gguf": junk}, "z.gguf", nil},
		"matrix by kind":        {map[string]*modeltest.GGUF{"z.gguf": model, "a.gguf": matrix}, "z.gguf", nil},
		"adapter":               {map[string]*modeltest.GGUF{"z.gguf": model, "a.gguf": adapter}, "z.gguf", nil},
		"projector alone":       {map[string]*modeltest.GGUF{"mmproj.gguf": projector}, "mmproj.gguf", nil},
		"broken beside a model": {map[string]*modeltest.GGUF{"z.gguf": model, "a.gguf": junk}, "2 .gguf files", gguf.ErrAmbiguous},
		"parts": {map[string]*modeltest.GGUF{"m-00001-of-00002.gguf": junk, "m-00002-of-00002.gguf": junk},
			"m-00001-of-00002.gguf", nil},
		"parts and a projector": {map[string]*modeltest.GGUF{"m-00001-of-00002.gguf": junk,
			"m-00002-of-00002.gguf": junk, "mmproj.gguf": junk}, "m-00001-of-00002.gguf", nil},
		"first part alone": {map[string]*modeltest.GGUF{"m-00001-of-00002.gguf": junk},
			"part 2 of 2 is missing: m-00002-of-00002.gguf", gguf.ErrPart},
		"second part alone": {map[string]*modeltest.GGUF{"m-00002-of-00002.gguf": junk},
			"part 1 of 2 is missing: m-00001-of-00002.gguf", gguf.ErrPart},
		"two of three": {map[string]*modeltest.GGUF{"m-00001-of-00003.gguf": junk, "m-00003-of-00003.gguf": junk},
			"part 2 of 3 is missing: m-00002-of-00003.gguf", gguf.ErrPart},
		"two split models": {map[string]*modeltest.GGUF{"m-00001-of-00002.gguf": junk, "n-00001-of-00002.gguf": junk},
			"2 .gguf files", gguf.ErrAmbiguous},
		"a number beyond the last": {map[string]*modeltest.GGUF{"m-00003-of-00002.gguf": junk}, "part 1 of 2 is missing", gguf.ErrPart},
		"none":                     {nil, "no .gguf file", gguf.ErrNotFound},
	} {
		dir := t.TempDir()
		for file, g := range c.files {
			data := make([]byte, 1000)
			if g != junk {
				data = g.Bytes()
			}
			if err := os.WriteFile(filepath.Join(dir, file), data, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		got, err := gguf.Find(dir)
		if c.kind == nil && (err != nil || got != filepath.Join(dir, c.want)) || !errors.Is(err, c.kind) ||
			err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %q, %v; want %q, %v", name, got, err, c.want, c.kind)
		}
	}
	missing := filepath.Join(t.TempDir(), "m-00002-of-00003.gguf")
	if err := os.WriteFile(missing, make([]byte, 1000), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := gguf.OpenParts(missing); !errors.Is(err, gguf.ErrPart) ||
		!strings.Contains(err.Error(), "part 1 of 3 is missing: m-00001-of-00003.gguf") {
		t.Errorf("a part that is named: %v", err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add(small().Bytes())
	f.Add([]byte(head(1, 0).tensor("t", 12, 0, 256, 2).pad(640)))
	f.Add([]byte(head(0, 1).text("general.alignment").u32(4).u32(64)))
	f.Fuzz(func(t *testing.T, data []byte) {
		file, err := gguf.Parse(data)
		if err != nil {
			if !strings.HasPrefix(err.Error(), "gguf: ") {
				t.Error(err)
			}
			return
		}
		for _, key := range file.Keys() {
			v, ok := file.Value(key)
			if !ok {
				t.Error(key)
			}
			_ = v.String()
			v.Text()
			v.Bool()
			v.Int()
			v.Number()
			v.Texts()
			v.Ints()
			v.Float32s()
		}
		total := 0
		for _, x := range file.Tensors {
			total += len(x.Data)
		}
		if total > len(data) {
			t.Errorf("tensors of %d bytes in a file of %d", total, len(data))
		}
	})
}

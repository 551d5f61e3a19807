package checkpoint_test

import (
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/model/modeltest"
)

type object = map[string]any

func one(dtype string, shape []int64, begin, end int64) object {
	return object{"t": object{"dtype": dtype, "shape": shape, "data_offsets": []int64{begin, end}}}
}

func length(n uint64, rest string) []byte {
	return append(binary.LittleEndian.AppendUint64(nil, n), rest...)
}

// For any folder, opening it ends in an error that names the fault and its place, without a panic
// and without memory out of proportion to the files.
func TestHostileFiles(t *testing.T) {
	replace := func(name string, data []byte) func(testing.TB, string) {
		return func(t testing.TB, dir string) { put(t, filepath.Join(dir, name), data) }
	}
	weights := func(data []byte) func(testing.TB, string) { return replace("model.safetensors", data) }
	index := func(text string) func(testing.TB, string) {
		return func(t testing.TB, dir string) {
			if err := os.Rename(filepath.Join(dir, "model.safetensors"), filepath.Join(dir, "a.safetensors")); err != nil {
				t.Fatal(err)
			}
			put(t, filepath.Join(dir, "model.safetensors.index.json"), []byte(text))
		}
	}
	truncate := func(keep func(size int64) int64) func(testing.TB, string) {
		return func(t testing.TB, dir string) {
			path := filepath.Join(dir, "model.safetensors")
			st, err := os.Stat(path)
			if err == nil {
				err = os.Truncate(path, keep(st.Size()))
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, test := range []struct {
		name   string
		damage func(testing.TB, string)
		kind   error
		want   string
	}{
		{"no folder", func(t testing.TB, dir string) { check(t, os.RemoveAll(dir)) }, model.ErrMissing, "no such file"},
		{"a file, not a folder", func(t testing.TB, dir string) {
			check(t, os.RemoveAll(dir))
			put(t, dir, nil)
		}, model.ErrNoCheckpoint, "not a directory"},
		{"no config", func(t testing.TB, dir string) { check(t, os.Remove(filepath.Join(dir, "config.json"))) },
			model.ErrNoCheckpoint, "not a Hugging Face model folder"},
		{"config is a folder", func(t testing.TB, dir string) {
			check(t, os.Remove(filepath.Join(dir, "config.json")))
			check(t, os.Mkdir(filepath.Join(dir, "config.json"), 0o755))
		}, model.ErrFormat, "config.json: not a regular file"},
		{"huge config", func(t testing.TB, dir string) { check(t, os.Truncate(filepath.Join(dir, "config.json"), 1<<34)) },
			model.ErrFormat, "more than 16777216"},
		{"config is a device", func(t testing.TB, dir string) {
			check(t, os.Remove(filepath.Join(dir, "config.json")))
			check(t, os.Symlink(os.DevNull, filepath.Join(dir, "config.json")))
		}, model.ErrFormat, "config.json: not a regular file"},
		{"weights are a device", func(t testing.TB, dir string) {
			check(t, os.Remove(filepath.Join(dir, "model.safetensors")))
			check(t, os.Symlink("/dev/zero", filepath.Join(dir, "model.safetensors")))
		}, model.ErrFormat, "model.safetensors: not a regular file"},
		{"Infinity in a size", replace("config.json", []byte(`{"architectures":["LlamaForCausalLM"],"hidden_size":Infinity}`)), model.ErrFormat, `field "hidden_size": Infinity is not a whole number`},
		{"deep config", replace("config.json", []byte(strings.Repeat(`{"a":`, 100000))), model.ErrFormat, "not a JSON object"},
		{"absurd config", replace("config.json", []byte(`{"architectures":["LlamaForCausalLM"],"hidden_size":9223372036854775807}`)), model.ErrOutOfRange, `field "hidden_size": 9223372036854775807`},
		{"large config, small file", replace("config.json", []byte(`{"architectures":["LlamaForCausalLM"],"hidden_size":131072,"num_hidden_layers":1024,"num_attention_heads":4096,"intermediate_size":1048576,"vocab_size":4194304}`)), model.ErrMismatch, "shape [256 64]; config.json requires [4194304 131072]"},
		{"no weights", func(t testing.TB, dir string) { check(t, os.Remove(filepath.Join(dir, "model.safetensors"))) },
			model.ErrMissing, "neither model.safetensors nor"},
		{"other weights", func(t testing.TB, dir string) {
			check(t, os.Rename(filepath.Join(dir, "model.safetensors"), filepath.Join(dir, "pytorch_model.bin")))
		}, model.ErrMissing, "there is pytorch_model.bin, which may run code when it is read. Convert"},
		{"weights by another name", func(t testing.TB, dir string) {
			check(t, os.Rename(filepath.Join(dir, "model.safetensors"), filepath.Join(dir, "a.safetensors")))
		}, model.ErrMissing, "there is a.safetensors: name it model.safetensors"},
		{"parts without an index, one missing", func(t testing.TB, dir string) {
			check(t, os.Rename(filepath.Join(dir, "model.safetensors"), filepath.Join(dir, "model-00002-of-00003.safetensors")))
		}, model.ErrMissing, "part 1 of 3 is missing: "},
		{"parts beyond the bound", func(t testing.TB, dir string) {
			check(t, os.Rename(filepath.Join(dir, "model.safetensors"), filepath.Join(dir, "model-00001-of-99999.safetensors")))
		}, model.ErrFormat, "want 1 to 4096"},
		{"needed tensor of an unknown type", func(t testing.TB, dir string) {
			edit(t, filepath.Join(dir, "model.safetensors"), `"dtype":"BF16"`, `"dtype":"C64" `)
		}, model.ErrUnsupported, `tensor "model.embed_tokens.weight": is C64; supported are`},
		{"dangling link", func(t testing.TB, dir string) {
			check(t, os.Remove(filepath.Join(dir, "model.safetensors")))
			check(t, os.Symlink("nowhere", filepath.Join(dir, "model.safetensors")))
		}, model.ErrMissing, "model.safetensors: no such file"},
		{"weights are a folder", func(t testing.TB, dir string) {
			check(t, os.Remove(filepath.Join(dir, "model.safetensors")))
			check(t, os.Mkdir(filepath.Join(dir, "model.safetensors"), 0o755))
		}, model.ErrFormat, "not a regular file"},
		{"empty", weights(nil), model.ErrFormat, "0 bytes are no safetensors file"},
		{"seven bytes", weights([]byte("1234567")), model.ErrFormat, "truncated"},
		{"pointer of Git LFS", weights([]byte("version https://example/spec/v1\noid sha256:00\nsize 5\n")), model.ErrFormat, "git lfs pull"},
		{"header of 2^63", weights(length(1<<63, "{}")), model.ErrFormat, "header of 9223372036854775808 bytes"},
		{"header of 2^64-1", weights(length(1<<64-1, "{}")), model.ErrFormat, "header of 18446744073709551615 bytes"},
		{"header past the cap, sparse file", func(t testing.TB, dir string) {
			put(t, filepath.Join(dir, "model.safetensors"), length(1<<30, "{"))
			check(t, os.Truncate(filepath.Join(dir, "model.safetensors"), 1<<31))
		}, model.ErrFormat, "more than 100000000"},
		{"header longer than the file", weights(length(1000, "{}")), model.ErrFormat, "truncated: header of 1000 bytes in a file of 10"},
		{"empty header", weights(length(0, "")), model.ErrFormat, "ends where '{' should be"},
		{"header of zeros", weights(length(64, string(make([]byte, 64)))), model.ErrFormat, `'\x00' where '{'`},
		{"no tensors", weights(modeltest.File(object{}, nil)), model.ErrMissing, `tensor "model.embed_tokens.weight": missing`},
		{"256 TiB in 73 bytes", weights(modeltest.File(one("F32", []int64{1 << 46}, 0, 1<<48), nil)), model.ErrFormat, `tensor "t": truncated`},
		{"product overflows", weights(modeltest.File(one("F32", []int64{1 << 62, 4}, 0, 16), make([]byte, 16))), model.ErrFormat, "overflows"},
		{"end before begin", weights(modeltest.File(one("F32", []int64{1}, 4, 0), make([]byte, 4))), model.ErrFormat, "run backwards"},
		{"bytes after the end", weights(modeltest.File(one("F32", []int64{1}, 0, 4), make([]byte, 5))),
			model.ErrFormat, "1 bytes after the last tensor"},
		{"one byte short", truncate(func(n int64) int64 { return n - 1 }), model.ErrFormat, "truncated"},
		{"half of it", truncate(func(n int64) int64 { return n / 2 }), model.ErrFormat, "truncated"},
		{"one byte more", truncate(func(n int64) int64 { return n + 1 }), model.ErrFormat, "1 bytes after the last tensor"},
		{"gigabytes of nothing more", truncate(func(n int64) int64 { return 1 << 42 }), model.ErrFormat, "after the last tensor"},
		{"index climbs", index(`{"weight_map": {"x": "../m/a.safetensors"}}`), model.ErrFormat, `"../m/a.safetensors" is not the plain name`},
		{"index is absolute", index(`{"weight_map": {"x": "/dev/zero.safetensors"}}`), model.ErrFormat, "is not the plain name"},
		{"index names no safetensors", index(`{"weight_map": {"x": "config.json"}}`), model.ErrFormat, "is not the plain name"},
		{"index is empty", index(`{"weight_map": {}}`), model.ErrFormat, "weight_map of 0 tensors"},
		{"index is no index", index(`[]`), model.ErrFormat, "not an index"},
		{"index names a file that is not there", index(`{"weight_map": {"x": "a.safetensors", "y": "b.safetensors", "z": "c.safetensors"}}`), model.ErrMissing, "c.safetensors: no such file"},
		{"index puts a tensor elsewhere", index(`{"weight_map": {"x": "a.safetensors"}}`), model.ErrMissing, `tensor "x": is not in a.safetensors`},
		{"tensor in two files", func(t testing.TB, dir string) {
			index(`{"weight_map": {"model.norm.weight": "a.safetensors", "x": "b.safetensors"}}`)(t, dir)
			check(t, os.Link(filepath.Join(dir, "a.safetensors"), filepath.Join(dir, "b.safetensors")))
		}, model.ErrFormat, "is also in"},
		{"weights of another type", func(t testing.TB, dir string) {
			edit(t, filepath.Join(dir, "model.safetensors"), `"dtype":"BF16"`, `"dtype":"I16" `)
		}, model.ErrUnsupported, `tensor "model.embed_tokens.weight": is I16; supported are`},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := write(t, modeltest.Small(), 1)
			test.damage(t, dir)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			c, err := checkpoint.Open(dir)
			runtime.ReadMemStats(&after)
			if c != nil {
				check(t, c.Close())
			}
			if !errors.Is(err, test.kind) || !strings.Contains(err.Error(), test.want) || !strings.HasPrefix(err.Error(), "model: ") {
				t.Errorf("got %v\nwant %q (%v)", err, test.want, test.kind)
			}
			if err != nil && len(err.Error()) > 4000 {
				t.Errorf("error of %d bytes", len(err.Error()))
			}
			if grew := after.TotalAlloc - before.TotalAlloc; grew > 16<<20 {
				t.Errorf("allocated %d bytes", grew)
			}
		})
	}
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

package checkpoint_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
	"github.com/shoal-llm/shoal/internal/engine/gguf"
	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/model/modeltest"
	"github.com/shoal-llm/shoal/internal/testlevel"
)

// The hostile corpus: every architecture's smallest files, with each number, name and list replaced
// by hostile values, one at a time. Opening one ends in a model that can be read completely, or in
// an error that names the file, without a panic and without memory out of proportion to the file.

// skipped thins out the corpus to every 17th case, different ones per architecture. The sweeps
// (SHOAL_E2E=long) run all of them, in two minutes.
func skipped(cases *int) bool {
	*cases++
	return *cases%17 != 0 && !testlevel.Long()
}

// damaged opens a file or folder that was damaged.
func damaged(t *testing.T, path string) error {
	t.Helper()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	c, err := checkpoint.Open(path)
	runtime.ReadMemStats(&after)
	if grew := after.TotalAlloc - before.TotalAlloc; grew > 16<<20 {
		t.Errorf("allocated %d bytes (%v)", grew, err)
	}
	if err != nil {
		if !strings.HasPrefix(err.Error(), "model: ") || !strings.Contains(err.Error(), path) || len(err.Error()) > 4000 {
			t.Errorf("names no file, or too much: %v", err)
		}
		return err
	}
	defer c.Close()
	readAll(t, c)
	return nil
}

// readAll reads the ends of every tensor, and everything derived from the config.
func readAll(t testing.TB, c *checkpoint.Checkpoint) {
	t.Helper()
	for _, s := range c.Config.Tensors() {
		x, err := c.Tensor(s.Name)
		if err != nil {
			t.Fatal(err)
		}
		row := make([]float32, x.Cols())
		for _, r := range []int{0, x.Rows() - 1} {
			x.Row(row, r, 0, len(row))
		}
	}
	for _, r := range c.Config.Rotations() {
		for _, v := range r.Freq {
			if !(v >= 0) || v > 1e6 {
				t.Fatalf("frequency %g of %+v", v, c.Config.Rope)
			}
		}
	}
	if s := c.Config.AttentionScale(); !(s > 0) || math.IsInf(float64(s), 0) {
		t.Fatalf("scores are scaled by %g: %+v", s, c.Config)
	}
}

func tinyFolder(t testing.TB, architecture string) string {
	t.Helper()
	dir := t.TempDir()
	check(t, writeTiny(dir, architecture))
	return dir
}

// Every architecture has a valid tiny checkpoint in both formats.
func TestTinies(t *testing.T) {
	for _, name := range model.Architectures() {
		hub := open(t, tinyFolder(t, name))
		readAll(t, hub)
		if !slices.Contains(ggufs(), name) {
			continue
		}
		if got := convert(t, hub, always(gguf.F32)); got.Config.Architecture != name {
			t.Errorf("%s in a GGUF file is %s", name, got.Config.Architecture)
		}
	}
}

func TestCorpusGGUF(t *testing.T) {
	values := []any{uint32(0), uint32(1), uint32(3), int32(-1), uint32(1 << 31), uint64(1 << 40),
		uint64(1 << 63), uint64(math.MaxUint64), float32(0), float32(-1), float32(1e-30),
		float32(1e30), float32(math.NaN()), float32(math.Inf(1)), true, "", "x", strings.Repeat("y", 1<<20),
		[]int32{}, []int32{1, 2}, []float32{1}, []string{"a"}}
	for i, name := range ggufs() {
		t.Run(name, func(t *testing.T) {
			cases := i
			path := filepath.Join(t.TempDir(), "m.gguf")
			whole := modeltest.Convert(open(t, tinyFolder(t, name)), always(gguf.F32))
			try := func(g *modeltest.GGUF) error {
				put(t, path, g.Bytes())
				return damaged(t, path)
			}
			if err := try(whole); err != nil {
				t.Fatal(err)
			}
			for _, key := range keysOf(whole) {
				for _, v := range values {
					if skipped(&cases) {
						continue
					}
					g := clone(whole)
					g.Unset(key)
					g.Set(key, v)
					_ = try(g) // some replacements are equivalent
				}
				g := clone(whole)
				g.Set(key, uint32(1))
				if err := try(g); !errors.Is(err, model.ErrFormat) || !strings.Contains(err.Error(), key) {
					t.Errorf("%s twice: %v", key, err)
				}
			}
			for i, e := range whole.Table {
				damage := func(what string, f func(*modeltest.GGUF, *modeltest.Entry)) {
					t.Helper()
					if skipped(&cases) {
						return
					}
					g := clone(whole)
					f(g, &g.Table[i])
					if err := try(g); err == nil {
						t.Errorf("%s with %s is accepted", e.Name, what)
						// its rows are the vocabulary, which metadata may contradict
					} else if !strings.Contains(err.Error(), "tensor") && !strings.HasSuffix(e.Name, "token_embd.weight") {
						t.Errorf("%s with %s: no tensor is named: %v", e.Name, what, err)
					}
				}
				for d := range e.Shape {
					for _, n := range []int{0, e.Shape[d] + 1, 2 * e.Shape[d], 1 << 31, 1 << 40, 1 << 62, -1} {
						damage(fmt.Sprintf("dimension %d of %d", d, n), func(_ *modeltest.GGUF, e *modeltest.Entry) { e.Shape[d] = n })
					}
				}
				for _, by := range []uint64{1, 32, 1 << 20, 1 << 63, math.MaxUint64 - 31} {
					damage(fmt.Sprintf("an offset %d further", by), func(_ *modeltest.GGUF, e *modeltest.Entry) { e.Offset += by })
				}
				for _, typ := range []gguf.Type{gguf.F16, gguf.Q4_K, 16, 99, math.MaxUint32} {
					if typ == gguf.F16 && elements(e.Shape) <= 16 {
						continue // the rest of its 32 bytes may be padding
					}
					damage(typ.String(), func(_ *modeltest.GGUF, e *modeltest.Entry) { e.Type = typ })
				}
				// one row or column, or the norms of heads, which may be a vector
				if len(e.Shape) > 1 && !strings.HasSuffix(e.Name, ".ffn_gate_inp_shexp.weight") &&
					!strings.HasSuffix(e.Name, "_norm.weight") && !strings.HasSuffix(e.Name, ".ssm_a") && !strings.HasSuffix(e.Name, ".ssm_d") {
					damage("a flat shape", func(_ *modeltest.GGUF, e *modeltest.Entry) { e.Shape = []int{elements(e.Shape)} })
				}
				damage("a rank more", func(_ *modeltest.GGUF, e *modeltest.Entry) { e.Shape = append([]int{1}, e.Shape...) })
				damage("a rank of 9", func(_ *modeltest.GGUF, e *modeltest.Entry) { e.Shape = make([]int, 9) })
				damage("the name of another", func(g *modeltest.GGUF, e *modeltest.Entry) { e.Name = g.Table[(i+1)%len(g.Table)].Name })
				damage("a name of its own", func(_ *modeltest.GGUF, e *modeltest.Entry) { e.Name = "blk.9.attn_q.weight" })
				damage("no name", func(_ *modeltest.GGUF, e *modeltest.Entry) { e.Name = "" })
				damage("a name of a megabyte", func(_ *modeltest.GGUF, e *modeltest.Entry) { e.Name = strings.Repeat("n", 1<<20) })
			}
			for _, n := range []int{1, 31, 1 << 10, 1 << 30} {
				g := clone(whole)
				if cut(g, n); try(g) == nil {
					t.Errorf("%d bytes less are accepted", n)
				}
			}
		})
	}
}

func elements(shape []int) int {
	n := 1
	for _, d := range shape {
		n *= d
	}
	return n
}

// raw is literal JSON.
type raw = json.RawMessage

func TestCorpusFolder(t *testing.T) {
	values := []raw{raw("0"), raw("1"), raw("3"), raw("-1"), raw("-0.0"), raw("1e-300"), raw("1e300"),
		raw("1e999"), raw("2147483648"), raw("9223372036854775807"), raw("9223372036854775808"),
		raw("1.5"), raw(`""`), raw(`"x"`), raw(`"` + strings.Repeat("y", 1<<20) + `"`), raw("true"), raw("null"), raw("[]"), raw("{}"), raw("[1,2]"), raw(`[[[]]]`), raw(`{"type":"yarn","factor":1e308}`),
		raw(strings.Repeat("[", 5000) + strings.Repeat("]", 5000)), raw(`"\ud800"`)}
	for i, name := range model.Architectures() {
		t.Run(name, func(t *testing.T) {
			cases := i
			dir := tinyFolder(t, name)
			var config map[string]raw
			text, err := os.ReadFile(filepath.Join(dir, "config.json"))
			check(t, err)
			check(t, json.Unmarshal(text, &config))
			try := func(text []byte) error {
				put(t, filepath.Join(dir, "config.json"), text)
				return damaged(t, dir)
			}
			if err := try(text); err != nil {
				t.Fatal(err)
			}
			for _, key := range slices.Sorted(maps.Keys(config)) {
				for _, v := range values {
					if skipped(&cases) {
						continue
					}
					c := maps.Clone(config)
					c[key] = v
					text, err := json.Marshal(c)
					check(t, err)
					_ = try(text)
				}
			}
			for _, c := range []string{`[]`, `null`, `{`, `{}`, `"x"`, `{"architectures":[]}`, `{"architectures":["` + name + `"]}`, `{"architectures":["` + name + `","` + name + `"]}`, strings.Repeat(`{"text_config":`, 5000) + strings.Repeat("}", 5000)} {
				if err := try([]byte(c)); err == nil {
					t.Errorf("%.80s is accepted", c)
				}
			}
			check(t, os.WriteFile(filepath.Join(dir, "config.json"), text, 0o600))
			corpusSafetensors(t, dir, &cases)
		})
	}
}

func corpusSafetensors(t *testing.T, dir string, cases *int) {
	path := filepath.Join(dir, "model.safetensors")
	file, err := os.ReadFile(path)
	check(t, err)
	header, data := modeltest.Parts(file)
	for _, name := range slices.Sorted(maps.Keys(header)) {
		e := header[name]
		if name == "__metadata__" {
			continue
		}
		damage := func(what string, f func(h map[string]any, e map[string]any)) {
			t.Helper()
			if skipped(cases) {
				return
			}
			h, _ := modeltest.Parts(file)
			f(h, h[name].(map[string]any))
			put(t, path, modeltest.File(h, data))
			if err := damaged(t, dir); err == nil {
				t.Errorf("%s with %s is accepted", name, what)
			} else if !strings.Contains(err.Error(), "tensor") {
				t.Errorf("%s with %s: no tensor is named: %v", name, what, err)
			}
		}
		shape := e.(map[string]any)["shape"].([]any)
		for d := range shape {
			for _, n := range []any{0, -1, 1.5, shape[d].(float64) + 1, 1 << 40, 1 << 62, "4", nil, []int{}} {
				damage(fmt.Sprintf("dimension %d of %v", d, n), func(_, e map[string]any) { e["shape"].([]any)[d] = n })
			}
		}
		for i := range 2 {
			for _, n := range []any{-1, 1, 1 << 20, 1 << 62, 1.5, "0", nil} {
				damage(fmt.Sprintf("offset %d at %v", i, n), func(_, e map[string]any) { e["data_offsets"].([]any)[i] = n })
			}
		}
		for _, typ := range []any{"F32", "I64", "F8_E4M3", "BOOL", "bf16", "", 3, nil, strings.Repeat("F", 1<<20)} {
			damage(fmt.Sprintf("type %.20v", typ), func(_, e map[string]any) { e["dtype"] = typ })
		}
		for _, key := range []string{"dtype", "shape", "data_offsets"} {
			damage("no "+key, func(_, e map[string]any) { delete(e, key) })
		}
		damage("a key more", func(_, e map[string]any) { e["strides"] = []int{1} })
		damage("another rank", func(_, e map[string]any) { e["shape"] = append(e["shape"].([]any), 1) })
		damage("a rank of 9", func(_, e map[string]any) { e["shape"] = []int{1, 1, 1, 1, 1, 1, 1, 1, 1} })
		damage("another name", func(h, e map[string]any) { delete(h, name); h["model.layers.9.x"] = e })
		damage("a name of a megabyte", func(h, e map[string]any) { h[strings.Repeat("n", 1<<20)] = e })
		damage("nothing", func(h, e map[string]any) { delete(h, name) })
	}
	put(t, path, file)
	if err := damaged(t, dir); err != nil {
		t.Fatal(err)
	}
}

// A config of two hundred bytes may ask for a quarter of a million tensors.
func TestManyTensorsAsked(t *testing.T) {
	dir := tinyFolder(t, "Qwen3MoeForCausalLM")
	put(t, filepath.Join(dir, "config.json"), []byte(`{"architectures":["Qwen3MoeForCausalLM"],"hidden_size":32,"num_hidden_layers":21,"num_attention_heads":2,"num_key_value_heads":2,"intermediate_size":16,"vocab_size":12,"num_experts":4096}`))
	if err := damaged(t, dir); !errors.Is(err, model.ErrMissing) || !strings.Contains(err.Error(), "more") {
		t.Error(err)
	}
	dir = tinyFolder(t, "LlamaForCausalLM")
	put(t, filepath.Join(dir, "config.json"), []byte(`{"architectures":["LlamaForCausalLM"],"hidden_size":32,"num_hidden_layers":1024,"num_attention_heads":2,"intermediate_size":16,"vocab_size":12}`))
	if err := damaged(t, dir); !errors.Is(err, model.ErrMissing) {
		t.Error(err)
	}
}

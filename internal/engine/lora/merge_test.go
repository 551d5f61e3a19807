package lora_test

import (
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
	"github.com/shoal-llm/shoal/internal/engine/lora"
	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

const (
	fry      = "../../../models/fry"
	fryTools = "../../../models/fry-tools"
)

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func put(t testing.TB, path string, data []byte) {
	t.Helper()
	check(t, os.WriteFile(path, data, 0o600))
}

func open(t testing.TB, dir string) *checkpoint.Checkpoint {
	t.Helper()
	c, err := checkpoint.Open(dir)
	check(t, err)
	t.Cleanup(func() { check(t, c.Close()) })
	return c
}

// mergedFolder is base with an adapter merged.
func mergedFolder(t *testing.T, base, adapter string) *checkpoint.Checkpoint {
	t.Helper()
	dir := t.TempDir()
	check(t, lora.Merge(base, adapter, dir))
	for _, name := range []string{"config.json", "generation_config.json"} {
		text, err := os.ReadFile(filepath.Join(base, name))
		check(t, err)
		put(t, filepath.Join(dir, name), text)
	}
	return open(t, dir)
}

// TestMerge: the bundled adapter merged equals its base plus (alpha/r) B A, element by element,
// summed in a plain loop.
func TestMerge(t *testing.T) {
	base, got := open(t, fry), mergedFolder(t, fry, fryTools)
	if base.Hash() == got.Hash() {
		t.Error("the merged model has the hash of its base")
	}
	factors := factorsOf(t, filepath.Join(fryTools, "adapter_model.safetensors"))
	changed := 0
	for _, s := range base.Config.Tensors() {
		w, err := base.Tensor(s.Name)
		check(t, err)
		m, err := got.Tensor(s.Name)
		check(t, err)
		a, b := factors[s.Name][0], factors[s.Name][1]
		rows, cols := w.Rows(), w.Cols()
		was, is := make([]float32, cols), make([]float32, cols)
		for r := 0; r < rows; r += 1 + rows/37 {
			w.Row(was, r, 0, cols)
			m.Row(is, r, 0, cols)
			for c := range was {
				sum := float64(was[c])
				for k := range a { // alpha is r
					sum += float64(b[r][k]) * float64(a[k][c])
				}
				if want := tensor.Round(tensor.BF16, float32(sum)); want != is[c] && math.Abs(float64(want-is[c])) > math.Abs(float64(want))/128 {
					t.Fatalf("%s [%d, %d] is %g, want %g", s.Name, r, c, is[c], want)
				}
				if was[c] != is[c] {
					changed++
				}
			}
		}
		if (a == nil) != strings.HasSuffix(s.Name, "norm.weight") && !strings.Contains(s.Name, "embed") {
			t.Errorf("%s: merged %v", s.Name, a != nil)
		}
	}
	if changed == 0 {
		t.Error("nothing changed")
	}
}

// factorsOf reads A and B of every matrix with an independent reader.
func factorsOf(t *testing.T, path string) map[string][2][][]float32 {
	t.Helper()
	data, err := os.ReadFile(path)
	check(t, err)
	n := int(data[0]) | int(data[1])<<8 | int(data[2])<<16
	var head map[string]struct {
		Shape  []int  `json:"shape"`
		Offset [2]int `json:"data_offsets"`
	}
	check(t, json.Unmarshal(data[8:8+n], &head))
	out := map[string][2][][]float32{}
	for name, e := range head {
		name, ok := strings.CutPrefix(name, "base_model.model.")
		if !ok {
			continue
		}
		name, which, _ := strings.Cut(name, ".lora_")
		raw, m := data[8+n+e.Offset[0]:], make([][]float32, e.Shape[0])
		for r := range m {
			m[r] = make([]float32, e.Shape[1])
			for c := range m[r] {
				at := 2 * (r*e.Shape[1] + c)
				m[r][c] = math.Float32frombits(uint32(raw[at])<<16 | uint32(raw[at+1])<<24)
			}
		}
		p := out[name+".weight"]
		p[int(which[0]-'A')] = m
		out[name+".weight"] = p
	}
	return out
}

// TestMergeRefused: an adapter with another sum, or of another model, is refused by name.
func TestMergeRefused(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(fryTools, "adapter_config.json"))
	check(t, err)
	weights, err := os.ReadFile(filepath.Join(fryTools, "adapter_model.safetensors"))
	check(t, err)
	for _, c := range []struct {
		base, from, to, want string
		kind                 error
	}{
		{fry, `"bias": "none"`, `"bias": "all"`, "bias", model.ErrUnsupported},
		{fry, `"fan_in_fan_out": false`, `"use_dora": true`, "use_dora", model.ErrUnsupported},
		{fry, `"fan_in_fan_out": false`, `"rank_pattern": {"q_proj": 8}`, "rank is 8", model.ErrMismatch},
		{fry, `"fan_in_fan_out": false`, `"modules_to_save": ["lm_head"]`, "modules_to_save", model.ErrUnsupported},
		{fry, `"LORA"`, `"IA3"`, "peft_type", model.ErrUnsupported},
		{fry, `"r": 32`, `"r": 16`, "rank is 16", model.ErrMismatch},
		{fry, `"r": 32`, `"r": 0`, `"r"`, model.ErrOutOfRange},
		{fry, `"lora_alpha": 32`, `"lora_alpha": 1e99`, "lora_alpha", model.ErrOutOfRange},
		{"../../../models/dace", "", "", "is not in the base", model.ErrMismatch},
		{"../model/testdata/llama", "", "", "in the adapter", model.ErrMismatch},
	} {
		dir := t.TempDir()
		put(t, filepath.Join(dir, "adapter_config.json"), []byte(strings.Replace(string(text), c.from, c.to, 1)))
		put(t, filepath.Join(dir, "adapter_model.safetensors"), weights)
		err := lora.Merge(c.base, dir, t.TempDir())
		if !errors.Is(err, c.kind) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s instead of %s on %s: %v, want %v with %q", c.to, c.from, c.base, err, c.kind, c.want)
		}
	}
}

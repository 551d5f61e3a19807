package lora_test

import (
	"bytes"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/lora"
	"github.com/shoal-llm/shoal/internal/engine/lora/loratest"
	"github.com/shoal-llm/shoal/internal/engine/model"
)

const module = "base_model.model.model.layers.0.self_attn.q_proj"

// pair returns the factors of one matrix of 64 rows and 48 columns.
func pair(rank int) map[string]loratest.Tensor {
	matrix := func(rows, cols int) loratest.Tensor {
		t := loratest.Tensor{Shape: []int{rows, cols}, Values: make([]float32, rows*cols)}
		for i := range t.Values {
			t.Values[i] = float32(i%7) / 8
		}
		return t
	}
	return map[string]loratest.Tensor{module + ".lora_A.weight": matrix(rank, 48), module + ".lora_B.weight": matrix(64, rank)}
}

// TestHostileAdapters: files that no trainer writes are refused with their place and the reason.
func TestHostileAdapters(t *testing.T) {
	nan := float32(math.NaN())
	for name, c := range map[string]struct {
		config map[string]any
		change func(map[string]loratest.Tensor)
		kind   error
		want   string
	}{
		"one factor": {change: func(m map[string]loratest.Tensor) { delete(m, module+".lora_B.weight") },
			kind: model.ErrMissing, want: "one factor of two"},
		"no factors": {change: func(m map[string]loratest.Tensor) { clear(m) }, kind: model.ErrMissing, want: "no factors"},
		"NaN": {change: func(m map[string]loratest.Tensor) { m[module+".lora_A.weight"].Values[3*48+5] = nan },
			kind: model.ErrNotFinite, want: "row 3"},
		"infinity": {change: func(m map[string]loratest.Tensor) { m[module+".lora_B.weight"].Values[0] = float32(math.Inf(1)) },
			kind: model.ErrNotFinite, want: "row 0"},
		"another rank": {change: func(m map[string]loratest.Tensor) { m[module+".lora_A.weight"] = pair(9)[module+".lora_A.weight"] },
			kind: model.ErrMismatch, want: "rank is 8"},
		"no matrix": {change: func(m map[string]loratest.Tensor) {
			m[module+".lora_A.weight"] = loratest.Tensor{Shape: []int{8 * 48}, Values: make([]float32, 8*48)}
		}, kind: model.ErrUnsupported, want: "want a matrix"},
		"a whole module": {change: func(m map[string]loratest.Tensor) {
			m["base_model.model.lm_head.weight"] = pair(8)[module+".lora_A.weight"]
		}, kind: model.ErrUnsupported, want: "not a factor"},
		"an embedding": {change: func(m map[string]loratest.Tensor) {
			m["base_model.model.model.embed_tokens.lora_embedding_A"] = pair(8)[module+".lora_A.weight"]
		}, kind: model.ErrUnsupported, want: "embedding"},
		"a magnitude": {change: func(m map[string]loratest.Tensor) {
			m[module+".lora_magnitude_vector.weight"] = loratest.Tensor{Shape: []int{64}, Values: make([]float32, 64)}
		}, kind: model.ErrUnsupported, want: "DoRA"},
		"DoRA":            {config: map[string]any{"use_dora": true}, kind: model.ErrUnsupported, want: "DoRA"},
		"another variant": {config: map[string]any{"use_qalora": true}, kind: model.ErrUnsupported, want: "use_qalora"},
		"PiSSA":           {config: map[string]any{"init_lora_weights": "pissa_niter_16"}, kind: model.ErrUnsupported, want: "init_lora_weights"},
		"OLoRA":           {config: map[string]any{"init_lora_weights": "OLoRA"}, kind: model.ErrUnsupported, want: "init_lora_weights"},
		"CorDA":           {config: map[string]any{"init_lora_weights": "corda"}, kind: model.ErrUnsupported, want: "init_lora_weights"},
		"LoftQ":           {config: map[string]any{"init_lora_weights": "loftq"}, kind: model.ErrUnsupported, want: "init_lora_weights"},
		"Monte Carlo": {config: map[string]any{"monteclora_config": map[string]any{"n": 1}},
			kind: model.ErrUnsupported, want: "monteclora_config"},
		"bias": {config: map[string]any{"bias": "lora_only"}, kind: model.ErrUnsupported, want: "biases"},
		"modules to save": {config: map[string]any{"modules_to_save": []string{"embed_tokens"}},
			kind: model.ErrUnsupported, want: "modules_to_save"},
		"a huge rank":     {config: map[string]any{"r": 1 << 40}, kind: model.ErrOutOfRange, want: `"r"`},
		"a negative rank": {config: map[string]any{"r": -1}, kind: model.ErrOutOfRange, want: `"r"`},
		"half a rank":     {config: map[string]any{"rank_pattern": map[string]any{"q_proj": 7.5}}, kind: model.ErrOutOfRange, want: "7.5"},
		"a huge alpha":    {config: map[string]any{"alpha_pattern": map[string]any{"q_proj": 1e30}}, kind: model.ErrOutOfRange, want: "1e+30"},
		"a bad expression": {config: map[string]any{"rank_pattern": map[string]any{"(?<!x)q_proj": 8}},
			kind: model.ErrFormat, want: "regular expression"},
		"a long expression": {config: map[string]any{"rank_pattern": map[string]any{strings.Repeat("x", 1000): 8}},
			kind: model.ErrFormat, want: "longer than"},
		"a text as rank":    {config: map[string]any{"r": "8"}, kind: model.ErrFormat, want: `"r"`},
		"a list as pattern": {config: map[string]any{"rank_pattern": []int{8}}, kind: model.ErrFormat, want: "not an object"},
		"another method":    {config: map[string]any{"peft_type": "IA3"}, kind: model.ErrUnsupported, want: "only LORA"},
	} {
		dir, tensors := t.TempDir(), pair(8)
		if c.change != nil {
			c.change(tensors)
		}
		check(t, loratest.Write(dir, loratest.Config(8, c.config), tensors))
		a, err := lora.Open(dir)
		if !errors.Is(err, c.kind) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %v with %q", name, err, c.kind, c.want)
		}
		if err == nil {
			a.Close()
		}
	}
}

// TestTornAdapters: a file that was cut at any place, or changed in its header, is refused and never
// ends the process.
func TestTornAdapters(t *testing.T) {
	dir := t.TempDir()
	check(t, loratest.Write(dir, loratest.Config(8, nil), pair(8)))
	path := filepath.Join(dir, "adapter_model.safetensors")
	good, err := os.ReadFile(path)
	check(t, err)
	a, err := lora.Open(dir)
	check(t, err)
	check(t, a.Close())
	for n := 0; n < len(good); n += 1 + n/3 {
		put(t, path, good[:n])
		if a, err := lora.Open(dir); err == nil {
			t.Errorf("%d of %d bytes are accepted", n, len(good))
			a.Close()
		}
	}
	for at := range 8 {
		bad := bytes.Clone(good)
		bad[at] ^= 0x55
		put(t, path, bad)
		if a, err := lora.Open(dir); err == nil {
			t.Errorf("a header of another length is accepted: byte %d", at)
			a.Close()
		}
	}
}

// TestStore: an adapter arrives in parts, is verified by its ID, and the least recently used one makes room.
func TestStore(t *testing.T) {
	folders := make([]string, 3)
	ids := make([]lora.ID, 3)
	for i := range folders {
		folders[i] = t.TempDir()
		check(t, loratest.Write(folders[i], loratest.Config(8+i, nil), pair(8+i)))
		a, err := lora.Open(folders[i])
		check(t, err)
		ids[i] = a.ID
		check(t, a.Close())
	}
	root := t.TempDir()
	s, err := lora.OpenStore(root, 9000) // two of them
	check(t, err)
	send := func(id lora.ID, folder string, damage bool) error {
		for _, name := range lora.Files() {
			data, err := os.ReadFile(filepath.Join(folder, name))
			check(t, err)
			if damage && len(data) > 3500 {
				data[3000] ^= 1
			}
			for at := 0; at < len(data); at += 999 {
				if err := s.Receive(id, name, int64(at), data[at:min(at+999, len(data))]); err != nil {
					return err
				}
			}
		}
		_, err := s.Complete(id)
		return err
	}
	if err := send(ids[0], folders[0], true); err == nil || s.Has(ids[0]) {
		t.Errorf("a damaged adapter: %v", err)
	}
	if err := send(ids[1], folders[0], false); !errors.Is(err, model.ErrChanged) {
		t.Errorf("another adapter's files: %v", err)
	}
	check(t, send(ids[0], folders[0], false))
	check(t, send(ids[1], folders[1], false))
	if !s.Has(ids[1]) || !s.Has(ids[0]) { // now ids[1] is the least recently used
		t.Error("two adapters are not there")
	}
	check(t, send(ids[2], folders[2], false))
	check(t, send(ids[2], folders[2], false)) // it is there already
	id, err := s.Copy(os.DirFS(folders[1]))
	check(t, err)
	if id != ids[1] || !s.Has(ids[1]) {
		t.Errorf("the copy has the ID %v", id)
	}
	for _, bad := range []error{s.Receive(ids[0], "../x", 0, nil), s.Receive(ids[0], "adapter_model.safetensors", 1<<60, []byte{1}),
		s.Receive(lora.ID{9}, "adapter_model.safetensors", 0, []byte{1})} {
		if bad == nil {
			t.Error("a part that belongs nowhere is accepted")
		}
	}
	entries, err := os.ReadDir(root)
	check(t, err)
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), "new-") {
			t.Errorf("%s is left", e.Name())
		}
	}
	if len(entries) > 3 {
		t.Errorf("%d adapters in a store for two", len(entries))
	}
}

package checkpoint_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
	"github.com/shoal-llm/shoal/internal/engine/model"
)

const (
	fry     = "../../../models/fry"
	adapter = "../../../models/fry-swiftkv"
)

// TestBundledAdapters: the adapters belong to the bundled model, each makes another model of it,
// and none holds unchanged tensors.
func TestBundledAdapters(t *testing.T) {
	hashes := map[string]bool{open(t, fry).Hash(): true}
	for dir, want := range map[string]struct{ caches, tensors int }{adapter: {8, 13}, adapter + "-across": {6, 9}} {
		ck, err := checkpoint.OpenSwiftKV(fry, dir)
		if err != nil {
			t.Fatal(err)
		}
		defer ck.Close()
		if hashes[ck.Hash()] {
			t.Errorf("%s: the hash is another model's", dir)
		}
		hashes[ck.Hash()] = true
		added := 0
		for _, s := range ck.Config.Tensors() {
			if strings.Contains(s.Name, "swiftkv") {
				added++
			}
			if _, err := ck.Tensor(s.Name); err != nil {
				t.Error(err)
			}
		}
		if got := ck.Config.CacheLayers(); got != want.caches || added != want.tensors {
			t.Errorf("%s: %d caches and %d tensors, want %+v", dir, got, added, want)
		}
		if files := ck.Files(); len(files) != 2 || len(ck.SideFiles()) != 1 {
			t.Errorf("%s: weights %v, other files %v", dir, files, ck.SideFiles())
		}
	}
}

// TestAdapterRefused: an adapter of another checkpoint, for a kind that cannot take one, or
// damaged, is refused with a reason.
func TestAdapterRefused(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(adapter, "swiftkv.json"))
	check(t, err)
	for _, c := range []struct {
		base, from, to, want string
		kind                 error
	}{
		{"../model/testdata/llama", "", "", "is an adapter of the checkpoint with base identity", model.ErrMismatch},
		{"../model/testdata/deepseek_v3", "", "", "latent attention", model.ErrMismatch},
		{"../model/testdata/mistral_window", "", "", "sliding window", model.ErrMismatch},
		{"../model/testdata/phi3", "", "", "sliding window", model.ErrMismatch},
		{"../model/testdata/swiftkv", "", "", "already", model.ErrMismatch},
		{fry, `"num_key_value_layers": 4`, `"num_key_value_layers": 8`, "nothing is rewired", model.ErrMismatch},
		{fry, `"num_key_value_layers": 4`, `"num_key_value_layers": 0`, "outside 1..8", model.ErrOutOfRange},
		{fry, `"num_key_value_layers": 4`, `"num_key_value_layers": 3`, "missing", model.ErrMissing},
		{fry, `"num_key_value_layers": 4`, `"num_key_value_layers": 5`, "is not part", model.ErrMismatch},
		{fry, `"key_value_group_size": 1`, `"key_value_group_size": 9`, "outside 1..8", model.ErrOutOfRange},
		{fry, `"base": "`, `"base": "0`, "not a SHA-256", model.ErrFormat},
		{fry, `{`, `[`, "not a JSON object", model.ErrFormat},
	} {
		dir := t.TempDir()
		put(t, filepath.Join(dir, "swiftkv.json"), []byte(strings.Replace(string(text), c.from, c.to, 1)))
		weights, err := os.ReadFile(filepath.Join(adapter, "swiftkv.safetensors"))
		check(t, err)
		put(t, filepath.Join(dir, "swiftkv.safetensors"), weights)
		ck, err := checkpoint.OpenSwiftKV(c.base, dir)
		if err == nil {
			ck.Close()
		}
		if err == nil || !errors.Is(err, c.kind) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s, %s: %v; want one with %q", c.base, c.to, err, c.want)
		}
	}
	if _, err := checkpoint.OpenSwiftKV(fry, t.TempDir()); !errors.Is(err, model.ErrNoCheckpoint) {
		t.Errorf("an empty folder: %v", err)
	}
	if _, err := checkpoint.OpenSwiftKV("random:fry", adapter); !errors.Is(err, model.ErrMismatch) {
		t.Errorf("random weights: %v", err)
	}
}

package node

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
)

// TestDraftIsRefused: a draft model with another tokenizer and a folder without a model are refused
// with reasons.
func TestDraftIsRefused(t *testing.T) {
	ck, err := checkpoint.Open("../../models/fry")
	if err != nil {
		t.Fatal(err)
	}
	defer ck.Close()
	other := t.TempDir()
	for _, name := range []string{"config.json", "generation_config.json", "model.safetensors", "tokenizer_config.json", "tokenizer.json"} {
		b, err := os.ReadFile(filepath.Join("../../models/fry", name))
		if err != nil {
			t.Fatal(err)
		}
		if name == "tokenizer.json" {
			b = []byte(strings.Replace(string(b), `"<|reserved|>"`, `"<|reversed|>"`, 2))
		}
		if err := os.WriteFile(filepath.Join(other, name), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for dir, want := range map[string]string{other: "take a small model with the same tokenizer",
		t.TempDir(): "not a Hugging Face model folder", "mtp": "DeepSeek V3"} {
		budget := int64(1600)
		if d, err := OpenDraft(dir, ck, &budget); err == nil || !strings.Contains(err.Error(), want) || budget != 1600 {
			t.Errorf("%s: %v, %v, want %q", dir, d, err, want)
		}
	}
}

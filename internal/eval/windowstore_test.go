package eval

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestPerplexityContinues: a run that was interrupted after a window continues from its file, with the result
// of a run without interruption, and measures only what is missing.
func TestPerplexityContinues(t *testing.T) {
	tok := testTokenizer(t)
	text := strings.Repeat("The number of the gentle-otter is 7012345 and that of the swift-fox 8123456.\n", 16)
	policies, err := ParsePolicies([]string{"full streaming:sink=1,recent=8"})
	if err != nil {
		t.Fatal(err)
	}
	model := TogetherConfig{Model: modelDir, KV: "f32", Workers: 1}
	cfg := PolicyPerplexityConfig{Window: 120, Prefix: 100, Windows: 3, Policies: policies}
	want, err := MeasurePolicyPerplexity(t.Context(), tok, text, cfg, model)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "windows.jsonl")
	lines := func() int {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return strings.Count(string(b), "\n")
	}
	run := func(ctx context.Context, policies []Policy, progress func(done, total int64)) ([]PolicyPerplexity, error) {
		store, err := OpenWindowStore(path)
		if err != nil {
			t.Fatal(err)
		}
		cfg := cfg
		cfg.Policies, cfg.Store, cfg.Progress = policies, store, progress
		got, err := MeasurePolicyPerplexity(ctx, tok, text, cfg, model)
		if closed := store.Close(); closed != nil {
			t.Fatal(closed)
		}
		return got, err
	}
	ctx, cancel := context.WithCancel(t.Context())
	if _, err := run(ctx, policies[:1], func(int64, int64) { cancel() }); !errors.Is(err, context.Canceled) || lines() != 1 {
		t.Fatalf("%v, %d lines; want an interrupted run with one window", err, lines())
	}
	for range 2 { // the second measures nothing
		got, err := run(t.Context(), policies, nil)
		if err != nil || !slices.Equal(got, want) || lines() != 6 {
			t.Fatalf("%+v, %v, %d lines; want %+v and 6 lines", got, err, lines(), want)
		}
	}
	if err := os.WriteFile(path, []byte("{\"window\":\"1\"}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenWindowStore(path); !errors.Is(err, ErrStore) {
		t.Errorf("a line without a policy: %v", err)
	}
}

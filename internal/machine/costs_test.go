package machine

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/machine/costs"
	"github.com/shoal-llm/shoal/topology"
)

// TestMeasuredCosts: more rows take longer, but not each of them as long as one. A stored table is reused unless
// it is damaged, or another type of weights or caches is asked for.
func TestMeasuredCosts(t *testing.T) {
	cfg := SpeedsConfig{Dir: filepath.Join(t.TempDir(), "weights"), Nodes: 2, Threads: 1, Sockets: 2,
		Model:   &model.Config{Layers: 8, Hidden: 384, Heads: 16, KVHeads: 8, HeadDim: 32, FFN: 1024, Vocab: 4096},
		Weights: tensor.Q8_0, KV: tensor.BF16, Logger: slog.New(slog.DiscardHandler)}
	measure := func() costs.Table {
		t.Helper()
		tables, err := MeasureCosts(t.Context(), cfg)
		if err != nil || len(tables) != 1 || !tables[0].Valid() {
			t.Fatalf("%+v, %v", tables, err)
		}
		return tables[0]
	}
	first := measure()
	t.Logf("%+v", first)
	last := len(costs.Rows) - 1
	if p := first.Products; p[last] < 2*p[0] || p[last] > 512*p[0] {
		t.Errorf("512 rows take %.1f times as long as one", p[last]/p[0])
	}
	if first.Slot <= 0 || first.PromptSlot <= 0 || first.Element <= 0 || first.Sample <= 0 || first.Round <= 0 || first.Copy <= 0 {
		t.Errorf("%+v", first)
	}
	if again := measure(); again != first {
		t.Errorf("%+v, measured before: %+v", again, first)
	}
	files, err := filepath.Glob(filepath.Join(cfg.Dir, "costs-*"))
	if err != nil || len(files) != 1 {
		t.Fatalf("%v, %v", files, err)
	}
	text, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	bad := strings.Replace(string(text), `"slot_s":`, `"slot_s":-`, 1)
	if bad == string(text) {
		t.Fatal("no slot")
	}
	if err := os.WriteFile(files[0], []byte(bad), 0o600); err != nil {
		t.Fatal(err)
	}
	if again := measure(); again == first {
		t.Error("a damaged table is used")
	}
	cfg.KV = tensor.F32
	measure()
	if files, err = filepath.Glob(filepath.Join(cfg.Dir, "costs-*")); err != nil || len(files) != 2 {
		t.Errorf("%v, %v", files, err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	cfg.Dir = ""
	if tables, err := MeasureCosts(ended, cfg); err == nil {
		t.Errorf("cut short: %+v", tables)
	}
}

// TestCostThreads: every number of threads that a decode step may use has a table.
func TestCostThreads(t *testing.T) {
	cfg := SpeedsConfig{Nodes: 1, Threads: 2, Sockets: 1,
		Model:   &model.Config{Layers: 2, Hidden: 64, Heads: 2, KVHeads: 1, HeadDim: 32, FFN: 128, Vocab: 64},
		Weights: tensor.Q8_0, KV: tensor.BF16, Logger: slog.New(slog.DiscardHandler)}
	var got []int
	tables, err := cfg.measureCosts(t.Context(), topology.Threads{Max: 4, Min: 1})
	for _, table := range tables {
		got = append(got, table.Threads)
	}
	if want := []int{4, 2, 1}; err != nil || !slices.Equal(got, want) {
		t.Errorf("tables of %v threads, want %v; %v", got, want, err)
	}
}

package machine

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/collective/natsbus"
	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/testutil"
	"github.com/shoal-llm/shoal/topology"
)

// A node measures its machine over its own server and leaves no subscription there. A stored result
// is reused unless it belongs to another machine or build.
func TestMeasuredSpeeds(t *testing.T) {
	s, err := natsbus.Start(natsbus.Config{Name: "one", Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Shutdown()
	before := s.Subscriptions()
	one := topology.Threads{Max: 1, Min: 1}
	cfg := SpeedsConfig{Dir: filepath.Join(t.TempDir(), "weights"), Nodes: 2, Threads: 1, Sockets: 2,
		Model:   &model.Config{Layers: 8, Hidden: 384, Heads: 16, KVHeads: 8, HeadDim: 32, FFN: 1024},
		Weights: tensor.Q4_0, Logger: slog.New(slog.DiscardHandler)}
	measure := func() topology.Speeds {
		t.Helper()
		v := MeasureSpeeds(t.Context(), cfg, s)
		if !v.Valid() || v.Threads != one || v.Syncs.Two < 1e-6 || v.Syncs.Two > 0.5 {
			t.Fatalf("%+v", v)
		}
		return v
	}
	first := measure()
	t.Logf("%+v", first)
	testutil.Eventually(t, 10*time.Second, "the measurement's subscriptions end", func() (bool, string) {
		n := s.Subscriptions()
		return n <= before, fmt.Sprintf("%d subscriptions, %d before", n, before)
	})
	if again := measure(); again != first {
		t.Errorf("%+v, measured before: %+v", again, first)
	}
	files, err := filepath.Glob(filepath.Join(cfg.Dir, "*"))
	if err != nil || len(files) != 1 {
		t.Fatalf("%v, %v", files, err)
	}
	text, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	for name, bad := range map[string]string{
		"cut short":     string(text[:len(text)/2]),
		"other threads": strings.Replace(string(text), `"threads":1`, `"threads":3`, 1),
		"no rate":       strings.Replace(string(text), `"read":`, `"read":-`, 1),
		"nothing":       `[]`,
	} {
		if bad == string(text) {
			t.Fatal(name)
		}
		if err := os.WriteFile(files[0], []byte(bad), 0o600); err != nil {
			t.Fatal(err)
		}
		if again := measure(); again == first {
			t.Errorf("%s: accepted as a measurement", name)
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	cfg.Nodes = 3
	if v := MeasureSpeeds(ended, cfg, s); v.Syncs != (topology.Syncs{}) || v.Threads != one || v.Read == 0 {
		t.Errorf("cut short: %+v", v)
	}
}

func TestShareOf(t *testing.T) {
	for read, want := range map[float64]float64{0: 1, 1e9: 0.25, 24e9: 2.5, 26.3e9: 2.75} {
		if got := ShareOf(read); got != want {
			t.Errorf("%g bytes/s: a share of %v, want %v", read, got, want)
		}
	}
}

// TestKeptAtOnce: processes that measure at once all store their results, and each file is complete.
func TestKeptAtOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "speeds.json")
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for range 50 {
				if err := writeKept(path, []int{i + 1}); err != nil {
					t.Error(err)
				}
				if kept := readKept[[]int](path); len(kept) != 1 || kept[0] == 0 {
					t.Errorf("read %v", kept)
				}
			}
		})
	}
	wg.Wait()
	if all, err := os.ReadDir(filepath.Dir(path)); err != nil || len(all) != 1 {
		t.Errorf("the folder has %v, %v", all, err)
	}
}

package cluster

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/collective/natsbus"
	"github.com/shoal-llm/shoal/model"
	"github.com/shoal-llm/shoal/tensor"
	"github.com/shoal-llm/shoal/topology"
)

// A node measures its machine over its own server and leaves nothing there; what is kept of it is
// not measured again, unless it is not what this machine gave.
func TestMeasuredSpeeds(t *testing.T) {
	s, err := natsbus.Start(natsbus.Config{Name: "one", Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Shutdown()
	before := s.Subscriptions()
	cfg := SpeedsConfig{Dir: filepath.Join(t.TempDir(), "weights"), Nodes: 2, Threads: 1, Sockets: 2, Model: &model.Config{Layers: 8, Hidden: 384, Heads: 16, KVHeads: 8, HeadDim: 32, FFN: 1024},
		Weights: tensor.Q4_0, Logger: slog.New(slog.DiscardHandler)}
	measure := func() topology.Speeds {
		t.Helper()
		v := MeasureThreads(t.Context(), cfg, s)
		if !v.Valid() || v.Threads != 1 || v.Syncs.Two < 1e-6 || v.Syncs.Two > 0.5 {
			t.Fatalf("%+v", v)
		}
		return v
	}
	first := measure()
	t.Logf("%+v", first)
	for end := time.Now().Add(10 * time.Second); s.Subscriptions() > before; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d subscriptions, %d before", s.Subscriptions(), before)
		}
	}
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
			t.Errorf("%s: taken for what was measured", name)
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	cfg.Nodes = 3
	if v := MeasureThreads(ended, cfg, s); v.Syncs != (topology.Syncs{}) || v.Threads != 1 || v.Read == 0 {
		t.Errorf("cut short: %+v", v)
	}
}

func TestShareOf(t *testing.T) {
	for read, want := range map[float64]float64{0: 1, 1e9: 0.25, 24e9: 2.5, 26.3e9: 2.75} {
		if got := shareOf(read); got != want {
			t.Errorf("%g bytes/s: a share of %v, want %v", read, got, want)
		}
	}
}

// With several choices each is rehearsed, and one of them is taken and kept; the most threads
// when there is no time for it.
func TestRehearsal(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(4))
	for _, nodes := range []int{1, 2} {
		cfg := SpeedsConfig{Dir: t.TempDir(), Nodes: nodes, Sockets: nodes, Model: &model.Config{Layers: 2, Hidden: 128, Heads: 4, KVHeads: 2, HeadDim: 32, FFN: 256}, Weights: tensor.Q8_0, Logger: slog.New(slog.DiscardHandler)}
		choices := topology.ThreadChoices(4, nodes)
		first := MeasureThreads(t.Context(), cfg, nil)
		if !first.Valid() || !slices.Contains(choices, first.Threads) {
			t.Errorf("%d nodes: %+v of %v", nodes, first, choices)
		}
		if again := MeasureThreads(t.Context(), cfg, nil); again != first {
			t.Errorf("%+v, measured before: %+v", again, first)
		}
		for i, r := range readMeasured(cfg.path(choices)).Rehearsed {
			if r.Threads != choices[i] || slices.Min(r.Seconds[:]) < 1e-7 || r.Seconds[2] < r.Seconds[0] {
				t.Errorf("%d nodes: %+v", nodes, r)
			}
			t.Logf("%d nodes: %+v", nodes, r)
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		cfg.Dir = ""
		if v := MeasureThreads(ended, cfg, nil); v != (topology.Speeds{Threads: choices[0]}) {
			t.Errorf("cut short: %+v", v)
		}
	}
}

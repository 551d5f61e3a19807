package cluster

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/collective/natsbus"
	"github.com/shoal-llm/shoal/topology"
)

// A node times collectives over its own server, and leaves nothing there.
func TestMeasuredSyncs(t *testing.T) {
	s, err := natsbus.Start(natsbus.Config{Name: "one", Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Shutdown()
	before := s.Subscriptions()
	m := measuredSyncs(t.Context(), s, slog.New(slog.DiscardHandler))
	if m.Two < 1e-6 || m.Four < 1e-6 || m.Two > 0.5 || m.Four > 0.5 {
		t.Errorf("small collectives took %v seconds", m)
	}
	t.Logf("two ranks %.0f us, four %.0f us", m.Two*1e6, m.Four*1e6)
	for end := time.Now().Add(10 * time.Second); s.Subscriptions() > before; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d subscriptions, %d before", s.Subscriptions(), before)
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if m := measuredSyncs(ended, s, slog.New(slog.DiscardHandler)); m != (topology.Syncs{}) {
		t.Errorf("cut short: %v, want none", m)
	}
}

func TestShareOf(t *testing.T) {
	for read, want := range map[float64]float64{0: 1, 1e9: 0.25, 24e9: 2.5, 26.3e9: 2.75} {
		if got := shareOf(read); got != want {
			t.Errorf("%g bytes/s: a share of %v, want %v", read, got, want)
		}
	}
}

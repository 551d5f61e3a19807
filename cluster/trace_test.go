package cluster

import (
	"context"
	"log/slog"
	"testing"

	"github.com/shoal-llm/shoal/internal/tracing"
	"github.com/shoal-llm/shoal/internal/tracing/tracingtest"
)

// TestStepsAreTraced: a cluster exports a step with each node's part.
func TestStepsAreTraced(t *testing.T) {
	collector := tracingtest.New(t)
	tr, err := tracing.Start(t.Context(), collector.URL, "1.2.3", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	c := startLocal(t, LocalConfig{Sockets: 2, Serve: ServeConfig{Model: goldenDir, Tracer: tr}})
	generate(t, c, "traced", goldens(t)[0].Prompt, 5)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := tr.Close(ctx); err != nil {
		t.Fatal(err)
	}
	collector.Want(t, map[string]int{"\x04step": 1, "node ": 2, "shoal.exchange_wait_seconds": 2, "shoal.rows": 1})
}

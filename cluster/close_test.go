package cluster

import (
	"log/slog"
	"sync"
	"testing"

	"github.com/shoal-llm/shoal/internal/server/engine"
)

// TestCloseTwice: a program that closes a cluster both at an error and in a deferred call does not end with a panic, and
// each call returns after the end. A request after that is refused.
func TestCloseTwice(t *testing.T) {
	serve := ServeConfig{Model: goldenDir, Logger: slog.New(slog.DiscardHandler)}
	local, err := New(t.Context(), LocalConfig{Serve: serve})
	if err != nil {
		t.Fatal(err)
	}
	coordinator, err := StartCoordinator(t.Context(),
		CoordinatorConfig{Process: Process{Bind: "127.0.0.1:0", Insecure: true, DataDir: t.TempDir()}, Serve: serve})
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]interface {
		Engine
		Close()
	}{"local": local, "coordinator": coordinator} {
		t.Run(name, func(t *testing.T) {
			var both sync.WaitGroup
			for range 2 {
				both.Go(c.Close)
			}
			both.Wait()
			c.Close()
			if _, err := c.Submit(t.Context(), &engine.Request{Prompt: []int32{1}, MaxTokens: 1}); err == nil {
				t.Error("a request after the end was accepted")
			}
			if c.Health() == nil {
				t.Error("it is healthy after its end")
			}
		})
	}
}

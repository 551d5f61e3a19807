package eval

import (
	"testing"
	"time"

	"github.com/shoal-llm/shoal/cluster"
)

// embedded starts a cluster in the process of the test, and returns a client of its API.
func embedded(t *testing.T, serve cluster.ServeConfig) *Client {
	t.Helper()
	e, err := StartEmbedded(t.Context(), cluster.LocalConfig{KVBudget: 64 << 20, Serve: serve})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	c, err := NewClient(t.Context(), e.Address, "", "", 5*time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

package cluster

import (
	"testing"

	"github.com/shoal-llm/shoal/internal/proto"
)

// TestStatusOfGoneNodes: the figures of a node that is gone are dropped, those of the others stay.
func TestStatusOfGoneNodes(t *testing.T) {
	c := startLocal(t, LocalConfig{Serve: ServeConfig{Model: goldenDir}})
	c.noteStatus("gone", &proto.SocketStatus{})
	c.requestFigures()
	c.core.mu.Lock()
	defer c.core.mu.Unlock()
	if c.status["gone"] != nil || c.status["socket-0"] == nil {
		t.Errorf("%v", c.status)
	}
}

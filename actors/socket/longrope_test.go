package socket

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/actors/socket/shard"
	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/proto"
	"github.com/shoal-llm/shoal/topology"
)

// TestLongRopeContext: the served context chooses the factors on every socket. Within the original
// context the results are those of transformers for short sequences. With a longer context, the
// reference for long sequences, a sequence gets the same rotation at every length.
func TestLongRopeContext(t *testing.T) {
	const original = 64
	dir := filepath.Join(modelData, "phi3_longrope")
	short, long := readGoldensOf(t, dir, "goldens.short.json"), readGoldens(t, dir)
	for _, test := range []struct {
		g       goldens
		context int
	}{{short, original}, {short, 63}, {long, 512}, {long, 200}} {
		for _, n := range []int{1, 3} {
			t.Run(fmt.Sprintf("%d/%d", test.context, n), func(t *testing.T) {
				testGoldens(t, test.g, rigConfig{dir: dir, sockets: n, mapping: topology.Gather, kv: tensor.F32, context: test.context})
			})
		}
	}
}

// TestLoadContext: a node refuses a context that its model does not have, and positions beyond the
// served one.
func TestLoadContext(t *testing.T) {
	ck, err := checkpoint.Open(filepath.Join(modelData, "phi3_longrope"))
	if err != nil {
		t.Fatal(err)
	}
	defer ck.Close()
	place, err := topology.Place(1, topology.Gather, shard.ShapeOf(&ck.Config), []topology.Member{{ID: "n"}})
	if err != nil {
		t.Fatal(err)
	}
	r := &proto.LoadRequest{Placement: PlacementMessage(place, []uint64{0}), MaxStepTokens: 8}
	for context, positions := range map[uint32]int{0: 512, 64: 64, 512: 512, 513: 0, 1 << 31: 0} {
		r.Context = context
		_, _, err := placementOf(r, &ck.Config)
		if refused := err != nil && strings.Contains(err.Error(), "supports 512"); refused != (positions == 0) {
			t.Errorf("context %d: %v", context, err)
		}
		if got := limitsOf(r, &Config{Checkpoint: ck}, 0).Positions; positions > 0 && got != positions {
			t.Errorf("context %d: %d positions, want %d", context, got, positions)
		}
	}
}

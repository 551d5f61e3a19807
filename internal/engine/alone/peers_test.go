package alone

import (
	"context"
	"path/filepath"
	"slices"
	"testing"

	"github.com/shoal-llm/shoal/collective"
	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/topology"
)

// TestPeersDrawAlike: filled caches, each on its owner, give the tokens that one socket draws,
// under either mapping.
func TestPeersDrawAlike(t *testing.T) {
	for _, of := range []string{"llama", "deepseek_v3"} {
		ck, err := checkpoint.Open(filepath.Join("../model/testdata", of))
		if err != nil {
			t.Fatal(err)
		}
		defer ck.Close()
		draw := func(sockets int, mapping topology.Mapping, policy string) (drawn []int32) {
			c := Config{Checkpoint: ck, Weights: tensor.F32, KV: tensor.BF16, KVBudget: 64 << 20, StepTokens: 16, Mapping: mapping}
			for _, transport := range collective.NewMemory(sockets) {
				pool := tensor.NewPool(1)
				defer pool.Close()
				c.Peers = append(c.Peers, Peer{pool, func(context.Context, string, uint32, int, []uint32) (collective.Transport, error) {
					return transport, nil
				}})
			}
			a, err := New(t.Context(), c)
			if err != nil {
				t.Fatal(err)
			}
			defer a.Close()
			seqs := []uint64{1, 2, 3, 4, 5}
			if _, err := a.Fill(t.Context(), seqs, 100, policy); err != nil {
				t.Fatal(err)
			}
			var rows []*Row
			for _, id := range seqs {
				rows = append(rows, &Row{Seq: id, At: 100, Token: int32(3 * id)})
			}
			for range 4 {
				if _, _, _, err := a.Decode(t.Context(), rows); err != nil {
					t.Fatal(err)
				}
				for _, r := range rows {
					drawn = append(drawn, r.Token)
				}
			}
			return drawn
		}
		for _, policy := range []string{"full", "quest:page=16,budget=32", "snapstream:sink=2,recent=14,topk=16,obs=8,pool=3"} {
			want := draw(1, topology.Gather, policy)
			for _, mapping := range topology.Mappings {
				if got := draw(3, mapping, policy); !slices.Equal(got, want) {
					t.Errorf("%s, %s, %s: %v over three sockets, want %v", of, policy, mapping, got, want)
				}
			}
		}
	}
}

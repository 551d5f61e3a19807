package draft

import (
	"encoding/json"
	"math"
	"os"
	"slices"
	"testing"

	engine "github.com/shoal-llm/shoal/actors/layer"
	"github.com/shoal-llm/shoal/actors/socket/shard"
	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/proto"
)

// TestMTPGoldens checks that the multi-token-prediction layer drafts as a forward pass of PyTorch does
// (train/goldens_mtp.py), for several sequences in one pass, whole or in pieces, and that its rollback
// leaves no rows.
func TestMTPGoldens(t *testing.T) {
	const dir = "../../../internal/engine/model/testdata/deepseek_v3"
	raw, err := os.ReadFile(dir + "_mtp/goldens.json")
	if err != nil {
		t.Fatal(err)
	}
	var golden struct {
		Items []struct {
			Tokens, Drafts []int32
			Hidden, Odds   []float32
		}
	}
	if err := json.Unmarshal(raw, &golden); err != nil {
		t.Fatal(err)
	}
	ck, err := checkpoint.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer ck.Close()
	layer, err := ck.OpenMTP(dir + "_mtp")
	if err != nil {
		t.Fatal(err)
	}
	defer layer.Close()
	pool := tensor.NewPool(2)
	defer pool.Close()
	on := shard.Options{Pool: pool, Device: engine.Host{Pool: pool}}
	g, err := Load(t.Context(), &Config{Checkpoint: layer, MTP: true, KVBudget: 1 << 20}, ck, 0, tensor.F32, tensor.F32, on)
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	g.minProbability = 0
	h := ck.Config.Hidden
	for _, pieces := range []int{1, 3} {
		seqs := make([]*State, len(golden.Items))
		for piece := range pieces {
			var requests []Request
			for i, item := range golden.Items {
				if piece == 0 {
					seqs[i] = g.NewState()
				}
				d, n := seqs[i], len(item.Tokens)
				lo, hi := n*piece/pieces, n*(piece+1)/pieces
				d.tokens = append(d.tokens, item.Tokens[lo:hi]...)
				states := d.hidden.(*engine.HostStates)
				states.Rows = append(states.Rows, item.Hidden[lo*h:hi*h]...)
				if hi == lo && piece < pieces-1 {
					continue
				}
				requests = append(requests, Request{of: d, n: len(item.Drafts), out: &proto.Sampled{}, rows: d.tokens})
			}
			g.Draft(requests)
			if piece < pieces-1 {
				continue // drafts of the other sequences follow these rows and are rolled back
			}
			for i, w := range requests {
				want := golden.Items[i]
				var drafts []int32
				for _, d := range w.out.Drafts {
					drafts = append(drafts, int32(d))
				}
				if !slices.Equal(drafts, want.Drafts) {
					t.Errorf("%d pieces, %d rows: drafts %v, PyTorch %v", pieces, len(want.Tokens), drafts, want.Drafts)
				}
				for k, p := range w.out.Odds {
					if math.Abs(float64(p/want.Odds[k]-1)) > 2e-3 {
						t.Errorf("%d pieces, %d rows: draft %d has probability %v, in PyTorch %v", pieces, len(want.Tokens), k, p, want.Odds[k])
					}
				}
			}
		}
		for _, d := range seqs {
			if d.cache.Tokens() == 0 || d.cache.Staged() != 0 {
				t.Errorf("%d tokens in the cache, %d staged", d.cache.Tokens(), d.cache.Staged())
			}
			d.Release()
		}
	}
	if g.arena.Used() != 0 {
		t.Errorf("%d bytes are left", g.arena.Used())
	}
	// Without memory there are no drafts and no error.
	d := &State{mtp: true, tokens: golden.Items[0].Tokens, hidden: &engine.HostStates{Hidden: h, Rows: golden.Items[0].Hidden}}
	small, err := Load(t.Context(), &Config{Checkpoint: layer, MTP: true, KVBudget: 100}, ck, 0, tensor.BF16, tensor.BF16, on)
	if err != nil {
		t.Fatal(err)
	}
	defer small.Close()
	out := &proto.Sampled{}
	if small.Draft([]Request{{of: d, n: 3, out: out, rows: d.tokens}}); len(out.Drafts) > 0 || small.arena.Used() > 0 {
		t.Errorf("drafts %v in %d bytes of 100", out.Drafts, small.arena.Used())
	}
}

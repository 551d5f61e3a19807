package checkpoint_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
	"github.com/shoal-llm/shoal/internal/engine/gguf"
	"github.com/shoal-llm/shoal/internal/engine/model/modeltest"
)

// Settings of experts in GGUF files are refused by file and key, and blocks that predict further
// tokens change nothing.
func TestGGUFExperts(t *testing.T) {
	set := func(g *modeltest.GGUF, key string, v any) {
		g.Unset(key)
		g.Set(key, v)
	}
	for _, test := range []struct {
		folder string
		change func(g *modeltest.GGUF)
		want   string // in the error; empty: none
	}{
		{"minimax_m2", func(g *modeltest.GGUF) { g.Unset("minimax-m2.expert_gating_func") }, `field "minimax-m2.expert_gating_func": 0: only 2 (sigmoid)`},
		{"minimax_m2", func(g *modeltest.GGUF) { set(g, "minimax-m2.expert_gating_func", 1) }, `field "minimax-m2.expert_gating_func": 1: only 2 (sigmoid)`},
		{"minimax_m2", func(g *modeltest.GGUF) { g.Unset("minimax-m2.expert_count") }, `field "minimax-m2.expert_count": missing or 0`},
		{"minimax_m2", func(g *modeltest.GGUF) { g.Unset("minimax-m2.expert_feed_forward_length") }, `field "minimax-m2.expert_feed_forward_length": missing`},
		{"minimax_m2", func(g *modeltest.GGUF) { set(g, "minimax-m2.rope.dimension_count", 7) }, `field "minimax-m2.rope.dimension_count"`},
		{"olmoe", func(g *modeltest.GGUF) { g.Unset("olmoe.expert_count") }, `field "olmoe.expert_count": missing or 0`},
		{"olmoe", func(g *modeltest.GGUF) { set(g, "olmoe.expert_weights_norm", true) }, `field "olmoe.expert_weights_norm": is true`},
		{"granitemoe", func(g *modeltest.GGUF) { set(g, "granitemoe.expert_shared_feed_forward_length", 16) }, `field "granitemoe.expert_shared_feed_forward_length": is 16`},
		{"granitemoe", func(g *modeltest.GGUF) { g.Unset("granitemoe.expert_used_count") }, `field "granitemoe.expert_used_count": missing`},
		{"ernie4_5_moe", func(g *modeltest.GGUF) { set(g, "ernie4_5-moe.expert_shared_feed_forward_length", 24) }, `field "ernie4_5-moe.expert_shared_feed_forward_length": 24 is not a multiple of the experts' 16`},
		{"ernie4_5_moe", func(g *modeltest.GGUF) { set(g, "ernie4_5-moe.expert_used_count", 9) }, `field "ernie4_5-moe.expert_used_count": 9 of 8`},
		{"ernie4_5_moe", func(g *modeltest.GGUF) { g.Unset("ernie4_5-moe.expert_shared_feed_forward_length") }, ""},
		{"hunyuan_v1_moe", func(g *modeltest.GGUF) { g.Unset("hunyuan-moe.expert_shared_count") }, ""},
		{"hunyuan_v1_moe", func(g *modeltest.GGUF) { set(g, "hunyuan-moe.expert_count", 0) }, `field "hunyuan-moe.expert_count"`},
		{"glm4_moe", func(g *modeltest.GGUF) { set(g, "glm4moe.expert_gating_func", 1) }, `field "glm4moe.expert_gating_func": 1: only 2 (sigmoid)`},
		{"glm4_moe", func(g *modeltest.GGUF) { set(g, "glm4moe.nextn_predict_layers", 3) }, `field "glm4moe.nextn_predict_layers": 3 of 3 blocks`},
		{"glm4_moe", func(g *modeltest.GGUF) {
			set(g, "glm4moe.block_count", 4)
			set(g, "glm4moe.nextn_predict_layers", 1)
			for _, name := range []string{"nextn.eh_proj.weight", "attn_norm.weight", "ffn_gate_inp.weight", "exp_probs_b.bias"} {
				g.Add("blk.3."+name, gguf.F32, []int{4}, make([]byte, 16))
			}
		}, ""},
	} {
		hub := open(t, filepath.Join("../model/testdata", test.folder))
		g := modeltest.Convert(hub, always(gguf.F32))
		test.change(g)
		path := filepath.Join(t.TempDir(), "m.gguf")
		put(t, path, g.Bytes())
		c, err := checkpoint.Open(path)
		switch {
		case test.want == "" && err != nil:
			t.Errorf("%s: %v", test.folder, err)
		case test.want == "":
			if got, want := c.Config.Tensors(), hub.Config.Tensors(); len(got) != len(want) {
				t.Errorf("%s: %d tensors, want %d", test.folder, len(got), len(want))
			}
			check(t, c.Close())
		case err == nil || !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), path):
			t.Errorf("%s: %v; want %s", test.folder, err, test.want)
		}
	}
}

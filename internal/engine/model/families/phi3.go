package families

import (
	"fmt"

	"github.com/shoal-llm/shoal/internal/engine/model"
)

// Phi-3 and Phi-4 (Microsoft, arXiv 2404.14219, 2412.08905): the equations of llama.go, with
// projections of the same input stored as one matrix:
//
//	[q | k | v] = QKV h                                   (heads*dim + 2 kv*dim)
//	[g | u] = GateUp h                                    (ffn + ffn)
//
// sliding_window applies to all layers. Variants with a long context have two lists of rotary
// factors (longrope.go), and Phi-4-mini rotates three quarters of each head.
func init() {
	model.Register(model.Family{
		Name:     "Phi3ForCausalLM",
		Defaults: map[string]string{"rms_norm_eps": "1e-5", "max_position_embeddings": "4096"},
		Read:     readPhi3,
		Layer:    phi3Layer,
		Rotary:   []string{model.PartialKey, "short_factor", "long_factor"},
	})
}

func readPhi3(f *model.Fields, c *model.Config) {
	c.Tied = f.Bool("tie_word_embeddings", false)
	c.ReadRotated(f, 1)
	model.ReadRope(f, c, 10000)
	f.ReadActivation("hidden_act", "silu")
	if f.Has("sliding_window") { // null or missing: none
		model.ReadWindows(f, c, model.MaxPositions, func(int) bool { return true })
		c.DropIdleWindows()
	}
}

func phi3Layer(c *model.Config, i int) model.LayerSpec {
	l := model.DecoderLayer(c, i)
	p := fmt.Sprintf("model.layers.%d.", i)
	q, kv := c.Heads*c.HeadDim, c.KVHeads*c.HeadDim
	qkv := model.Linear{Weight: p + "self_attn.qkv_proj.weight", Of: q + 2*kv, Order: c.HeadOrder()}
	l.Q, l.K, l.V = qkv, qkv, qkv
	l.K.First, l.V.First, l.V.Order = q, q+kv, model.Order{}
	fuseGateUp(&l, c, i)
	return l
}

package modeltest

import (
	"strings"

	"github.com/shoal-llm/shoal/internal/engine/gguf"
	"github.com/shoal-llm/shoal/internal/engine/model"
)

var (
	gemma4Names = strings.NewReplacer("post_attention_layernorm", "post_attention_norm", "post_feedforward_layernorm_1", "post_ffw_norm_1",
		"post_feedforward_layernorm_2", "post_ffw_norm_2", "pre_feedforward_layernorm_2", "pre_ffw_norm_2",
		"pre_feedforward_layernorm", "ffn_norm",
		"post_feedforward_layernorm", "post_ffw_norm", "per_layer_input_gate", "inp_gate", "per_layer_projection",
		"proj", "post_per_layer_input_norm", "post_norm",
		"layer_scalar", "layer_output_scale.weight", "router.proj", "ffn_gate_inp", "router.scale", "ffn_gate_inp.scale",
		"router.per_expert_scale", "ffn_down_exps.scale")
	perLayerNames = map[string]string{model.PerLayerTable: "per_layer_token_embd.weight", model.PerLayerProject: "per_layer_model_proj.weight",
		model.PerLayerNorm: "per_layer_proj_norm.weight"}
)

// gemma4Keys writes the settings that differ between layers as lists.
func gemma4Keys(g *GGUF, m *model.Config) {
	const p = "gemma4."
	var kv, ffn []int32
	var sliding []bool
	window, dim := 0, m.RopeDim()
	for i := range m.Layers {
		kv, ffn, sliding = append(kv, int32(m.KVOf(i).Heads)), append(ffn, int32(m.FFNOf(i))), append(sliding, m.Window(i) > 0)
		window = max(window, m.Window(i))
	}
	shared := 0
	if m.OwnKV > 0 {
		shared = m.Layers - m.OwnKV
	}
	for key, v := range map[string]any{"attention.head_count_kv": kv, "feed_forward_length": ffn, "attention.sliding_window_pattern": sliding,
		"attention.sliding_window": window,
		"attention.key_length":     dim, "attention.value_length": dim, "rope.dimension_count": dim,
		"attention.key_length_swa": m.HeadDim, "attention.value_length_swa": m.HeadDim, "rope.dimension_count_swa": m.HeadDim,
		"shared_kv_layers": shared, "embedding_length_per_layer_input": m.PerLayer.Width, "rope.freq_base_swa": float32(m.LocalRope.Theta)} {
		g.Unset(p + key)
		g.Set(p+key, v)
	}
	if m.LogitCap != 0 {
		g.Set(p+"final_logit_softcapping", m.LogitCap)
	}
	if m.MoE.Experts > 0 {
		g.Set(p+"expert_feed_forward_length", m.MoE.FFN)
	}
	factors := make([]float32, dim/2)
	for i, f := range m.Rotations()[0].Freq {
		if factors[i] = 1; f == 0 {
			factors[i] = 1e30
		}
	}
	g.Add("rope_freqs.weight", gguf.F32, []int{dim / 2}, Quantize(gguf.F32, factors))
}

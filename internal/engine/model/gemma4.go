package model

import (
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/shoal-llm/shoal/internal/engine/model/rotary"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// Gemma 4, text: E2B, E4B, 12B, 26B-A4B and 31B (Google, 2026). Differences from gemma3.go:
//
//	for each layer:
//	    h = RMSNorm(x, AttnNorm)
//	    q, k, v = Q h, K h, V h                           v = K h in full layers with attention_k_eq_v
//	    q, k = RoPE(RMSNorm(q, QNorm)), RoPE(RMSNorm(k, KNorm))
//	    v = RMSNorm(v)                                    without weights
//	    x += RMSNorm(O attention(q, k, v), PostAttnNorm)  scores are not scaled
//	    x += RMSNorm(FFN RMSNorm(x, FFNNorm), PostFFNNorm)
//	    per-layer inputs (E2B, E4B), see PerLayer; experts and a dense FFN in one layer (26B), see DenseFFNNames
//	    x *= Scalar
//
// Norms multiply by their weight. Layers without a window have fewer and wider KV heads, and rotate
// only the first quarter of the pairs. The last num_kv_shared_layers layers read the keys and
// values of the last earlier layer of their kind; use_double_wide_mlp doubles their FFN.
func init() {
	sizes := map[string]string{"hidden_size": "2304", "intermediate_size": "9216", "num_hidden_layers": "30", "num_attention_heads": "8",
		"num_key_value_heads": "4", "head_dim": "256", "vocab_size": "262144", "max_position_embeddings": "131072"}
	a := architecture{Name: gemma4, defaults: sizes, layer: gemma4Layer, extra: llamaExtra, beyond: gemma4Beyond}
	a.read = func(f *fields, c *Config) {
		readGemma4(f, c, 512)
		f.perLayer(c)
		f.denseFFN(c)
	}
	register(a)
	a.Name, a.defaults = gemma4Unified, maps.Clone(sizes)
	a.defaults["max_position_embeddings"] = "262144"
	a.read = func(f *fields, c *Config) { readGemma4(f, c, 1024) }
	register(a)
}

const (
	gemma4        = "Gemma4ForCausalLM"
	gemma4Unified = "Gemma4UnifiedForCausalLM" // 12B
)

// readGemma4 reads what all sizes have. window is the default.
func readGemma4(f *fields, c *Config, window int) {
	c.Tied = f.Bool("tie_word_embeddings", true)
	c.QKVBias = f.Bool("attention_bias", false)
	c.OutBias = c.QKVBias
	c.QKNorm, c.VNorm, c.ScaledEmbedding, c.QueryScale = true, true, true, 1
	c.Activation = tensor.GELUTanh
	f.activation("hidden_activation", "gelu_pytorch_tanh")
	c.LogitCap = float32(f.Number("final_logit_softcapping", 0, 1e-3, 1e6))
	f.OneOf("use_bidirectional_attention", "vision", "vision") // pictures only
	readWindows(f, c, window, func(layer int) bool { return (layer+1)%6 != 0 })
	if f.err != nil {
		return
	}
	if c.Windows != nil && c.Windows[c.Layers-1] > 0 { // as in transformers
		if c.Windows[c.Layers-1] = 0; slices.Max(c.Windows) == 0 {
			c.Windows = nil
		}
	}
	c.VFromK = f.Bool("attention_k_eq_v", false)
	f.globalKV(c)
	f.ropeOfKinds(c)
	f.lenders(c)
}

// globalKV reads the heads of the layers without a window: global_head_dim and
// num_global_key_value_heads, or per_layer_config with an entry for each such layer.
func (f *fields) globalKV(c *Config) {
	g := KVShape{c.KVHeads, f.Size("global_head_dim", 512, maxHeadDim)}
	if n := f.Size("num_global_key_value_heads", c.KVHeads, maxHeads); c.VFromK {
		g.Heads = n
	}
	key := "global_head_dim"
	if layers := f.Object("per_layer_config"); layers != nil {
		key = "per_layer_config"
		seen := false
		for i := range c.Layers {
			one := KVShape{c.KVHeads, c.HeadDim}
			if in := layers.Object(strconv.Itoa(i)); in != nil {
				one = KVShape{in.Size("num_key_value_heads", c.KVHeads, maxHeads), in.Size("head_dim", c.HeadDim, maxHeadDim)}
				in.only("head_dim num_key_value_heads")
				layers.take(in)
			}
			switch {
			case c.Window(i) > 0 && one != (KVShape{c.KVHeads, c.HeadDim}):
				layers.fail(strconv.Itoa(i), ErrUnsupported, "layer %d has a window and must have the heads of the other layers with one", i)
			case c.Window(i) == 0 && seen && one != g:
				layers.fail(strconv.Itoa(i), ErrUnsupported, "layer %d must have the heads of the other layers without a window", i)
			case c.Window(i) == 0:
				g, seen = one, true
			}
		}
		f.take(layers)
	}
	switch {
	case f.err != nil:
	case c.Heads%g.Heads != 0:
		if key == "global_head_dim" {
			key = "num_global_key_value_heads"
		}
		f.fail(key, ErrFormat, "%d KV heads do not divide the %d attention heads", g.Heads, c.Heads)
	case g.Dim%2 != 0:
		f.fail(key, ErrUnsupported, "%d is odd; rotary positions need pairs", g.Dim)
	case g != KVShape{c.KVHeads, c.HeadDim}:
		c.Global = g
	}
}

// ropeOfKinds reads rope_parameters, which has an object for each kind of layer.
func (f *fields) ropeOfKinds(c *Config) {
	if f.has("rope_scaling") {
		f.fail("rope_scaling", ErrUnsupported, "this family has rope_parameters with an object for each kind of layer")
	}
	c.Rope, c.LocalRope = rotary.Rope{Theta: 1e6, Type: "proportional", Factor: 1, Part: 0.25}, rotary.Rope{Theta: 1e4}
	p := f.Object("rope_parameters")
	if p == nil {
		return
	}
	p.only("full_attention sliding_attention")
	for key, r := range map[string]*rotary.Rope{"full_attention": &c.Rope, "sliding_attention": &c.LocalRope} {
		in := p.Object(key)
		if in == nil {
			continue
		}
		r.Theta = in.Required("rope_theta", 2, maxTheta)
		known := "rope_theta rope_type"
		switch in.OneOf("rope_type", "default", "default", "proportional") {
		case "default":
			*r = rotary.Rope{Theta: r.Theta}
			if part := in.Number("partial_rotary_factor", 1, 0, 1); part != 1 {
				in.fail("partial_rotary_factor", ErrUnsupported, "%g with rope_type default; it goes with proportional", part)
			}
			known += " partial_rotary_factor"
		case "proportional":
			r.Type, r.Factor, r.Part = "proportional", in.Number("factor", 1, 1, 1e6), in.Number("partial_rotary_factor", 1, 0, 1)
			known += " factor partial_rotary_factor"
		}
		in.only(known)
		p.take(in)
	}
	f.take(p)
}

// lenders reads which layers read the keys and values of earlier ones.
func (f *fields) lenders(c *Config) {
	shared := f.Index("num_kv_shared_layers", 0, c.Layers-1)
	if f.err != nil || shared == 0 {
		return
	}
	c.OwnKV, c.WideFFN = c.Layers-shared, f.Bool("use_double_wide_mlp", false)
	for i := c.OwnKV; i < c.Layers; i++ {
		if c.KVOwner(i) < 0 {
			f.fail("num_kv_shared_layers", ErrFormat, "layer %d has no earlier layer of its kind among the first %d, whose keys and values it could read", i, c.OwnKV)
			return
		}
	}
}

func (f *fields) perLayer(c *Config) {
	const key = "hidden_size_per_layer_input"
	c.PerLayer.Width = f.Index(key, 256, maxPerLayer)
	if f.given(key) && !f.has(key) { // null, as some files of 26B and 31B have it
		c.PerLayer.Width = 0
	}
	if c.PerLayer.Width == 0 || f.err != nil {
		return
	}
	if c.PerLayer.Vocab = f.Size("vocab_size_per_layer_input", 262144, maxVocab); c.PerLayer.Vocab < c.Vocab {
		f.fail("vocab_size_per_layer_input", ErrFormat, "%d is below the vocabulary of %d", c.PerLayer.Vocab, c.Vocab)
	}
}

// maxPerLayer bounds the width of a layer's own input; published models have 256.
const maxPerLayer = 1 << 13

func (f *fields) denseFFN(c *Config) {
	if !f.Bool("enable_moe_block", false) {
		return
	}
	c.MoE = MoE{
		Experts: f.Size("num_experts", 0, maxExperts), PerToken: f.Size("top_k_experts", 0, maxExperts), FFN: f.Size("moe_intermediate_size", 0, maxFFN),
		Shared: c.FFN, DenseFFN: true, Router: Router{Score: Softmax, Normalise: true, Scale: 1},
	}
	if c.WideFFN {
		f.fail("use_double_wide_mlp", ErrUnsupported, "true: not together with experts")
	}
	checkMoE(f, c, "num_experts", "top_k_experts", "", "")
}

func gemma4Layer(c *Config, i int) LayerSpec {
	l := gemma3Layer(c, i)
	p := fmt.Sprintf("model.layers.%d.", i)
	l.VNorm, l.Scalar = true, p+"layer_scalar"
	switch {
	case c.borrows(i):
		l.K, l.V, l.KNorm = Linear{}, Linear{}, ""
	case c.VFromK && c.Window(i) == 0:
		l.V = Linear{}
	}
	if c.PerLayer.Width > 0 {
		l.PerLayer = &PerLayerSpec{Gate: linear(p+"per_layer_input_gate", false), Project: linear(p+"per_layer_projection", false), Norm: p + "post_per_layer_input_norm.weight"}
	}
	if m := &c.MoE; m.DenseFFN {
		l.Experts = &MoENames{
			Router:     p + "router.proj.weight",
			SharedGate: p + "mlp.gate_proj.weight", SharedUp: p + "mlp.up_proj.weight", SharedDown: p + "mlp.down_proj.weight",
			expert: p + "experts.", gate: "gate_proj.weight", up: "up_proj.weight", down: "down_proj.weight",
			DenseFFN: &DenseFFNNames{RouterScale: p + "router.scale", ExpertScale: p + "router.per_expert_scale", SharedNorm: p + "post_feedforward_layernorm_1.weight",
				Norm: p + "pre_feedforward_layernorm_2.weight", PostNorm: p + "post_feedforward_layernorm_2.weight"},
		}
	}
	return l
}

// gemma4Beyond allows the keys and values of layers that read those of earlier ones: published
// files may hold them.
func gemma4Beyond(c *Config, name string) bool {
	for _, part := range []string{"k_proj.weight", "v_proj.weight", "k_norm.weight", "k_proj.bias", "v_proj.bias"} {
		var i int
		if n, _ := fmt.Sscanf(name, "model.layers.%d.", &i); n == 1 && c.borrows(i) && i < c.Layers && name == fmt.Sprintf("model.layers.%d.self_attn.%s", i, part) {
			return true
		}
	}
	return false
}

package families

import (
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/shoal-llm/shoal/internal/engine/model"
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
	a := model.Family{Name: Gemma4, Defaults: sizes, Layer: gemma4Layer, Beyond: gemma4Extra}
	a.Read = func(f *model.Fields, c *model.Config) {
		readGemma4(f, c, 512)
		perLayer(f, c)
		denseFFN(f, c)
	}
	model.Register(a)
	a.Name, a.Defaults = Gemma4Unified, maps.Clone(sizes)
	a.Defaults["max_position_embeddings"] = "262144"
	a.Read = func(f *model.Fields, c *model.Config) { readGemma4(f, c, 1024) }
	model.Register(a)
}

const (
	Gemma4        = "Gemma4ForCausalLM"
	Gemma4Unified = "Gemma4UnifiedForCausalLM" // 12B
)

// readGemma4 reads the settings of all sizes. window is the default of the sliding window.
func readGemma4(f *model.Fields, c *model.Config, window int) {
	c.Tied = f.Bool("tie_word_embeddings", true)
	c.QKVBias = f.Bool("attention_bias", false)
	c.OutBias = c.QKVBias
	c.QKNorm, c.VNorm, c.ScaledEmbedding, c.QueryScale = true, true, true, 1
	c.Activation = tensor.GELUTanh
	f.ReadActivation("hidden_activation", "gelu_pytorch_tanh")
	c.LogitCap = float32(f.Number("final_logit_softcapping", 0, 1e-3, 1e6))
	f.OneOf("use_bidirectional_attention", "vision", "vision") // pictures only
	model.ReadWindows(f, c, window, func(layer int) bool { return (layer+1)%6 != 0 })
	if f.Err != nil {
		return
	}
	if c.Windows != nil && c.Windows[c.Layers-1] > 0 { // as in transformers
		if c.Windows[c.Layers-1] = 0; slices.Max(c.Windows) == 0 {
			c.Windows = nil
		}
	}
	c.VFromK = f.Bool("attention_k_eq_v", false)
	globalKV(f, c)
	ropeOfKinds(f, c)
	lenders(f, c)
}

// globalKV reads the heads of the layers without a window: global_head_dim and
// num_global_key_value_heads, or per_layer_config with an entry for each such layer.
func globalKV(f *model.Fields, c *model.Config) {
	g := model.KVShape{Heads: c.KVHeads, Dim: f.Size("global_head_dim", 512, model.MaxHeadDim)}
	if n := f.Size("num_global_key_value_heads", c.KVHeads, model.MaxHeads); c.VFromK {
		g.Heads = n
	}
	key := "global_head_dim"
	if layers := f.Object("per_layer_config"); layers != nil {
		key = "per_layer_config"
		seen := false
		for i := range c.Layers {
			one := model.KVShape{Heads: c.KVHeads, Dim: c.HeadDim}
			if in := layers.Object(strconv.Itoa(i)); in != nil {
				one = model.KVShape{Heads: in.Size("num_key_value_heads", c.KVHeads, model.MaxHeads),
					Dim: in.Size("head_dim", c.HeadDim, model.MaxHeadDim)}
				in.Only("head_dim num_key_value_heads")
				layers.Take(in)
			}
			switch {
			case c.Window(i) > 0 && one != (model.KVShape{Heads: c.KVHeads, Dim: c.HeadDim}):
				layers.Fail(strconv.Itoa(i), model.ErrUnsupported, "layer %d has a window and must have the heads of the other layers with one", i)
			case c.Window(i) == 0 && seen && one != g:
				layers.Fail(strconv.Itoa(i), model.ErrUnsupported, "layer %d must have the heads of the other layers without a window", i)
			case c.Window(i) == 0:
				g, seen = one, true
			}
		}
		f.Take(layers)
	}
	switch {
	case f.Err != nil:
	case c.Heads%g.Heads != 0:
		if key == "global_head_dim" {
			key = "num_global_key_value_heads"
		}
		f.Fail(key, model.ErrFormat, "%d KV heads do not divide the %d attention heads", g.Heads, c.Heads)
	case g.Dim%2 != 0:
		f.Refuse(key, "%d is odd; rotary positions need pairs", g.Dim)
	case g != model.KVShape{Heads: c.KVHeads, Dim: c.HeadDim}:
		c.Global = g
	}
}

// ropeOfKinds reads rope_parameters, which has an object for each kind of layer.
func ropeOfKinds(f *model.Fields, c *model.Config) {
	if f.Has("rope_scaling") {
		f.Refuse("rope_scaling", "this family has rope_parameters with an object for each kind of layer")
	}
	c.Rope, c.LocalRope = rotary.Rope{Theta: 1e6, Type: "proportional", Factor: 1, Part: 0.25}, rotary.Rope{Theta: 1e4}
	p := f.Object("rope_parameters")
	if p == nil {
		return
	}
	p.Only("full_attention sliding_attention")
	for key, r := range map[string]*rotary.Rope{"full_attention": &c.Rope, "sliding_attention": &c.LocalRope} {
		in := p.Object(key)
		if in == nil {
			continue
		}
		r.Theta = in.Required("rope_theta", 2, model.MaxTheta)
		known := "rope_theta rope_type"
		switch in.OneOf("rope_type", "default", "default", "proportional") {
		case "default":
			*r = rotary.Rope{Theta: r.Theta}
			if part := in.Number("partial_rotary_factor", 1, 0, 1); part != 1 {
				in.Refuse("partial_rotary_factor", "%g with rope_type default; it goes with proportional", part)
			}
			known += " partial_rotary_factor"
		case "proportional":
			r.Type, r.Factor, r.Part = "proportional", in.Number("factor", 1, 1, 1e6), in.Number("partial_rotary_factor", 1, 0, 1)
			known += " factor partial_rotary_factor"
		}
		in.Only(known)
		p.Take(in)
	}
	f.Take(p)
}

// lenders reads which layers read the keys and values of earlier ones.
func lenders(f *model.Fields, c *model.Config) {
	shared := f.Index("num_kv_shared_layers", 0, c.Layers-1)
	if f.Err != nil || shared == 0 {
		return
	}
	c.OwnKV, c.WideFFN = c.Layers-shared, f.Bool("use_double_wide_mlp", false)
	for i := c.OwnKV; i < c.Layers; i++ {
		if c.KVOwner(i) < 0 {
			f.Fail("num_kv_shared_layers", model.ErrFormat,
				"layer %d has no earlier layer of its kind among the first %d, whose keys and values it could read", i, c.OwnKV)
			return
		}
	}
}

func perLayer(f *model.Fields, c *model.Config) {
	const key = "hidden_size_per_layer_input"
	c.PerLayer.Width = f.Index(key, 256, MaxPerLayer)
	if f.Given(key) && !f.Has(key) { // null, as some files of 26B and 31B have it
		c.PerLayer.Width = 0
	}
	if c.PerLayer.Width == 0 || f.Err != nil {
		return
	}
	if c.PerLayer.Vocab = f.Size("vocab_size_per_layer_input", 262144, model.MaxVocab); c.PerLayer.Vocab < c.Vocab {
		f.Fail("vocab_size_per_layer_input", model.ErrFormat, "%d is below the vocabulary of %d", c.PerLayer.Vocab, c.Vocab)
	}
}

// MaxPerLayer bounds the width of a layer's own input; published models have 256.
const MaxPerLayer = 1 << 13

func denseFFN(f *model.Fields, c *model.Config) {
	if !f.Bool("enable_moe_block", false) {
		return
	}
	c.MoE = model.MoE{
		Experts: f.Size("num_experts", 0, model.MaxExperts), PerToken: f.Size("top_k_experts", 0, model.MaxExperts),
		FFN:    f.Size("moe_intermediate_size", 0, model.MaxFFN),
		Shared: c.FFN, DenseFFN: true, Router: model.Router{Score: model.Softmax, Normalise: true, Scale: 1},
	}
	if c.WideFFN {
		f.Refuse("use_double_wide_mlp", "true: not together with experts")
	}
	model.CheckMoE(f, c, "num_experts", "top_k_experts", "", "")
}

func gemma4Layer(c *model.Config, i int) model.LayerSpec {
	l := gemma3Layer(c, i)
	p := fmt.Sprintf("model.layers.%d.", i)
	l.VNorm, l.Scalar = true, p+"layer_scalar"
	switch {
	case c.Borrows(i):
		l.K, l.V, l.KNorm = model.Linear{}, model.Linear{}, ""
	case c.VFromK && c.Window(i) == 0:
		l.V = model.Linear{}
	}
	if c.PerLayer.Width > 0 {
		l.PerLayer = &model.PerLayerSpec{Gate: model.Projection(p+"per_layer_input_gate", false),
			Project: model.Projection(p+"per_layer_projection", false), Norm: p + "post_per_layer_input_norm.weight"}
	}
	if m := &c.MoE; m.DenseFFN {
		l.Experts = &model.MoENames{
			Router:     p + "router.proj.weight",
			SharedGate: p + "mlp.gate_proj.weight", SharedUp: p + "mlp.up_proj.weight", SharedDown: p + "mlp.down_proj.weight",
			ExpertPrefix: p + "experts.", GatePart: "gate_proj.weight", UpPart: "up_proj.weight", DownPart: "down_proj.weight",
			DenseFFN: &model.DenseFFNNames{RouterScale: p + "router.scale", ExpertScale: p + "router.per_expert_scale",
				SharedNorm: p + "post_feedforward_layernorm_1.weight",
				Norm:       p + "pre_feedforward_layernorm_2.weight", PostNorm: p + "post_feedforward_layernorm_2.weight"},
		}
	}
	return l
}

// gemma4Extra allows unused keys and values of layers that read those of earlier layers, because
// published files may have them.
func gemma4Extra(c *model.Config, name string) bool {
	for _, part := range []string{"k_proj.weight", "v_proj.weight", "k_norm.weight", "k_proj.bias", "v_proj.bias"} {
		var i int
		if n, _ := fmt.Sscanf(name, "model.layers.%d.", &i); n == 1 && c.Borrows(i) && i < c.Layers &&
			name == fmt.Sprintf("model.layers.%d.self_attn.%s", i, part) {
			return true
		}
	}
	return false
}

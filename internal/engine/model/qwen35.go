package model

import "fmt"

// Qwen3.5, 3.6 and 3.8, dense. Most layers have the gated delta rule (delta.go) instead of
// attention; by default every fourth layer has attention. Differences of that from llama.go:
//
//	q_i, g_i = Q_i h                                      (dim), (dim) of each query head
//	q_i, k_j = RoPE(RMSNorm(q_i)), RoPE(RMSNorm(k_j))     the first quarter of a head rotates
//	x       += O [attention(q, k, v) * sigmoid(g)]
//
// Every norm except that of the gated delta rule multiplies by 1 + its weight.
func init() {
	register(architecture{
		Name: "Qwen3_5ForCausalLM",
		defaults: map[string]string{"hidden_size": "4096", "intermediate_size": "12288", "num_hidden_layers": "32", "num_attention_heads": "16",
			"num_key_value_heads": "4", "head_dim": "256", "vocab_size": "248320", "max_position_embeddings": "32768"},
		read:   readQwen35,
		layer:  qwen35Layer,
		rotary: []string{partialKey},
		extra:  llamaExtra,
	})
}

// In the variant with experts, every layer has routed experts and a shared one. It computes
// y = sigmoid(SharedFactor h) Shared(h) + the sum over the chosen experts of moe.go, whose weights are
// divided by their sum.
func init() {
	register(architecture{
		Name: "Qwen3_5MoeForCausalLM",
		defaults: map[string]string{"hidden_size": "2048", "intermediate_size": "512", "num_hidden_layers": "40", "num_attention_heads": "16",
			"num_key_value_heads": "2", "head_dim": "256", "vocab_size": "248320", "max_position_embeddings": "32768"},
		read: func(f *fields, c *Config) {
			readQwen35(f, c)
			readGatedExperts(f, c, 256, 8, nil)
		},
		layer:  qwen35Layer,
		rotary: []string{"partial_rotary_factor"},
		extra:  llamaExtra,
	})
}

// Qwen3-Next: Qwen3.5 with experts, of which some layers may have none. The rows of the projections of
// linear layers are stored by key head.
func init() {
	register(architecture{
		Name: qwen3Next,
		defaults: map[string]string{"hidden_size": "2048", "intermediate_size": "5632", "num_hidden_layers": "48", "num_attention_heads": "16",
			"num_key_value_heads": "2", "head_dim": "256", "vocab_size": "151936", "max_position_embeddings": "32768"},
		read: func(f *fields, c *Config) {
			readQwen35(f, c)
			readGatedExperts(f, c, 512, 10, denseLayers(c.Layers, f.Size("decoder_sparse_step", 1, maxLayers), f.Layers("mlp_only_layers", c.Layers)))
			c.MoE.Router.Normalise = f.Bool("norm_topk_prob", true)
		},
		layer:  qwen35Layer,
		rotary: []string{"partial_rotary_factor"},
		extra:  llamaExtra,
	})
}

const qwen3Next = "Qwen3NextForCausalLM"

// readGatedExperts reads the experts, with the class's numbers of all and of chosen ones.
func readGatedExperts(f *fields, c *Config, all, chosen int, dense []int) {
	c.MoE = MoE{
		Experts:  f.Size("num_experts", all, maxExperts),
		PerToken: f.Size("num_experts_per_tok", chosen, maxExperts),
		FFN:      f.Size("moe_intermediate_size", 512, maxFFN),
		Shared:   f.Size("shared_expert_intermediate_size", 512, maxFFN),
		Gated:    true,
		Router:   Router{Score: Softmax, Normalise: true, Scale: 1},
		Dense:    dense,
	}
	checkMoE(f, c, "num_experts", "num_experts_per_tok", "", "")
}

func readQwen35(f *fields, c *Config) {
	f.plainPositions()
	c.Tied = f.Bool("tie_word_embeddings", false)
	c.QKNorm, c.NormsAddOne, c.OutputGate = true, true, true
	if f.Bool("attention_bias", false) {
		f.fail("attention_bias", ErrUnsupported, "true: biases of gated queries are not implemented")
	}
	if !f.Bool("attn_output_gate", true) {
		f.fail("attn_output_gate", ErrUnsupported, "false: attention without an output gate is not implemented for this family")
	}
	if kind := f.Text("output_gate_type", "swish"); sameActivation[kind] != "silu" && kind != "silu" {
		f.fail("output_gate_type", ErrUnsupported, "%q: the output of linear layers is gated by swish here", clip(kind))
	}
	f.activation("hidden_act", "silu")
	readDelta(f, c)
	c.readRotated(f, 0.25)
	readRope(f, c, 10000)
}

func qwen35Layer(c *Config, i int) LayerSpec {
	l := llamaLayer(c, i)
	p := fmt.Sprintf("model.layers.%d.", i)
	if e := l.Experts; e != nil {
		e.gateShared(p + "mlp.")
	}
	if c.Recurrent(i) {
		linearLayer(&l, p)
		if d := l.Delta; c.Architecture == qwen3Next {
			d.QKV, d.Z, d.B, d.A = Linear{}, Linear{}, Linear{}, Linear{}
			d.Joint, d.BA = linear(p+"linear_attn.in_proj_qkvz", false), linear(p+"linear_attn.in_proj_ba", false)
		}
		return l
	}
	c.gatedQuery(&l)
	return l
}

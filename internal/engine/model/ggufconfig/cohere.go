package ggufconfig

// cohere reads the keys of Command R and of Cohere 2. Every fourth layer of Cohere 2 has no window, as in
// llama.cpp.
func (m *metadata) cohere() {
	m.take(layerNormEps, "layer_norm_eps")
	m.take("logit_scale", "logit_scale")
	if m.arch == "cohere2" {
		m.window()
	} else {
		m.set("use_qk_norm", "general.architecture", m.has("blk.0.attn_q_norm.weight"))
	}
}

// layerNormEps replaces the epsilon of RMSNorm in families whose norms subtract the mean.
const layerNormEps = "attention.layer_norm_epsilon"

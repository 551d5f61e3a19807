package model

// cohere reads the keys of Command R and of Cohere 2, whose every fourth layer attends to everything
// in llama.cpp.
func (m *metadata) cohere() {
	m.take(layerNormEps, "layer_norm_eps")
	m.take("logit_scale", "logit_scale")
	if m.arch == "cohere2" {
		m.window()
	}
}

// layerNormEps replaces the epsilon of RMSNorm in families whose norms subtract the mean.
const layerNormEps = "attention.layer_norm_epsilon"

package ggufconfig

// olmo: with a window it is OLMo 3, whose every fourth layer attends to everything.
func (m *metadata) olmo() {
	if m.window() > 0 {
		m.set("architectures", "general.architecture", []string{"Olmo3ForCausalLM"})
	}
}

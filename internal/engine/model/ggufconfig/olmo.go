package ggufconfig

// olmo reads a file with a window as OLMo 3, in which every fourth layer has no window.
func (m *metadata) olmo() {
	if m.window() > 0 {
		m.set("architectures", "general.architecture", []string{"Olmo3ForCausalLM"})
	}
}

package ggufconfig

// exaone4: the 32B model, known by its 64 layers, always has windows, as in
// llama.cpp. A file without a window has none in any layer.
func (m *metadata) exaone4() {
	const layers32B, window32B = 64, 4096
	if m.window() > 0 {
		return
	}
	key := m.arch + ".attention.sliding_window"
	if layers, _ := m.config["num_hidden_layers"].(int64); layers == layers32B {
		m.set("sliding_window", key, window32B)
		return
	}
	m.set("sliding_window", key, nil)
}

package ggufconfig

// exaone4 gives the 32B model, known by its 64 layers, windows in all cases, as llama.cpp does. Other files
// without a window have none in any layer.
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

package model

// PerLayer is an input that every layer gets of its own (Gemma 3n and 4): a row of a second
// embedding and a projection of the first. With Width w, hidden size h and L layers:
//
//	p = Project e h^-0.5                                  e the scaled embedding; (L, w)
//	p_l = RMSNorm(p_l, Norm)                              of each layer
//	i_l = (p_l + Table[token]_l sqrt(w)) 2^-0.5           the root is rounded as in Config.EmbeddingScale
//
// After its FFN, layer l with input i_l computes
//
//	x += RMSNorm(Project (act(Gate x) * i_l), Norm)       act as in its FFN
type PerLayer struct {
	Width int // 0: there are no such inputs
	Vocab int // rows of the table; at least the vocabulary
}

// PerLayerSpec names the tensors of a layer.
type PerLayerSpec struct {
	Gate    Linear // (width, hidden)
	Project Linear // (hidden, width)
	Norm    string // (hidden)
}

// Tensors of the inputs of all layers.
const (
	PerLayerTable   = "model.embed_tokens_per_layer.weight"     // (PerLayer.Vocab, layers*width), read by row
	PerLayerProject = "model.per_layer_model_projection.weight" // (layers*width, hidden)
	PerLayerNorm    = "model.per_layer_projection_norm.weight"  // (width)
)

func (s *specs) perLayerInputs(c *Config) {
	if w := c.PerLayer.Width; w > 0 {
		s.add(PerLayerTable, c.PerLayer.Vocab, c.Layers*w)
		s.add(PerLayerProject, c.Layers*w, c.Hidden)
		s.add(PerLayerNorm, w)
	}
}

func (s *specs) perLayer(c *Config, l *PerLayerSpec) {
	if l != nil {
		s.linear(l.Gate, c.PerLayer.Width, c.Hidden)
		s.linear(l.Project, c.Hidden, c.PerLayer.Width)
		s.add(l.Norm, c.Hidden)
	}
}

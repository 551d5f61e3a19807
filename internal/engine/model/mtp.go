package model

import "fmt"

// Multi-token prediction (DeepSeek-V3, arXiv 2412.19437, section 2.2): a further layer of the same
// shape that predicts one more token. For position i, with the head's input h and the embedding e
// of the sampled token i+1:
//
//	x = Project [RMSNorm(e, EmbedNorm) | RMSNorm(h, HiddenNorm)]
//	x = Layer(x), with a cache of its own
//	logits of token i+2 = Head RMSNorm(x, FinalNorm)
//
// It uses the embedding and the head of the model. Given its own x as h and its own token, it predicts further
// tokens, as in vLLM and SGLang. Published checkpoints hold it under the number after the last
// Layer; others may have it in a separate folder.
type MTP struct {
	EmbedNorm, HiddenNorm string // (hidden)
	Project               Linear // (hidden, 2*hidden)
	Layer                 LayerSpec
	FinalNorm             string // (hidden)
}

// MTP names the tensors of the multi-token prediction layer.
func (c *Config) MTP() MTP {
	p := fmt.Sprintf("model.layers.%d.", c.Layers)
	l := c.Layer(c.Layers)
	l.Cache = 0
	return MTP{EmbedNorm: p + "enorm.weight", HiddenNorm: p + "hnorm.weight", Project: Projection(p+"eh_proj", false),
		Layer: l, FinalNorm: p + "shared_head.norm.weight"}
}

// MTPTensors lists the tensors of that layer.
func (c *Config) MTPTensors() []Spec {
	var s specs
	t := c.MTP()
	s.add(t.EmbedNorm, c.Hidden)
	s.add(t.HiddenNorm, c.Hidden)
	s.linear(t.Project, c.Hidden, 2*c.Hidden)
	s.layer(c, &t.Layer, c.Layers)
	s.add(t.FinalNorm, c.Hidden)
	return s
}

package model

import "strings"

// Embedding models and rerankers are decoders without an output head. Their architecture is the
// decoder's with another ending, and the names of their tensors may lack "model.". A GGUF file of
// one names its pooling.

// bodies are the endings of architectures without an output head, longest first.
var bodies = []string{"ForSequenceClassification", "ForMaskedLM", "BidirectionalModel", "TextModel", "Model"}

// bodyOf returns the architecture with a head of which name is the body. both means that every
// token attends to the whole text.
func bodyOf(name string) (arch string, both, ok bool) {
	for _, ending := range bodies {
		if stem, found := strings.CutSuffix(name, ending); found {
			if _, encoder := Lookup(stem + "Model"); encoder {
				return stem + "Model", true, true
			}
			_, known := Lookup(stem + "ForCausalLM")
			return stem + "ForCausalLM", ending == "BidirectionalModel", known
		}
	}
	return name, false, false
}

// readDirection reads whether attention is causal. Kinds of layers that carry a state from token to
// token, or share caches, are causal only.
func (f *Fields) readDirection(c *Config) {
	if c.NonCausal = c.NonCausal || !f.Bool("is_causal", true); !c.NonCausal {
		return
	}
	if c.Latent.Rank > 0 || c.Delta.KeyHeads > 0 || c.SwiftKV.Layers > 0 || c.OwnKV > 0 {
		f.Refuse("is_causal", "attention to both sides is not implemented for %s", c.Architecture)
	}
}

// AfterPooling reports whether a tensor of a GGUF file works on vectors.
func (c *Config) AfterPooling(name string) bool {
	first, _, _ := strings.Cut(name, ".")
	return c.Headless && (first == "cls" || first == "dense_2" || first == "dense_3")
}

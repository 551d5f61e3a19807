package model

import (
	"strings"

	"github.com/shoal-llm/shoal/internal/attempt"
)

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
			if _, encoder := lookup(stem + "Model"); encoder {
				return stem + "Model", true, true
			}
			_, known := lookup(stem + "ForCausalLM")
			return stem + "ForCausalLM", ending == "BidirectionalModel", known
		}
	}
	return name, false, false
}

// readDirection reads whether attention is causal. Kinds of layers that carry a state from token to
// token, or share caches, are causal only.
func (f *fields) readDirection(c *Config) {
	if c.NonCausal = c.NonCausal || !f.Bool("is_causal", true); !c.NonCausal {
		return
	}
	if c.Latent.Rank > 0 || c.Delta.KeyHeads > 0 || c.SwiftKV.Layers > 0 || c.OwnKV > 0 {
		f.fail("is_causal", ErrUnsupported, "attention to both sides is not implemented for %s", c.Architecture)
	}
}

// bodyName is the name that a tensor of a body alone has in a checkpoint with a head.
func bodyName(name string) string {
	if first, _, _ := strings.Cut(name, "."); first == "layers" || name == "embed_tokens.weight" || name == "norm.weight" {
		return "model." + name
	}
	return name
}

// ownName is the name of a file's tensor in this package.
func (c *Checkpoint) ownName(name string) string {
	if c.nested {
		return decoderName(name)
	}
	if arch, _ := lookup(c.Config.Architecture); arch.rename != nil {
		return arch.rename(&c.Config, name)
	}
	own := bodyName(name)
	c.body = c.body || own != name
	return own
}

// dropHead makes a checkpoint of a body alone one without a head.
func (c *Checkpoint) dropHead() {
	if _, has := c.at[Head]; c.body && !has {
		c.Config.Headless = true
	}
}

// pooling reads what GGUF states about vectors. The tensors after pooling are not part of the
// decoder.
func (m *metadata) pooling() {
	pooling, causal := m.arch+".pooling_type", m.arch+".attention.causal"
	m.headless = attempt.Must(m.f.Whole(pooling, 0, 0, 4)) > 0
	m.read[pooling] = true
	if v, ok := m.f.Value(causal); ok {
		if flag, is := v.Flag(); is {
			m.read[causal] = true
			m.set("is_causal", causal, flag)
		}
	}
	for _, dense := range []string{"dense_2", "dense_3"} {
		m.read[m.arch+"."+dense+"_feat_in"], m.read[m.arch+"."+dense+"_feat_out"] = true, true
	}
	m.read[m.arch+".classifier.output_labels"] = true
}

// afterPooling reports whether a tensor of a GGUF file works on vectors.
func (c *Config) afterPooling(name string) bool {
	first, _, _ := strings.Cut(name, ".")
	return c.Headless && (first == "cls" || first == "dense_2" || first == "dense_3")
}

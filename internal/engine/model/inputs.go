package model

import "strings"

// Inputs describes the terms that encoders add to the embedding of a token: a row for its position, a row for its
// type, then a norm.
type Inputs struct {
	Positions     int  `json:",omitempty"` // rows of the table of learned positions; 0: none
	FirstPosition int  `json:",omitempty"` // row of the first token; XLM-RoBERTa leaves rows out
	Types         int  `json:",omitempty"` // token types; 0: none
	Norm          bool `json:",omitempty"` // LayerNorm of the sum
}

// Tensors of Inputs.
const (
	EmbedPositions = "model.embed_positions.weight" // (Positions, hidden)
	EmbedTypes     = "model.embed_types.weight"     // (Types, hidden)
	EmbedNorm      = "model.embed_norm.weight"      // (hidden)
)

// IDs returns the number of ids that a plan may have: token t of type k has the id k*Vocab + t.
func (c *Config) IDs() int { return c.Vocab * max(1, c.Inputs.Types) }

// Typed gives tokens of a text the types that the tokenizer's template has for them. Types that the
// model does not have count as its last one.
func (c *Config) Typed(tokens, types []int32) {
	for i, k := range types {
		tokens[i] += int32(c.Vocab) * max(0, min(k, int32(c.Inputs.Types)-1))
	}
}

// BiasOf returns the name of the bias of a norm.
func BiasOf(norm string) string { return strings.TrimSuffix(norm, "weight") + "bias" }

// norm adds a norm of the residual stream.
func (s *specs) norm(c *Config, name string) {
	if s.add(name, c.Hidden); c.NormBias && name != "" {
		s.add(BiasOf(name), c.Hidden)
	}
}

func (s *specs) inputs(c *Config) {
	if in := &c.Inputs; in.Positions > 0 {
		s.add(EmbedPositions, in.Positions, c.Hidden)
	}
	if c.Inputs.Types > 0 {
		s.add(EmbedTypes, c.Inputs.Types, c.Hidden)
	}
	if c.Inputs.Norm {
		s.norm(c, EmbedNorm)
	}
}

// alias copies settings from older names of their keys.
func (f *Fields) alias(names map[string]string) {
	for key, old := range names {
		if v, ok := f.Raw[old]; ok && !f.Has(key) {
			f.Raw[key] = v
		}
	}
}

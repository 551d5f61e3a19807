// Package inputs has the terms that encoders add to the embeddings of tokens: rows for the position and for
// the type of the token, and a norm.
package inputs

import "github.com/shoal-llm/shoal/internal/engine/tensor"

// Inputs are the tables of an encoder. A table without rows adds nothing.
type Inputs struct {
	Positions [][]float32 // (positions, hidden): learned positions
	Types     [][]float32 // (types, hidden): token types, which distinguish the two texts of a pair
	Norm      []float32   // (2*hidden) or (hidden): LayerNorm, weights and then biases; nil: none
	Eps       float32
	Vocab     int // number of tokens
}

// Split returns the token and the type of an id in a plan: type*Vocab + token.
func (n *Inputs) Split(id uint32) (token uint32, kind int) {
	return id % uint32(n.Vocab), int(id) / n.Vocab
}

// Add completes the embedding x of a token.
func (n *Inputs) Add(x []float32, position, kind int) {
	if n.Types != nil {
		tensor.Add(x, n.Types[kind])
	}
	if n.Positions != nil {
		tensor.Add(x, n.Positions[position])
	}
	switch h := len(x); {
	case len(n.Norm) > h:
		tensor.LayerNormBias(x, x, n.Norm[:h], n.Norm[h:], n.Eps)
	case n.Norm != nil:
		tensor.LayerNorm(x, x, n.Norm, n.Eps)
	}
}

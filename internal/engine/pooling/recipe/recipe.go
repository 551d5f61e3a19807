// Package recipe reads from a model's own files how it makes vectors and scores of texts, and
// computes the steps after the pooled hidden state: dense layers, normalisation, fewer dimensions, the
// score of a classifier or of two tokens. It computes a few thousand products for each text, so the
// coordinator does it.
package recipe

import (
	"fmt"
	"math"
	"slices"

	"github.com/shoal-llm/shoal/internal/engine/pooling"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// Recipe is how a model makes a vector or a score of a text. Its methods may be called concurrently.
type Recipe struct {
	Pool      pooling.Method
	Normalize bool // vectors have length 1
	Width     int  // elements of a vector
	// Prompts are texts before the input, by name ("query", "document"); Default is the name of the
	// one of requests that name none; "": there is no default.
	Prompts map[string]string
	Default string
	// Scores means that the model scores a query and a document together. Otherwise a score is the
	// cosine of their vectors.
	Scores bool
	// Pair is the prompt of a query and a document, with {query}, {document} and {instruction}, for a
	// chat template that does not render messages of the roles query, document and system; "": none.
	Pair string
	// Texts means that the tokenizer encodes a query and a document as two texts, with token types,
	// instead of one prompt: see Typed.
	Texts bool
	// Only means that the model's files make it an embedding model or a reranker. It does not chat.
	Only bool
	// Source names where the recipe comes from, for logs.
	Source string

	dense []layer
	score scorer
	vocab int    // tokens of the model; with Texts
	types int    // token types of the model; with Texts
	sum   []byte // of everything above, see Fingerprint
}

// layer is a dense layer: y = activation(W x + Bias), plus x with Residual, then LayerNorm.
type layer struct {
	in, out    int
	w          []float32 // (out, in)
	bias       []float32 // (out), or nil
	activation string
	norm       []float32 // (out): weights of the norm, or nil
	eps        float32   // of the norm
}

// scorer is a row that gives the score, or two rows whose difference it is.
type scorer struct {
	rows  [][]float32 // (hidden)
	bias  float32
	scale float32 // factor of each product; 0 counts as 1
	limit float32 // bound of each product, as model.Config.LogitCap; 0: none
}

// Vector returns the vector of a text. hidden is its pooled hidden state. dimensions, not 0, cuts it
// to its first elements (Matryoshka) and normalises it again.
func (r *Recipe) Vector(hidden []float32, dimensions int) []float32 {
	x := slices.Clone(hidden)
	for i := range r.dense {
		x = r.dense[i].apply(x)
	}
	if dimensions > 0 {
		x = x[:min(dimensions, len(x))]
	}
	if r.Normalize {
		normalize(x)
	}
	return x
}

// Score returns the score of a query and a document before the sigmoid. hidden is the pooled hidden
// state of their prompt. The model must have Scores.
func (r *Recipe) Score(hidden []float32) float32 {
	x := hidden
	for i := range r.dense {
		x = r.dense[i].apply(x)
	}
	s := &r.score
	score := s.product(0, x)
	if len(s.rows) > 1 {
		score -= s.product(1, x)
	}
	return score + s.bias
}

func (s *scorer) product(row int, x []float32) float32 {
	y := []float32{float32(dot(s.rows[row], x))}
	if s.scale != 0 {
		y[0] *= s.scale
	}
	if s.limit > 0 {
		tensor.SoftCap(y, s.limit)
	}
	return y[0]
}

// Relevance returns the sigmoid of a score.
func Relevance(score float32) float32 {
	y := []float32{0}
	tensor.SigmoidMul(y, []float32{score}, []float32{1})
	return y[0]
}

// Cosine returns the cosine of the angle between two vectors.
func Cosine(a, b []float32) float32 {
	if n := math.Sqrt(dot(a, a) * dot(b, b)); n > 0 {
		return float32(dot(a, b) / n)
	}
	return 0
}

// dot returns the sum of products in the order of the elements. The products are exact in float64.
func dot(a, b []float32) (sum float64) {
	for i, v := range a {
		sum += float64(v) * float64(b[i])
	}
	return sum
}

func normalize(x []float32) {
	n := math.Sqrt(dot(x, x))
	if n == 0 {
		return
	}
	for i, v := range x {
		x[i] = float32(float64(v) / n)
	}
}

// activations are the functions of dense layers, by the names of PyTorch's classes in lower case.
var activations = map[string]func(x []float32){
	"identity": func([]float32) {},
	"gelu":     func(x []float32) { tensor.GELUOf(x, x) },
	"tanh":     func(x []float32) { tensor.SoftCap(x, 1) },
	"relu": func(x []float32) {
		for i, v := range x {
			x[i] = max(v, 0)
		}
	},
	"sigmoid": func(x []float32) { tensor.SigmoidMul(x, slices.Clone(x), slices.Repeat([]float32{1}, len(x))) },
}

func (l *layer) apply(x []float32) []float32 {
	y := make([]float32, l.out)
	for i := range y {
		sum := dot(l.w[i*l.in:(i+1)*l.in], x)
		if l.bias != nil {
			sum += float64(l.bias[i])
		}
		y[i] = float32(sum)
	}
	activations[l.activation](y)
	if l.norm != nil {
		tensor.LayerNorm(y, y, l.norm, l.eps)
	}
	return y
}

// Check reports whether vectors of this number of dimensions exist; 0 means all.
func (r *Recipe) Check(dimensions int) error {
	if dimensions < 0 || dimensions > r.Width {
		return fmt.Errorf("the vectors of this model have %d dimensions, so it must be from 1 to %d", r.Width, r.Width)
	}
	return nil
}

// Fingerprint names everything that decides the bits of a vector besides the hidden state.
func (r *Recipe) Fingerprint() string { return fmt.Sprintf("%.4x", r.sum) }

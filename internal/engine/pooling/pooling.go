// Package pooling makes one vector of the hidden states of a text's tokens. A socket collects the
// states chunk by chunk; the vector does not depend on where the chunks end.
package pooling

import (
	"fmt"
	"slices"
)

// Method selects the tokens whose hidden states become the vector of a text.
type Method uint8

const (
	None Method = iota // no vector: the text is a prompt to continue
	Last               // the last token
	Mean               // the mean over all tokens
	CLS                // the first token

	methods // number of methods
)

var names = [methods]string{"none", "last", "mean", "cls"}

func (m Method) String() string {
	if m < methods {
		return names[m]
	}
	return fmt.Sprintf("method %d", uint8(m))
}

// Valid reports whether m is a known method.
func (m Method) Valid() bool { return m < methods }

// Parse returns the method with a name.
func Parse(name string) (Method, error) {
	if i := slices.Index(names[:], name); i >= 0 {
		return Method(i), nil
	}
	return None, fmt.Errorf("pooling: method %q is not known; known are none, last, mean, cls", name)
}

// Accumulator collects the hidden states of one text. It belongs to one goroutine.
type Accumulator struct {
	method Method
	tokens int // of the text
	rows   int // added so far
	vector []float32
	sum    []float64 // Mean: (hidden), of the rows so far
}

// New returns an accumulator for a text with this number of tokens.
func New(m Method, tokens int) *Accumulator { return &Accumulator{method: m, tokens: tokens} }

// Rows returns the tokens in [start, end) whose hidden states Add needs, as a range.
func (a *Accumulator) Rows(start, end int) (lo, hi int) {
	switch a.method {
	case Last:
		return max(start, min(end, a.tokens-1)), end
	case CLS:
		return start, max(start, min(end, 1))
	case Mean:
		return start, end
	}
	return end, end
}

// Add adds the hidden state (hidden) of the next token that Rows names. Tokens come in order.
//
// The mean is a float64 chain over the tokens in order, so chunks do not change its bits.
func (a *Accumulator) Add(row []float32) {
	a.rows++
	if a.method != Mean {
		a.vector = slices.Clone(row)
		return
	}
	if a.sum == nil {
		a.sum = make([]float64, len(row))
	}
	for i, v := range row {
		a.sum[i] += float64(v)
	}
}

// Vector returns the vector of the text (hidden), after the last token was added.
func (a *Accumulator) Vector() []float32 {
	if a.method == Mean && a.vector == nil {
		a.vector = make([]float32, len(a.sum))
		for i, s := range a.sum {
			a.vector[i] = float32(s / float64(a.rows))
		}
	}
	return a.vector
}

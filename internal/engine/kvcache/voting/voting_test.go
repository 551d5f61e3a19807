package voting

import (
	"slices"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// Votes counted chunk by chunk are those of one chunk, also if a chunk ends before the candidates begin.
func TestCountInChunks(t *testing.T) {
	const prompt, g, d = 20, 2, 16
	l := tensor.KVLayout{Type: tensor.F32, KDim: d, VDim: d}
	block, q := make([]byte, l.BlockBytes()), make([]float32, prompt*g*d)
	for i := range q {
		q[i] = float32(i*7%13)/13 - 0.5
	}
	for pos := range prompt {
		l.Put(block, pos, q[pos*d:][:d], q[pos*d:][:d])
	}
	count := func(among tensor.Span, chunk int) []float32 {
		votes := make([]float32, prompt)
		for at := 0; at < prompt; at += chunk {
			n := min(chunk, prompt-at)
			Count(votes, q[at*g*d:], g*d, n, at, g, tensor.Score{Scale: 0.25}, l, [][]byte{block}, among, new(tensor.AttnScratch))
		}
		return votes
	}
	for _, e := range []Edges{{}, {Sink: 4, Recent: 1}, {Sink: 8, Recent: 4}, {Recent: 19}, {Sink: 19}, {Sink: 12, Recent: 12}} {
		want := count(e.Between(prompt), prompt)
		for _, chunk := range []int{1, 3, 7} {
			if got := count(e.Between(prompt), chunk); !slices.Equal(got, want) {
				t.Errorf("%+v in chunks of %d: %v, want %v", e, chunk, got, want)
			}
		}
	}
}

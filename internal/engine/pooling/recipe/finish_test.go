package recipe

import (
	"errors"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
	"github.com/shoal-llm/shoal/internal/engine/model"
)

// A recipe whose parts do not fit each other is refused, instead of a panic with the first text.
func TestFinishChecksShapes(t *testing.T) {
	ck := &checkpoint.Checkpoint{Config: model.Config{Hidden: 4}}
	whole := layer{in: 4, out: 2, w: make([]float32, 8), bias: make([]float32, 2), norm: make([]float32, 2), activation: "gelu", eps: 1e-5}
	short, long := whole, whole
	short.bias, long.norm = whole.bias[:1], make([]float32, 3)
	row := scorer{rows: [][]float32{make([]float32, 2)}}
	for name, c := range map[string]struct {
		of   Recipe
		fits bool
	}{
		"whole":           {Recipe{dense: []layer{whole}, score: row, Scores: true}, true},
		"without":         {Recipe{dense: []layer{{in: 4, out: 2, w: whole.w, activation: "tanh"}}, score: row, Scores: true}, true},
		"a short bias":    {Recipe{dense: []layer{short}, score: row, Scores: true}, false},
		"a long norm":     {Recipe{dense: []layer{long}, score: row, Scores: true}, false},
		"a score of none": {Recipe{Scores: true}, false},
	} {
		err := c.of.finish(ck)
		if (err == nil) != c.fits || err != nil && !errors.Is(err, ErrRecipe) {
			t.Errorf("%s: %v", name, err)
		}
		if err == nil {
			c.of.Score(make([]float32, 4))
		}
	}
}

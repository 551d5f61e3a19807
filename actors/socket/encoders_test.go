package socket

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/pooling/recipe"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/topology"
)

// encoderItem is a text and its reference, by train/goldens_encoders.py.
type encoderItem struct {
	IDs    []int32   `json:"ids"`
	Types  []int32   `json:"types"`
	Vector []float32 `json:"vector"`
	Score  float32   `json:"score"`
}

func encoderGoldens(t *testing.T, name string) (dir string, items []encoderItem) {
	t.Helper()
	dir = filepath.Join("../../internal/engine/pooling/recipe/testdata/encoders", name)
	var g struct{ Items []encoderItem }
	b, err := os.ReadFile(filepath.Join(dir, "goldens.json"))
	if err == nil {
		err = json.Unmarshal(b, &g)
	}
	if err != nil || len(g.Items) == 0 {
		t.Fatal(len(g.Items), err)
	}
	return dir, g.Items
}

// TestEncoders: vectors of encoders and scores of their rerankers equal those of transformers, and
// have the same bits on any number of sockets.
func TestEncoders(t *testing.T) {
	for _, name := range []string{"bert", "xlmr", "nomic", "modernbert", "bert_reranker", "xlmr_reranker", "modernbert_reranker"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, items := encoderGoldens(t, name)
			var first [][]float32
			for _, c := range []rigConfig{{sockets: 1, mapping: topology.Gather}, {sockets: 3, mapping: topology.Reduce, shares: []float64{1, 4, 2}}, {sockets: 4, mapping: topology.Gather}} {
				c.kv, c.fromFiles, c.dir = tensor.F32, true, dir
				r := newRig(t, c)
				how, err := recipe.Read(r.ck, recipe.Options{})
				if err != nil || how == nil {
					t.Fatal(how, err)
				}
				texts := make([]*text, len(items))
				for i, item := range items {
					ids := slices.Clone(item.IDs)
					r.ck.Config.Typed(ids, item.Types)
					texts[i] = &text{method: how.Pool, prompt: ids}
				}
				r.pool(fullStep, texts...) // all texts in one step
				for i, q := range texts {
					if how.Scores {
						if got := how.Score(q.vector); math.Abs(float64(got-items[i].Score)) > 1e-4 {
							t.Errorf("%d tokens: score %v, want %v", len(q.prompt), got, items[i].Score)
						}
					} else {
						near(t, fmt.Sprintf("%d sockets, %d tokens", c.sockets, len(q.prompt)), how.Vector(q.vector, 0), items[i].Vector)
					}
					if c.sockets == 1 {
						first = append(first, q.vector)
					}
					for j, v := range q.vector {
						if math.Float32bits(v) != math.Float32bits(first[i][j]) {
							t.Fatalf("%d sockets, %d tokens: element %d is %v, and %v on one", c.sockets, len(q.prompt), j, v, first[i][j])
						}
					}
				}
			}
		})
	}
}

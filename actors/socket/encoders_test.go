package socket

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
	"github.com/shoal-llm/shoal/internal/engine/model/modeltest"
	"github.com/shoal-llm/shoal/internal/engine/pooling"
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

// encoderGGUF writes the same model as llama.cpp's converter does.
func encoderGGUF(t *testing.T, dir string) (file string) {
	t.Helper()
	ck, err := checkpoint.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer ck.Close()
	how, err := recipe.Read(ck, recipe.Options{})
	if err != nil || how == nil {
		t.Fatal(how, err)
	}
	pool := map[pooling.Method]uint32{pooling.Mean: 1, pooling.CLS: 2}[how.Pool]
	if how.Scores {
		pool = 4
	}
	file = filepath.Join(t.TempDir(), "model.gguf")
	if err := os.WriteFile(file, modeltest.ConvertEncoder(ck, pool).Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// TestEncoders: vectors of encoders and scores of their rerankers equal those of transformers, and
// have the same bits on any number of sockets.
func TestEncoders(t *testing.T) {
	for _, name := range []string{"bert", "xlmr", "nomic", "distilbert", "modernbert", "bert_reranker",
		"xlmr_reranker", "modernbert_reranker"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, items := encoderGoldens(t, name)
			var first [][]float32
			configs := []rigConfig{
				{sockets: 1, mapping: topology.Gather},
				{sockets: 3, mapping: topology.Reduce, shares: []float64{1, 4, 2}},
				{sockets: 4, mapping: topology.Gather},
			}
			if name != "bert_reranker" { // llama.cpp's converter leaves out BERT's pooler
				configs = append(configs, rigConfig{sockets: 3, mapping: topology.Gather, dir: encoderGGUF(t, dir)})
			}
			for _, c := range configs {
				c.kv, c.fromFiles, c.dir = tensor.F32, true, cmp.Or(c.dir, dir)
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

package socket

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
	"github.com/shoal-llm/shoal/internal/engine/gguf"
	"github.com/shoal-llm/shoal/internal/engine/model/modeltest"
	"github.com/shoal-llm/shoal/internal/engine/pooling/recipe"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/topology"
)

// TestRecipes: vectors and scores equal those of sentence-transformers, on one socket and on three.
func TestRecipes(t *testing.T) {
	for _, name := range []string{"qwen3_embedding", "embeddinggemma", "mistral_embedding", "qwen3_classifier"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join("../../internal/engine/pooling/recipe/testdata", name)
			var g struct {
				Items []struct {
					IDs   []int32   `json:"ids"`
					V     []float32 `json:"vector"`
					C     []float32 `json:"cut"`
					Score *float32  `json:"score"`
				} `json:"items"`
			}
			b, err := os.ReadFile(filepath.Join(dir, "goldens.json"))
			if err == nil {
				err = json.Unmarshal(b, &g)
			}
			if err != nil || len(g.Items) == 0 {
				t.Fatal(len(g.Items), err)
			}
			for _, c := range []rigConfig{
				{sockets: 1, mapping: topology.Gather},
				{sockets: 3, mapping: topology.Reduce, shares: []float64{1, 4, 2}},
				{sockets: 1, mapping: topology.Gather, dir: asGGUF(t, dir)},
			} {
				c.kv, c.fromFiles = tensor.F32, true
				if c.dir == "" {
					c.dir = dir
				}
				r := newRig(t, c)
				how, err := recipe.Read(r.ck, recipe.Options{})
				if err != nil || how == nil {
					t.Fatal(how, err)
				}
				for _, item := range g.Items {
					q := &text{method: how.Pool, prompt: item.IDs}
					chunk := 50
					if r.ck.Config.NonCausal {
						chunk = fullStep
					}
					r.pool(chunk, q)
					if item.Score != nil {
						if got := how.Score(q.vector); math.Abs(float64(got-*item.Score)) > 1e-4 {
							t.Errorf("%d tokens: score %v, want %v", len(item.IDs), got, *item.Score)
						}
						continue
					}
					near(t, fmt.Sprintf("%d tokens", len(item.IDs)), how.Vector(q.vector, 0), item.V)
					near(t, fmt.Sprintf("%d tokens, 16 dimensions", len(item.IDs)), how.Vector(q.vector, 16), item.C)
				}
			}
		})
	}
}

// asGGUF converts a folder as llama.cpp's converter does. It returns "" for a model that has no GGUF form.
func asGGUF(t *testing.T, dir string) string {
	t.Helper()
	ck, err := checkpoint.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer ck.Close()
	g := modeltest.Convert(ck, func(string) gguf.Type { return gguf.F32 })
	switch filepath.Base(dir) {
	case "qwen3_embedding":
		g.Set("qwen3.pooling_type", 3)
	case "qwen3_classifier":
		g.Set("qwen3.pooling_type", 4)
		score, err := ck.Tensor("score.weight")
		if err != nil {
			t.Fatal(err)
		}
		row := make([]float32, score.Cols())
		score.Row(row, 0, 0, len(row))
		g.Add("cls.output.weight", gguf.F32, []int{1, len(row)}, modeltest.Quantize(gguf.F32, row))
	case "embeddinggemma":
		const arch = "gemma-embedding"
		for i := range g.Meta {
			if rest, ok := strings.CutPrefix(g.Meta[i].Name, "gemma3."); ok {
				g.Meta[i].Name = arch + "." + rest
			}
		}
		for key, v := range map[string]any{"general.architecture": arch, arch + ".attention.sliding_window": 24,
			arch + ".pooling_type": 1, arch + ".attention.causal": false, arch + ".dense_2_feat_in": 64} {
			g.Unset(key)
			g.Set(key, v)
		}
		for _, n := range []string{"2", "3"} {
			b, err := os.ReadFile(filepath.Join(dir, n+"_Dense", "model.safetensors"))
			if err != nil {
				t.Fatal(err)
			}
			shape := map[string][]int{"2": {96, 64}, "3": {64, 96}}[n]
			g.Add("dense_"+n+".weight", gguf.F32, shape, b[len(b)-4*96*64:])
		}
	default:
		return ""
	}
	path := filepath.Join(t.TempDir(), "model.gguf")
	if err := os.WriteFile(path, g.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// near checks that two vectors have the same length and a cosine of at least 1 - 1e-5.
func near(t *testing.T, what string, got, want []float32) {
	t.Helper()
	if len(got) != len(want) || len(want) == 0 {
		t.Fatalf("%s: %d elements, want %d", what, len(got), len(want))
	}
	a, b, ab := 0.0, 0.0, 0.0
	for i := range got {
		a, b, ab = a+float64(got[i])*float64(got[i]), b+float64(want[i])*float64(want[i]), ab+float64(got[i])*float64(want[i])
	}
	if cos := ab / math.Sqrt(a*b); cos < 1-1e-6 || math.Abs(a-b) > 1e-4 {
		t.Errorf("%s: cosine %v, squares %v and %v", what, cos, a, b)
	}
}

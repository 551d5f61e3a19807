package cluster

import (
	"fmt"
	"path/filepath"
	"testing"
)

// TestEncoders: texts over HTTP give the vectors of transformers, from the tokenizers of each family,
// with the same bits on one node and on three.
func TestEncoders(t *testing.T) {
	for _, name := range []string{"bert", "xlmr", "nomic", "distilbert", "modernbert"} {
		t.Run(name, func(t *testing.T) {
			g := readVectorGoldens(t, "encoders/"+name)
			var inputs []string
			tokens := 0
			for _, item := range g.Items {
				inputs, tokens = append(inputs, item.Text), tokens+len(item.IDs)
			}
			var one [][]float32
			for _, nodes := range []int{1, 3} {
				s := serveVectors(t, nodes, ServeConfig{Model: filepath.Join(vectorModels, "encoders", name), Weights: "f32", KV: "f32"})
				all, used := s.embed(inputs, nil)
				if used != tokens {
					t.Errorf("%d tokens, want %d", used, tokens)
				}
				for i, item := range g.Items {
					alike(t, item.Text, all[i], item.Vector)
				}
				if one == nil {
					one = all
				} else if fmt.Sprint(one) != fmt.Sprint(all) {
					t.Error("three nodes give other bits than one")
				}
			}
		})
	}
}

// TestEncoderRerankers: pairs have the scores of transformers, and documents their order.
func TestEncoderRerankers(t *testing.T) {
	for _, name := range []string{"bert_reranker", "xlmr_reranker", "modernbert_reranker"} {
		t.Run(name, func(t *testing.T) {
			g := readVectorGoldens(t, "encoders/"+name)
			s := serveVectors(t, 1, ServeConfig{Model: filepath.Join(vectorModels, "encoders", name), Weights: "f32", KV: "f32"})
			var queries, documents []string
			for _, item := range g.Items {
				queries, documents = append(queries, item.Query), append(documents, item.Document)
			}
			var raw struct{ Data []struct{ Score float32 } }
			s.post("/v1/score", fields{"queries": queries, "documents": documents, "raw_scores": true}, 200, &raw)
			for i, item := range g.Items {
				if d := raw.Data[i].Score - *item.Score; d > 1e-4 || d < -1e-4 {
					t.Errorf("pair %d: score %v, want %v", i, raw.Data[i].Score, *item.Score)
				}
			}
			var order struct {
				Results []struct{ Index int }
			}
			s.post("/v1/rerank", fields{"query": queries[0], "documents": documents[:2]}, 200, &order)
			if len(order.Results) != 2 || (*g.Items[1].Score > *g.Items[0].Score) != (order.Results[0].Index == 1) {
				t.Errorf("order %v of the scores %v and %v", order.Results, *g.Items[0].Score, *g.Items[1].Score)
			}
			long := "gravity " + documents[0]
			for range 6 {
				long += long
			}
			s.post("/v1/rerank", fields{"query": queries[0], "documents": []string{long}}, 400, nil)
			s.post("/v1/rerank", fields{"query": queries[0], "documents": []string{long}, "truncate_prompt_tokens": 30}, 200, nil)
			s.post("/v1/rerank", fields{"query": queries[0], "documents": documents[:1], "instruction": "x"}, 400, nil)
		})
	}
}

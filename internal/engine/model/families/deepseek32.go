package families

import (
	"fmt"

	"github.com/shoal-llm/shoal/internal/engine/model"
)

// DeepSeek V3.2 (arXiv 2512.02556): DeepSeek V3 (deepseek.go) whose layers choose the tokens that a
// query attends to, by an indexer with small heads. With the normed latent cq of queries:
//
//	q   = RoPE(IndexQ cq), k = RoPE(LayerNorm(IndexK h))  the first part of each head, pairs of halves
//	s_t = sum over heads of w (q . k_t / sqrt(dim))+      w = IndexWeights h / sqrt(heads)
//
// A query attends to the TopK tokens with the largest s. The cache stores the indexer's key of a token
// after its row, so the key counts in the ledger and moves with the row.
func init() {
	model.Register(model.Family{
		Name:     DeepseekV32,
		Defaults: map[string]string{"max_position_embeddings": "163840", "q_lora_rank": "1536"},
		Aliases:  routedExperts,
		Read: func(f *model.Fields, c *model.Config) {
			readDeepseek(f, c)
			readLayerKinds(f, c)
			f.MustBe("mlp_bias", false)
			readIndexer(f, c)
		},
		Layer:  indexedLayer,
		Latent: true,
		Beyond: model.AfterLast,
	})
	// GLM-5 (Z.ai, 2026): the same with GLM's sizes. Its indexer rotates pairs of neighbours.
	model.Register(model.Family{
		Name: "GlmMoeDsaForCausalLM",
		Defaults: map[string]string{"rms_norm_eps": "1e-5", "max_position_embeddings": "202752", "q_lora_rank": "2048",
			"qk_nope_head_dim": "192", "v_head_dim": "256",
			"n_group": "1", "topk_group": "1", "index_n_heads": "32"},
		Aliases: routedExperts,
		Read: func(f *model.Fields, c *model.Config) {
			readDeepseek(f, c)
			readLayerKinds(f, c)
			f.MustBe("mlp_bias", false)
			readIndexer(f, c)
			c.Latent.Index.Neighbours = true
			refuseSharedIndexes(f)
		},
		Layer:  indexedLayer,
		Latent: true,
		Extra:  model.DecoderExtra,
		Beyond: model.AfterLast,
	})
}

// refuseSharedIndexes refuses layers that reuse the tokens chosen by an earlier layer.
func refuseSharedIndexes(f *model.Fields) {
	var kinds []string
	if f.Get("indexer_types", &kinds, "a list of names") {
		for i, k := range kinds {
			if k != "full" {
				f.Refuse("indexer_types", "layer %d: %q is not supported; known: full", i, model.Clip(k))
				return
			}
		}
		return
	}
	if f.Has("index_topk_pattern") {
		f.Refuse("index_topk_pattern", "layers that share the choice of an earlier layer are not supported")
	}
	if n := f.Size("index_topk_freq", 1, model.MaxLayers); n != 1 {
		f.Refuse("index_topk_freq", "%d: layers that share the choice of an earlier layer are not supported", n)
	}
}

const DeepseekV32 = "DeepseekV32ForCausalLM"

func readIndexer(f *model.Fields, c *model.Config) {
	l := &c.Latent
	l.Index = model.Indexer{Heads: f.Size("index_n_heads", 64, model.MaxHeads), Dim: f.Size("index_head_dim", 128, model.MaxHeadDim),
		TopK: f.Size("index_topk", 2048, model.MaxPositions)}
	switch {
	case f.Err != nil:
	case l.QueryRank == 0:
		f.Refuse("q_lora_rank", "null: the indexer reads the latent of queries")
	case l.Index.Dim < l.Rope:
		f.Fail("index_head_dim", model.ErrFormat, "%d, but the first %d elements of a head rotate", l.Index.Dim, l.Rope)
	}
}

func indexedLayer(c *model.Config, i int) model.LayerSpec {
	l := deepseekLayer(c, i)
	p := fmt.Sprintf("model.layers.%d.self_attn.indexer.", i)
	l.Latent.Index = &model.IndexSpec{Q: model.Projection(p+"wq_b", false), K: model.Projection(p+"wk", false), Norm: p + "k_norm.weight",
		NormShift: p + "k_norm.bias", Weights: model.Projection(p+"weights_proj", false)}
	return l
}
